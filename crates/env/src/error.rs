//! What is wrong with a value.

/// The result of reading a variable.
pub type Result<T> = std::result::Result<T, Error>;

/// A variable has a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: allowed is {allowed}")]
pub struct Error {
    /// The variable, by the name it was found under.
    pub name: &'static str,
    /// Its value; of a secret only how long it is.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

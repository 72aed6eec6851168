//! What can go wrong in a collective.

/// The result of a collective call.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in a collective.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Set-up or another rank failed.
    #[error(transparent)]
    Core(#[from] mscclrs_core::Error),
    /// A device call failed.
    #[error(transparent)]
    Gpu(#[from] mscclrs_gpu::Error),
}

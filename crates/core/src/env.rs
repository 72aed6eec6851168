//! Every environment variable, in one table.
//!
//! A variable is read through its entry here and nowhere else, so that the table is the whole
//! truth. An empty value is as good as none. Where MSCCL++ has the variable its spelling works too;
//! ours wins.

/// One environment variable.
#[derive(Debug)]
pub struct Variable {
    /// The name that is documented.
    pub name: &'static str,
    /// The name of the same variable in MSCCL++.
    pub alias: Option<&'static str>,
    /// What values are allowed, for people.
    pub allowed: &'static str,
    /// What holds when it is unset, for people.
    pub default: &'static str,
    /// What it does.
    pub text: &'static str,
}

/// Overrides what identifies this host.
pub static HOSTID: Variable = Variable {
    name: "MSCCLRS_HOSTID",
    alias: Some("MSCCLPP_HOSTID"),
    allowed: "any text",
    default: "host name and boot id",
    text: "Ranks with equal values count as on one host.",
};

impl Variable {
    /// The value, if there is one that is not empty.
    pub fn text(&self) -> Option<String> {
        [Some(self.name), self.alias]
            .into_iter()
            .flatten()
            .filter_map(|name| std::env::var(name).ok())
            .find(|value| !value.is_empty())
    }
}

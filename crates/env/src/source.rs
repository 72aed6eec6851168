//! Where values come from.

use std::ffi::OsString;

/// Where values come from: the environment of this process, or what a test says.
#[derive(Clone, Copy)]
pub struct Source<'a>(&'a dyn Fn(&str) -> Option<String>);

impl<'a> Source<'a> {
    /// The environment of this process.
    pub const PROCESS: Source<'static> = Source(&from_process);

    /// Values by name.
    pub const fn new(values: &'a dyn Fn(&str) -> Option<String>) -> Source<'a> {
        Source(values)
    }

    /// A value that is not empty.
    pub(crate) fn value(self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.trim().is_empty())
    }
}

fn from_process(name: &str) -> Option<String> {
    Some(std::env::var_os(name)?.to_string_lossy().into_owned())
}

/// The value of any variable of this process, to be given to another one: nothing is read here.
pub fn inherited(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The names in this process's environment that begin so and have a value that is not empty, sorted.
pub fn names(begin: &str) -> Vec<String> {
    let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    let mut names: Vec<_> = set.map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with(begin));
    names.sort();
    names
}

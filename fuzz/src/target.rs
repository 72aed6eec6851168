//! A target.

/// A parser of what comes from outside, as the fuzzer sees it.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of the folder of its corpus.
    pub name: &'static str,
    /// Parses; whether it took the input. Panics if what was parsed does not serialize back to the
    /// same, or if anything else that has to hold does not.
    pub run: fn(&[u8]) -> bool,
    /// Inputs that it takes, as the writers of the real ones make them.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// Runs one input, held to the bound of allocations.
    pub fn check(&self, input: &[u8]) -> bool {
        crate::is_bounded(self.name, input, self.run)
    }
}

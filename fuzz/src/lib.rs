//! Fuzz targets: what they are, what holds of each, and the tests that walk their corpora.
//!
//! A target takes any bytes to a parser of what comes from outside. Parsers are private, so their
//! targets stand beside them, in modules that exist in tests and under `cfg(fuzzing)` only. The same
//! functions are run by `cargo xtask fuzz`, with libFuzzer, and by [`walk`], in ordinary tests.
//!
//! This crate counts what a thread allocates, by a global allocator of its own: it is linked into
//! tests and the fuzzer, and into nothing else.

mod allocations;
mod mutate;
mod target;
mod walk;

pub use target::Target;
pub use walk::{is_bounded, walk};

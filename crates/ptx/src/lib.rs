//! From a crate of kernels to device files: PTX by rustc, cubins by ptxas, checked and compressed.
//!
//! What a build writes depends on the sources, the compiler and the assembler only: no path, time or
//! host name gets into a file, so two builds of the same sources by the same tools are equal byte for
//! byte. [`build`] refuses code that breaks one of the rules of [`rules`], so what lies in an output
//! folder has passed them all. Nothing is installed except by [`Tools::install`].

mod assemble;
mod build;
mod compile;
mod compress;
mod error;
mod manifest;
mod module;
pub mod rules;
mod tools;

pub use assemble::{Resources, parse_resources};
pub use build::{BuildRequest, Built, Report, build, build_one, read_image};
pub use compile::{Architecture, CUBIN_CAPABILITIES, PTX_ARCHITECTURES, Package};
pub use error::{Error, Result};
pub use manifest::{EntryRecord, Manifest, SourceRecord, hash_bytes};
pub use module::{Entry, Module};
pub use tools::{Assembler, Compiler, Tools};

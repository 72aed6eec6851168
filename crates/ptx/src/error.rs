//! What can go wrong between a crate and its device files.

use std::path::PathBuf;

use crate::rules::Violation;

/// The result of a step of the pipeline.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between a crate and its device files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tool ran and failed.
    #[error("{what} failed ({status}):\n{output}\nto run it again: {command}")]
    Command {
        /// What it was to do.
        what: String,
        /// How it ended.
        status: String,
        /// What it wrote.
        output: String,
        /// The command line.
        command: String,
    },
    /// A file or folder could not be used.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error; part of the message, so not a source of its own.
        error: std::io::Error,
    },
    /// A manifest cannot be read.
    #[error("{path}: {why}; make it again with `cargo xtask ptx`", path = path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Tools are missing; each line says what and how to get it.
    #[error("tools for device code are missing:\n{}", .missing.join("\n"))]
    Missing {
        /// One sentence a tool.
        missing: Vec<String>,
    },
    /// The PTX is not what the kernel macros make.
    #[error("{place}: {why}")]
    Module {
        /// Entry or global.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// Code broke the rules of device code.
    #[error("device code for {target} breaks {} rules:\n{}", .violations.len(), lines(.violations))]
    Rules {
        /// Compiled for.
        target: String,
        /// Each broken rule.
        violations: Vec<Violation>,
    },
}

fn lines(violations: &[Violation]) -> String {
    violations.iter().map(|v| format!("  {v}")).collect::<Vec<_>>().join("\n")
}

/// Gives an I/O error its path.
pub(crate) trait At<T> {
    fn at(self, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|error| Error::Io { path: path.into(), error })
    }
}

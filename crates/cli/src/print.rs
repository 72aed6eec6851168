//! What is written to standard output as a whole.

use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Writes it. That nobody reads to the end, as with `| head`, is no failure.
pub(crate) fn print(bytes: &[u8]) -> Result<ExitCode> {
    let mut out = stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        end => end.map(|()| ExitCode::SUCCESS).context("standard output cannot be written"),
    }
}

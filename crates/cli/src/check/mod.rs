//! `mscclrs check`: runs kernels in simulations, seed after seed, and tells what was found.
//!
//! Invariant: a run counts as good only if it says itself that it ran kernels, that all of them ended and
//! that nothing was found. Silence is no proof: a command that leaves no report has not been checked.

mod findings;
mod options;
mod orders;
mod own;
mod program;
mod quote;
mod report;

use std::process::ExitCode;

use anyhow::Result;

pub(crate) use options::CheckOptions;
use options::Own;

use crate::rival::Collective;

/// Checks what the options say; the exit status is 1 if anything was found.
pub(crate) fn run(options: &CheckOptions) -> Result<ExitCode> {
    options.validate()?;
    match &options.own {
        Some(Own::Allgather(own)) => own::run(Collective::AllGather, own, &options.looks),
        Some(Own::Allreduce(own)) => own::run(Collective::AllReduce, own, &options.looks),
        None => program::run(options),
    }
}

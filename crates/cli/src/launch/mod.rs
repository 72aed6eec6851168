//! `mscclrs launch`: starts ranks, on this host or on several, and answers for them.
//!
//! Invariant: when the command ends, so have the ranks and whatever runs in their process groups. On
//! every way out the command itself ends them and waits; if it is killed, its guard ends them.

pub(crate) mod alone;
mod environment;
mod guard;
mod hosts;
mod job;
mod lifeline;
mod local;
mod options;
mod output;
mod place;
mod secret;
mod signals;
mod task;

use std::process::ExitCode;

use anyhow::Result;

pub(crate) use guard::{COMMAND as GUARD, run as run_guard};
pub(crate) use options::LaunchOptions;
use options::Shape;

/// Starts what the options say; gives the exit status of the whole.
pub(crate) fn run(options: &LaunchOptions) -> Result<ExitCode> {
    match options.shape()? {
        Shape::Local(part) => local::run(options, &part),
        Shape::Print(span) => hosts::print(options, &span),
        Shape::Ssh(span) => hosts::run(options, &span),
    }
}

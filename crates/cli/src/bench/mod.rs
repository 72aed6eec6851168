//! `mscclrs bench`.

pub(crate) mod check;
pub(crate) mod collective;
mod compare;
mod data;
pub(crate) mod files;
mod header;
mod hop;
pub(crate) mod lines;
pub(crate) mod memory;
mod plot;
pub(crate) mod report;
mod row;
pub(crate) mod sizes;
mod table;
pub(crate) mod types;

use std::process::ExitCode;

use anyhow::Result;

use crate::limits;
use crate::options::{Bench, CollectiveOptions, HopOptions};
use crate::ranks::Plan;
use crate::rival::Collective;

/// Runs a measurement, on ranks that it starts.
pub(crate) fn run(bench: &Bench) -> Result<ExitCode> {
    match bench {
        Bench::Allgather(options) => collective(Collective::AllGather, options),
        Bench::Allreduce(options) => collective(Collective::AllReduce, options),
        Bench::Limits(options) => limits::start(options),
        Bench::Packet(options) => hop(hop::What::Packet, options),
        Bench::Signal(options) => hop(hop::What::Signal, options),
    }
}

fn collective(collective: Collective, options: &CollectiveOptions) -> Result<ExitCode> {
    let plan = Plan::new(&options.ranks.placement, options.ranks.ranks)?;
    options.validate(collective, &plan)?;
    plan.run(&|rank| collective::run(rank, collective, options))
}

fn hop(what: hop::What, options: &HopOptions) -> Result<ExitCode> {
    let plan = Plan::of_a_pair(&options.ranks)?;
    if plan.writes() {
        report::require_writable(options.output.json.as_deref())?;
    }
    plan.run(&|rank| hop::run(rank, what, options))
}

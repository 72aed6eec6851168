//! `mscclrs bench`.

mod check;
mod collective;
mod compare;
mod data;
mod header;
mod memory;
mod plot;
mod report;
mod row;
pub(crate) mod sizes;
mod table;
pub(crate) mod types;

use std::process::ExitCode;

use anyhow::Result;

use crate::options::Bench;
use crate::ranks::Plan;

/// Runs a measurement, on ranks that it starts.
pub(crate) fn run(bench: &Bench) -> Result<ExitCode> {
    let (collective, options) = bench.collective();
    let plan = Plan::new(&options.ranks, None)?;
    options.validate(plan.kind)?;
    plan.run(&|rank| collective::run(rank, collective, options))
}

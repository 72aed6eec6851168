//! `bench limits`: what this machine allows, as the measure of everything else.
//!
//! Two ranks measure an empty graph node, hops, bandwidth one way and both ways by each way of
//! moving data, and bare allreduces without any safety. Machines differ, so its figures are compared
//! inside one run. On the CPU device the bare kernels do not exist and what makes sense is measured.

mod bare;
mod general;
mod report;

use std::time::Duration;

use std::process::ExitCode;

use anyhow::{Context, Result};
use mscclrs_core::Communicator;
use mscclrs_gpu::{BackendKind, Stream};

use report::Report;

use crate::bench::report::{Report as Output, require_writable};
use crate::harness::{Candidate, Harness, Schedule};
use crate::options::LimitsOptions;
use crate::ranks::{Plan, Rank, Verdict};
use crate::yardstick::{self, Bare};

/// Operations a graph, and a sample.
const OPERATIONS: u64 = 20;
/// Samples of each row.
const SAMPLES: usize = 20;
/// Most steps that progress is told of.
const STEPS: u64 = 4 + bare::SIZES.len() as u64;

/// Bytes of one copy on a GPU: long against what a launch costs, and past its caches.
const GPU_COPY_BYTES: u64 = 128 << 20;
/// Bytes of one copy on the CPU device.
const CPU_COPY_BYTES: u64 = 1 << 20;

/// What is told a person at a terminal while it is measured.
type Progress<'a> = dyn FnMut(&str) + 'a;

/// Runs `bench limits`, on two ranks that it starts.
pub(crate) fn start(options: &LimitsOptions) -> Result<ExitCode> {
    let plan = Plan::of_a_pair(&options.ranks)?;
    if plan.writes() {
        require_writable(options.output.json.as_deref())?;
    }
    plan.run(&|rank| run(rank, options))
}

fn run(rank: &Rank, options: &LimitsOptions) -> Result<Verdict> {
    let json = options.output.json.as_deref();
    let mut output = rank.is_first().then(|| Output::open(json, STEPS));
    let mut progress = |what: &str| {
        if let Some(output) = &output {
            output.step(what.into());
        }
    };
    let report = measure(&rank.communicator, &rank.stream, &mut progress)?;
    if let Some(output) = &mut output {
        output.print(report.to_string().trim_end())?;
        for line in report.lines() {
            output.write(&line)?;
        }
        output.finish()?;
    }
    // Nobody leaves while another still measures.
    rank.communicator.bootstrap().barrier()?;
    Ok(Verdict::Right)
}

/// Measures. Both ranks call it, and get the same report.
fn measure(
    communicator: &Communicator,
    stream: &Stream,
    progress: &mut Progress<'_>,
) -> Result<Report> {
    let device = communicator.device();
    let mut report = Report::new(device.name());
    let mut harness = Harness::new(communicator, stream, schedule(device.kind()))?;
    match yardstick::unavailable(communicator) {
        None => {
            let mut bare = Bare::new(communicator, GPU_COPY_BYTES, stream)
                .context("set-up of the bare kernels")?;
            bare::measure(&mut bare, &mut harness, stream, &mut report, progress)?;
        }
        Some(why) => {
            report.note(format!("{why}; bare hops and bare allreduces are left out"));
            let bytes = match device.kind() {
                BackendKind::Cpu => CPU_COPY_BYTES,
                BackendKind::Cuda => GPU_COPY_BYTES,
            };
            general::measure(communicator, bytes, &mut harness, stream, &mut report, progress)?;
        }
    }
    communicator.synchronize(stream)?;
    Ok(report)
}

fn schedule(kind: BackendKind) -> Schedule {
    let usual = Schedule::usual(kind);
    match kind {
        BackendKind::Cuda => Schedule {
            iterations: OPERATIONS,
            fixed_iterations: true,
            graph: OPERATIONS,
            samples: SAMPLES,
            ..usual
        },
        BackendKind::Cpu => {
            Schedule { samples: SAMPLES, budget: Some(Duration::from_secs(1)), ..usual }
        }
    }
}

/// A candidate of the harness that does something on rank 0 only.
fn one_way<'a>(
    communicator: &Communicator,
    name: String,
    work: impl FnMut(&Stream) -> Result<()> + 'a,
    idle: impl FnMut(&Stream) -> Result<()> + 'a,
) -> Candidate<'a> {
    if communicator.rank() == 0 { Candidate::new(name, work) } else { Candidate::new(name, idle) }
}

//! `bench signal` and `bench packet`: what it takes until one rank sees what the other did.
//!
//! One lane of each rank answers the other's, many times a launch, so that what a launch costs is lost
//! in the number; a time is that of one hop, half a round trip.

use anyhow::{Context, Result};
use mscclrs_core::{EndpointConfig, Transport, register_launch_tag};
use mscclrs_device::Global;
use mscclrs_gpu::{BackendKind, Grid};
use mscclrs_kernels::hop::{PacketHopArgs, SignalHopArgs, packet_hop, signal_hop};
use serde::Serialize;

use crate::bench::header;
use crate::bench::report::Report;
use crate::harness::{Candidate, Harness, Schedule, Timing};
use crate::options::{HopOptions, PAIR};
use crate::ranks::{Rank, Verdict};

/// What is handed to and fro.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Packet,
    Signal,
}

/// One measured kind of hop, as JSON has it.
#[derive(Clone, Debug, Serialize)]
struct HopRow {
    op: &'static str,
    /// Bytes of data that travel with a hop; a signal carries none.
    bytes: u32,
    time_us: f64,
    round_trip_us: f64,
    spread_us: f64,
    rounds: u32,
    ranks: u32,
    device: String,
}

/// The bytes that a packet carries.
const SIGNALS: [(&str, &str); 2] = [("_relaxed", "signal"), ("_ordered", "ordered signal")];
const PAYLOADS: [(&str, &str, u32); 2] = [("_ll8", "ll8 packet", 4), ("_ll16", "ll16 packet", 8)];

/// The tag of the connection that a signal's semaphore lies on.
const TAG: u32 = 1;

/// Where this rank's word that counts round trips lies, behind its 16-byte slot and apart from it.
const COUNT: u64 = 256;

/// One rank's run.
pub(crate) fn run(rank: &Rank, what: What, options: &HopOptions) -> Result<Verdict> {
    let communicator = &rank.communicator;
    let kind = communicator.device().kind();
    let rounds = options.rounds.unwrap_or(match kind {
        BackendKind::Cpu => 200,
        BackendKind::Cuda => 1000,
    });
    let schedule =
        Schedule { iterations: 1, fixed_iterations: true, graph: 0, ..Schedule::usual(kind) };
    let mut harness = Harness::new(communicator, &rank.stream, schedule)?;
    let places = header::devices(rank)?;
    let name = match what {
        What::Packet => "packet",
        What::Signal => "signal",
    };
    let json = options.output.json.as_deref();
    let mut report = rank.is_first().then(|| Report::open(json, 2));
    if let Some(report) = &mut report {
        let lines = header::lines(rank, name, &places);
        report.print(&format!("{lines}\n#\n{HEAD}"))?;
    }
    let mut rows = Vec::new();
    let mut row = |op, bytes, timing: Timing| {
        let hops = 2.0 * f64::from(rounds);
        rows.push(HopRow {
            op,
            bytes,
            time_us: timing.time_us / hops,
            round_trip_us: 2.0 * timing.time_us / hops,
            spread_us: timing.spread_us / hops,
            rounds,
            ranks: PAIR,
            device: communicator.device().name(),
        });
    };
    match what {
        What::Signal => {
            for (suffix, name) in SIGNALS {
                row(name, 0, signal(rank, suffix, rounds, &mut harness)?);
            }
        }
        What::Packet => {
            for (suffix, name, bytes) in PAYLOADS {
                row(name, bytes, packet(rank, suffix, rounds, &mut harness)?);
            }
        }
    }
    if let Some(report) = &mut report {
        for row in &rows {
            report.print(&format!(
                "{:>15} {:>6} {:>12} {:>13.3} {:>13.3} {:>13.3}",
                row.op, row.bytes, row.rounds, row.time_us, row.spread_us, row.round_trip_us
            ))?;
            report.write(row)?;
        }
        report.print(&format!("# Hops measured         : {}", rows.len()))?;
        report.finish()?;
    }
    communicator.bootstrap().barrier()?;
    Ok(Verdict::Right)
}

const HEAD: &str = "\
#           hop   data  round trips      time/hop        spread    round trip
#                  (B)     a launch          (us)          (us)          (us)";

fn signal(rank: &Rank, suffix: &str, rounds: u32, harness: &mut Harness<'_>) -> Result<Timing> {
    let communicator = &rank.communicator;
    let me = communicator.rank();
    let config = EndpointConfig::new(Transport::PeerMemory);
    let connection = communicator.connect(&config, 1 - me, TAG)?.get()?;
    let semaphore = communicator.build_semaphore(&connection, TAG)?.get()?;
    let kernel = signal_hop.instance(suffix).context("this program has no such signal kernel")?;
    let function = communicator.device().function(kernel)?;
    let args = SignalHopArgs {
        guard: communicator.guard(register_launch_tag(function.kernel().name)),
        semaphore: semaphore.device_handle(),
        rounds,
        rank: me,
    };
    let timings = harness.measure(&mut [Candidate::new(suffix, |stream| {
        // SAFETY: the semaphore outlives the measurement, which waits for its last launch.
        Ok(unsafe { stream.launch(&function, Grid::new(1, 32), &args) }?)
    })])?;
    one(&timings)
}

fn packet(rank: &Rank, suffix: &str, rounds: u32, harness: &mut Harness<'_>) -> Result<Timing> {
    let communicator = &rank.communicator;
    let me = communicator.rank();
    // Zeroed, as the first packet's flag needs it. The count is this rank's own.
    let slots = communicator.alloc(COUNT + 8)?;
    slots.buffer().write(&rank.stream, COUNT, &[0; 8])?;
    communicator.synchronize(&rank.stream)?;
    let registration = slots.registration();
    let kernel = packet_hop.instance(suffix).context("this program has no such packet kernel")?;
    let function = communicator.device().function(kernel)?;
    let args = PacketHopArgs {
        guard: communicator.guard(register_launch_tag(function.kernel().name)),
        local: Global::from_address(registration.local()),
        remote: Global::from_address(registration.of(1 - me)),
        count: Global::from_address(registration.local() + COUNT),
        rounds,
        rank: me,
    };
    let timings = harness.measure(&mut [Candidate::new(suffix, |stream| {
        // SAFETY: the slots outlive the measurement, which waits for its last launch.
        Ok(unsafe { stream.launch(&function, Grid::new(1, 32), &args) }?)
    })])?;
    // The peer's last packet has arrived, but its kernel may still count.
    harness.lockstep()?;
    one(&timings)
}

fn one(timings: &[Timing]) -> Result<Timing> {
    timings.first().copied().context("nothing was measured")
}

//! The limits of devices for which there are no bare kernels, by what every device has.

use anyhow::{Context, Result, ensure};
use mscclrs_core::Communicator;
use mscclrs_device::{Global, Semaphore};
use mscclrs_gpu::{Grid, Stream};
use mscclrs_kernels::{hop, probe};

use super::report::{Direction, Kind, Report, Row};
use super::{Progress, one_way};
use crate::harness::{Candidate, Harness};

pub(super) fn measure(
    communicator: &Communicator,
    bytes: u64,
    harness: &mut Harness<'_>,
    stream: &Stream,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<()> {
    progress("empty kernel");
    empty(communicator, harness, report)?;
    progress("hops");
    hops(communicator, harness, stream, report)?;
    let memory = [communicator.alloc(bytes)?, communicator.alloc(bytes)?];
    let [from, to] = memory.each_ref().map(|memory| memory.registration());
    ensure!(to.is_mapped(), "the ranks cannot map each other's memory, so nothing is copied");
    let (from, to) = (from.local(), to.of(1 - communicator.rank()));
    // SAFETY: both ranges are registered buffers of `bytes` bytes, and the harness waits for the
    // stream before it returns, also with an error of a rank.
    let copy = |stream: &Stream| -> Result<()> { Ok(unsafe { stream.copy(to, from, bytes) }?) };
    for direction in [Direction::OneWay, Direction::BothWays] {
        progress(direction.name());
        let name = format!("copy, {}", direction.name());
        let candidate = match direction {
            Direction::BothWays => Candidate::new(name, copy),
            Direction::OneWay => one_way(communicator, name, copy, |_| Ok(())),
        };
        for timing in harness.measure(&mut [candidate])? {
            let mut row = Row::new(Kind::Bandwidth, "copy", timing);
            row.direction = Some(direction);
            row.moved(bytes);
            report.push(row);
        }
    }
    communicator.synchronize(stream)?;
    Ok(())
}

fn empty(
    communicator: &Communicator,
    harness: &mut Harness<'_>,
    report: &mut Report,
) -> Result<()> {
    let device = communicator.device();
    let kernel = probe::empty.instance("").context("the kernel `empty` is missing")?;
    let function = device.function(kernel)?;
    let most = device.limits().threads_per_block;
    let grids = [(1, 32), (4, most.min(512))];
    let mut candidates = grids.map(|(blocks, threads)| {
        let function = &function;
        let args = probe::EmptyArgs { guard: communicator.guard(0) };
        Candidate::new("empty kernel", move |stream: &Stream| {
            // SAFETY: the kernel uses nothing of its arguments.
            Ok(unsafe { stream.launch(function, Grid::new(blocks, threads), &args) }?)
        })
    });
    for (grid, timing) in grids.into_iter().zip(harness.measure(&mut candidates)?) {
        let mut row = Row::new(Kind::Empty, "launch", timing);
        row.grid = Some(grid);
        report.push(row);
    }
    Ok(())
}

/// Round trips of one ping-pong launch.
const ROUNDS: u32 = 50;

/// Words of the ping-pongs, on lines of their own.
const SIGNALS: u64 = 0;
const WAITS: u64 = 128;
const SLOT: u64 = 256;
const COUNT: u64 = 384;
const HOP_BYTES: u64 = 512;

/// Hops by the kernels that channels are made of, with their way out of each wait.
fn hops(
    communicator: &Communicator,
    harness: &mut Harness<'_>,
    stream: &Stream,
    report: &mut Report,
) -> Result<()> {
    let device = communicator.device();
    let memory = communicator.alloc(HOP_BYTES)?;
    memory.buffer().write(stream, 0, &[0; HOP_BYTES as usize])?;
    communicator.synchronize(stream)?;
    harness.lockstep()?;
    let words = memory.registration();
    ensure!(words.is_mapped(), "the ranks cannot map each other's memory, so no hop is measured");
    let rank = communicator.rank();
    let here = |word: u64| Global::from_address(words.local() + word);
    let there = |word: u64| Global::from_address(words.of(1 - rank) + word);
    let guard = communicator.guard(0);
    let signals = hop::SignalHopArgs {
        guard,
        semaphore: Semaphore {
            remote: there(SIGNALS),
            inbound: here(SIGNALS),
            expected: here(WAITS),
            peer: (1 - rank).into(),
        },
        rounds: ROUNDS,
        rank,
    };
    let packets = hop::PacketHopArgs {
        guard,
        local: here(SLOT),
        remote: there(SLOT),
        count: here(COUNT),
        rounds: ROUNDS,
        rank,
    };
    let signal =
        hop::signal_hop.instance("_relaxed").context("the kernel `signal_hop` is missing")?;
    let packet = hop::packet_hop.instance("_ll8").context("`packet_hop_ll8` is missing")?;
    let (signal, packet) = (device.function(signal)?, device.function(packet)?);
    let grid = Grid::new(1, 32);
    let mut candidates = [
        Candidate::new("signal ping-pong", |stream: &Stream| {
            // SAFETY: the words lie in `memory`, on both ranks, which outlives the measurement.
            Ok(unsafe { stream.launch(&signal, grid, &signals) }?)
        }),
        Candidate::new("packet ping-pong", |stream: &Stream| {
            // SAFETY: as above.
            Ok(unsafe { stream.launch(&packet, grid, &packets) }?)
        }),
    ];
    let timings = harness.measure(&mut candidates)?;
    for (name, timing) in ["signal", "LL8 packet"].into_iter().zip(timings) {
        report.push(Row::new(Kind::Hop, name, timing.divided(2.0 * f64::from(ROUNDS))));
    }
    Ok(())
}

//! Ways to hand handles to a kernel, to signal and to wait, side by side: the figures behind the
//! choices of the library's kernels.

use anyhow::{Context, Result, ensure};
use mscclrs_core::Communicator;
use mscclrs_device::{Global, Kernel, ParamArray};
use mscclrs_gpu::{Grid, Stream};
use mscclrs_kernels::ranks::INLINE_RANKS;
use mscclrs_kernels::ways::{HandleWayArgs, WaitWayArgs, handle_way, wait_way};

use super::Progress;
use super::report::{Kind, Report, Row};
use crate::harness::{Candidate, Harness};

/// Instances of [`handle_way`] and what they do.
const HANDLES: [(&str, &str); 3] = [
    ("_known", "argument, index known"),
    ("_told", "argument, index told"),
    ("_table", "table in memory"),
];

/// Instances of [`wait_way`] and what they do: how the signal is sent, and how it is waited for.
const WAITS: [(&str, &str); 8] = [
    ("_add", "add; polls"),
    ("_store", "store; polls"),
    ("_store_two", "store; two polls on the way"),
    ("_store_two_apart", "store; two polls, 160 cycles apart"),
    ("_ordered_add", "release add; polls, acquire"),
    ("_ordered_store", "release store; polls, acquire"),
    ("_ordered_polls", "release store; acquire polls"),
    ("_ordered_fence", "release store; polls, fence"),
];

/// Round trips of one ping-pong launch.
const ROUNDS: u32 = 50;

/// Lanes that use a handle.
const LANES: u32 = 32;

/// Words of the measurements, on lines of their own: a count and one before a way.
const INBOUND: u64 = 0;
const COUNT: u64 = 128;
const WAY_BYTES: u64 = 256;
const TABLE: u64 = WAY_BYTES * WAITS.len() as u64;
const DATA: u64 = TABLE + 128;
const OUTPUT: u64 = DATA + 8 * LANES as u64;
const BYTES: u64 = OUTPUT + 8 * LANES as u64;

const _: () = assert!(8 * INLINE_RANKS <= 128);

pub(super) fn measure(
    communicator: &Communicator,
    harness: &mut Harness<'_>,
    stream: &Stream,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let memory = communicator.alloc(BYTES)?;
    let words = memory.registration();
    ensure!(words.is_mapped(), "the ranks cannot map each other's memory, so no way is measured");
    let mut start = vec![0; BYTES as usize];
    for entry in 0..INLINE_RANKS {
        let at = TABLE as usize + 8 * entry;
        start[at..at + 8].copy_from_slice(&(words.local() + DATA).to_le_bytes());
    }
    memory.buffer().write(stream, 0, &start)?;
    communicator.synchronize(stream)?;
    harness.lockstep()?;

    let device = communicator.device();
    let kernel = |kernel: Option<&'static Kernel>| {
        let kernel = kernel.context("this program lacks one of the kernels of the ways")?;
        Ok::<_, anyhow::Error>(device.function(kernel)?)
    };
    let rank = communicator.rank();
    let here = words.local();
    let there = words.of(1 - rank);

    progress("ways to hand over handles");
    let args = HandleWayArgs {
        array: ParamArray::new([Global::from_address(here + DATA); INLINE_RANKS]),
        table: Global::from_address(here + TABLE),
        output: Global::from_address(here + OUTPUT),
        index: 3,
        _pad: 0,
    };
    let mut candidates = Vec::new();
    for (suffix, name) in HANDLES {
        let function = kernel(handle_way.instance(suffix))?;
        candidates.push(Candidate::new(name, move |stream: &Stream| {
            // SAFETY: all addresses lie in `memory`, which outlives the measurement.
            Ok(unsafe { stream.launch(&function, Grid::new(1, LANES), &args) }?)
        }));
    }
    for ((_, name), timing) in HANDLES.iter().zip(harness.measure(&mut candidates)?) {
        report.push(Row::new(Kind::Handle, *name, timing));
    }

    progress("ways to wait");
    let mut candidates = Vec::new();
    for (index, (suffix, name)) in WAITS.iter().enumerate() {
        let function = kernel(wait_way.instance(suffix))?;
        let at = WAY_BYTES * index as u64;
        let args = WaitWayArgs {
            guard: communicator.guard(0),
            remote: Global::from_address(there + at + INBOUND),
            inbound: Global::from_address(here + at + INBOUND),
            count: Global::from_address(here + at + COUNT),
            rounds: ROUNDS,
            rank,
        };
        candidates.push(Candidate::new(*name, move |stream: &Stream| {
            // SAFETY: as above, on both ranks.
            Ok(unsafe { stream.launch(&function, Grid::new(1, 32), &args) }?)
        }));
    }
    for ((_, name), timing) in WAITS.iter().zip(harness.measure(&mut candidates)?) {
        report.push(Row::new(Kind::Wait, *name, timing.divided(2.0 * f64::from(ROUNDS))));
    }
    communicator.synchronize(stream)?;
    Ok(())
}

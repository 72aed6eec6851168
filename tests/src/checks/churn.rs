//! Making and dropping communicators for ever takes nothing for ever.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mscclrs_collectives::Collectives;
use mscclrs_gpu::{BackendKind, Device, device_count};

use crate::memory::Memory;
use crate::world;

/// What a round could leave behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    descriptors: usize,
    threads: usize,
    /// Of memory of the devices, in use; of the CPU device, pieces of it that are mapped.
    memory: u64,
}

/// A communicator with collectives, one allreduce, and the end of both; many times.
pub(crate) fn rounds(device: &Device) -> Result<()> {
    let kind = device.kind();
    let total = match kind {
        BackendKind::Cpu => 60,
        BackendKind::Cuda => 500,
    };
    for seed in 0..3 {
        round(kind, seed)?;
    }
    let before = settled(kind, None)?;
    for seed in 3..total {
        round(kind, seed)?;
    }
    let after = settled(kind, Some(before))?;
    ensure!(within(before, after, kind), "{before:?} became {after:?} in {} rounds", total - 3);
    Ok(())
}

fn round(kind: BackendKind, seed: u64) -> Result<()> {
    world::run(kind, 2, move |rank| {
        let collectives = Collectives::new(&rank.communicator)?;
        let memory = Memory::symmetric(&collectives, 1 << 20)?;
        rank.reduces(&collectives, &memory, seed)
    })
}

fn usage(kind: BackendKind) -> Result<Usage> {
    let entries = |path| -> Result<usize> { Ok(std::fs::read_dir(path)?.count()) };
    let mut memory = 0;
    if kind == BackendKind::Cpu {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        memory = maps.lines().filter(|line| line.contains("memfd:")).count() as u64;
    } else {
        for ordinal in 0..device_count(kind)?.min(2) {
            let (free, total) = Device::open(kind, ordinal)?.memory()?;
            memory += total - free;
        }
    }
    Ok(Usage {
        descriptors: entries("/proc/self/fd")?,
        threads: entries("/proc/self/task")?,
        memory,
    })
}

/// A driver takes and gives in pieces of some MiB, once; a leak of even a few KiB a round is more.
fn within(before: Usage, after: Usage, kind: BackendKind) -> bool {
    let slack = if kind == BackendKind::Cpu { 0 } else { 6 << 20 };
    after.descriptors <= before.descriptors
        && after.threads <= before.threads
        && after.memory <= before.memory + slack
}

/// Threads and memory end a moment after their last use.
fn settled(kind: BackendKind, wanted: Option<Usage>) -> Result<Usage> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut last = usage(kind)?;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = usage(kind)?;
        let good = wanted.is_none_or(|wanted| within(wanted, now, kind));
        if (now == last && good) || Instant::now() > deadline {
            return Ok(now);
        }
        last = now;
    }
}

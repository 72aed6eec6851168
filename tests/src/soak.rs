//! Doing the same thing for ever takes nothing for ever: soaks, in a short form as checks, and in a long
//! one by `--soak` (`cargo xtask soak`).

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mscclrs_collectives::Collectives;
use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Bootstrap, EndpointConfig, TcpBootstrap, UniqueId};
use mscclrs_gpu::{BackendKind, Device, device_count};

use crate::flood;
use crate::memory::Memory;
use crate::world::{self, Rank};

/// Something done many times.
pub(crate) struct Soak {
    pub(crate) name: &'static str,
    /// What a round does.
    pub(crate) what: &'static str,
    /// Rounds as a check.
    short: u64,
    /// Rounds by default otherwise.
    long: u64,
    run: fn(BackendKind, u64) -> Result<(Usage, Usage)>,
}

/// All of them.
pub(crate) const SOAKS: &[Soak] = &[
    Soak {
        name: "rendezvous",
        what: "two ranks meet over TCP, exchange a message, and part",
        short: 100,
        long: 10_000,
        run: |kind, rounds| outside(kind, rounds, meet),
    },
    Soak {
        name: "communicators",
        what: "two ranks make a communicator with collectives, reduce, and drop it",
        short: 60,
        long: 500,
        run: |kind, rounds| outside(kind, rounds, reduce),
    },
    Soak {
        name: "connections",
        what: "two ranks of a communicator connect, make a semaphore, and drop both",
        short: 300,
        long: 10_000,
        run: |kind, rounds| inside(kind, rounds, connect),
    },
    Soak {
        name: "semaphores",
        what: "two ranks of a communicator hold 1,000 semaphores",
        short: 2,
        long: 20,
        run: |kind, rounds| inside(kind, rounds, hold_semaphores),
    },
    Soak {
        name: "buffers",
        what: "two ranks of a communicator hold 500 symmetric buffers",
        short: 2,
        long: 20,
        run: |kind, rounds| inside(kind, rounds, hold_buffers),
    },
    Soak {
        name: "flood",
        what: "somebody without the secret connects to a rendezvous, which then goes well",
        short: 1_000,
        long: 10_000,
        run: flooded,
    },
];

/// The short form of a soak.
pub(crate) fn check(name: &str, kind: BackendKind) -> Result<()> {
    let soak = find(name)?;
    let (before, after) = (soak.run)(kind, soak.short)?;
    ensure!(within(before, after, kind), "{before} became {after} in {} rounds", soak.short);
    Ok(())
}

/// Runs the named soaks, `all` of them, for `rounds` rounds or as many as each has by default, and
/// prints what each did.
pub(crate) fn run(name: &str, kind: BackendKind, rounds: Option<u64>) -> Result<bool> {
    let chosen: Vec<&Soak> = match name {
        "all" => SOAKS.iter().collect(),
        name => vec![find(name)?],
    };
    let mut good = true;
    for soak in chosen {
        let rounds = rounds.unwrap_or(soak.long);
        println!("{} on {}: {rounds} times: {}", soak.name, kind.name(), soak.what);
        let begin = Instant::now();
        let (before, after) = (soak.run)(kind, rounds).context(soak.name)?;
        let took = begin.elapsed();
        let back = within(before, after, kind);
        let verdict = if back { "all is back" } else { "NOT ALL IS BACK" };
        println!(
            "  {:.1} s, {:.3} ms a round; before {before}; after {after}: {verdict}",
            took.as_secs_f64(),
            took.as_secs_f64() * 1e3 / rounds as f64
        );
        good &= back;
    }
    Ok(good)
}

fn find(name: &str) -> Result<&'static Soak> {
    let Some(soak) = SOAKS.iter().find(|soak| soak.name == name) else {
        let names: Vec<&str> = SOAKS.iter().map(|soak| soak.name).collect();
        bail!("--soak: there is no '{name}'; allowed are all, {}", names.join(", "));
    };
    Ok(soak)
}

fn meet(_: BackendKind, _: u64) -> Result<()> {
    let lo: InterfaceFilter = "=lo".parse()?;
    let id = UniqueId::create(&lo)?;
    std::thread::scope(|scope| {
        let rank = |rank| {
            let id = id.clone();
            move || -> Result<()> {
                let bootstrap = TcpBootstrap::new(Config::new(rank, 2, id))?;
                let all = bootstrap.all_gather(&[rank as u8])?;
                ensure!(all == [[0], [1]], "{all:?}");
                Ok(())
            }
        };
        let other = scope.spawn(rank(1));
        rank(0)()?;
        other.join().unwrap_or_else(|_| bail!("panicked"))
    })
}

fn reduce(kind: BackendKind, round: u64) -> Result<()> {
    world::run(kind, 2, move |rank| {
        let collectives = Collectives::new(&rank.communicator)?;
        let memory = Memory::symmetric(&collectives, 1 << 20)?;
        rank.reduces(&collectives, &memory, round)
    })
}

/// With one tag: what was sent and received is counted for each tag as long as the communicator lives.
fn connect(rank: &Rank, _: u64) -> Result<()> {
    let tag = 0;
    let (communicator, peer) = (&rank.communicator, 1 - rank.rank);
    let connection = communicator.connect(&EndpointConfig::default(), peer, tag)?.get()?;
    let semaphore = communicator.build_semaphore(&connection, tag)?.get()?;
    drop((connection, semaphore));
    // Both have what the other offers.
    rank.barrier()?;
    Ok(communicator.reclaim()?)
}

fn hold_semaphores(rank: &Rank, _: u64) -> Result<()> {
    const COUNT: u32 = 1000;
    let (communicator, peer) = (&rank.communicator, 1 - rank.rank);
    let connection = communicator.connect(&EndpointConfig::default(), peer, 0)?.get()?;
    let mut held = Vec::new();
    for tag in 0..COUNT {
        held.push(communicator.build_semaphore(&connection, tag)?);
    }
    let held = held.into_iter().map(|future| Ok(future.get()?)).collect::<Result<Vec<_>>>()?;
    rank.barrier()?;
    drop((held, connection));
    Ok(communicator.reclaim()?)
}

fn hold_buffers(rank: &Rank, _: u64) -> Result<()> {
    const COUNT: u32 = 500;
    let held =
        (0..COUNT).map(|_| Ok(rank.communicator.alloc(1 << 16)?)).collect::<Result<Vec<_>>>()?;
    rank.barrier()?;
    drop(held);
    Ok(rank.communicator.reclaim()?)
}

/// A round is a connection.
fn flooded(kind: BackendKind, rounds: u64) -> Result<(Usage, Usage)> {
    flood::meet_in(warm(rounds))?;
    let before = settled(kind, None)?;
    flood::meet_in(rounds)?;
    Ok((before, settled(kind, Some(before))?))
}

/// What is held after a few rounds, and after so many more.
fn outside(
    kind: BackendKind,
    rounds: u64,
    round: fn(BackendKind, u64) -> Result<()>,
) -> Result<(Usage, Usage)> {
    let warm = warm(rounds);
    (0..warm).try_for_each(|number| round(kind, number))?;
    let before = settled(kind, None)?;
    (warm..warm + rounds).try_for_each(|number| round(kind, number))?;
    Ok((before, settled(kind, Some(before))?))
}

/// As `outside`, all within one communicator of two ranks.
fn inside(
    kind: BackendKind,
    rounds: u64,
    round: fn(&Rank, u64) -> Result<()>,
) -> Result<(Usage, Usage)> {
    static SEEN: Mutex<Vec<Usage>> = Mutex::new(Vec::new());
    let seen = || SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    seen().clear();
    world::run(kind, 2, move |rank| {
        let look = || -> Result<()> {
            rank.barrier()?;
            if rank.rank == 0 {
                let before = seen().first().copied();
                let now = settled(kind, before)?;
                seen().push(now);
            }
            rank.barrier()
        };
        let warm = warm(rounds);
        (0..warm).try_for_each(|number| round(rank, number))?;
        look()?;
        (warm..warm + rounds).try_for_each(|number| round(rank, number))?;
        look()
    })?;
    match seen()[..] {
        [before, after] => Ok((before, after)),
        ref other => bail!("{} looks instead of two", other.len()),
    }
}

/// Rounds until what is made once is there.
fn warm(rounds: u64) -> u64 {
    (rounds / 10).clamp(2, 50)
}

/// What rounds could leave behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    descriptors: u64,
    threads: u64,
    /// Bytes of the devices in use; of the CPU device, pieces of its memory that are mapped.
    memory: u64,
    /// KiB of this process in main memory.
    resident: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} descriptors, {} threads, {} of device memory, {:.1} MiB resident",
            self.descriptors,
            self.threads,
            self.memory,
            self.resident as f64 / 1024.0
        )
    }
}

fn usage(kind: BackendKind) -> Result<Usage> {
    let entries = |path| -> Result<u64> { Ok(std::fs::read_dir(path)?.count() as u64) };
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
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
    Ok(Usage {
        descriptors: entries("/proc/self/fd")?,
        threads: entries("/proc/self/task")?,
        memory,
        resident: resident.context("/proc/self/status has no VmRSS")?,
    })
}

/// A driver takes and gives in pieces of some MiB, once; a leak of even a few KiB a round is more. So
/// does the allocator of the host.
fn within(before: Usage, after: Usage, kind: BackendKind) -> bool {
    let slack = if kind == BackendKind::Cpu { 0 } else { 6 << 20 };
    after.descriptors <= before.descriptors
        && after.threads <= before.threads
        && after.memory <= before.memory + slack
        && after.resident <= before.resident + (8 << 10)
}

/// Threads and memory end a moment after their last use.
fn settled(kind: BackendKind, wanted: Option<Usage>) -> Result<Usage> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut last = usage(kind)?;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = usage(kind)?;
        let steady = Usage { resident: 0, ..now } == Usage { resident: 0, ..last };
        let good = wanted.is_none_or(|wanted| within(wanted, now, kind));
        if (steady && good) || Instant::now() > deadline {
            return Ok(now);
        }
        last = now;
    }
}

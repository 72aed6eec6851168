//! Limits of the system that are met: an error says which and how high it is, and nothing hangs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Communicator, LocalBootstrap, TcpBootstrap, UniqueId};
use mscclrs_gpu::{BackendKind, Device, MemoryKind};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::kernel::Meet;
use crate::process::{Control, Group, START, say};
use crate::rank::Member;
use crate::traces::{self, Held, Sockets};

const MIB: u64 = 1 << 20;
/// What set-up may wait.
const SETUP: Duration = Duration::from_millis(1500);
/// Longer than that and than a test may take to be told.
const MOMENT: Duration = Duration::from_secs(12);

#[test]
fn address_space_that_is_too_small_is_named_with_what_was_needed() {
    alone("memory");
}

#[test]
fn files_that_may_not_be_large_are_named_and_end_nothing() {
    alone("files");
}

#[test]
fn stacks_that_find_no_room_are_named() {
    alone("stacks");
}

fn alone(what: &str) {
    let mut group = Group::new();
    let mut process = group.start(&format!("limit {what}"));
    process.hear("done", START);
    assert!(process.end(START).success());
    traces::none(&group, &Sockets::default());
}

/// With any number of descriptors a rank either is set up or says that it has too few, and the other
/// says that it was this one.
#[test]
fn too_few_descriptors_are_named_wherever_they_run_out() {
    let lo: InterfaceFilter = "=lo".parse().unwrap();
    let mut group = Group::new();
    let mut ranks: Vec<_> =
        (0..2).map(|rank| group.start(&format!("limit descriptors {rank}"))).collect();
    for rank in &ranks {
        rank.hear("started", START);
    }
    let mut failures = 0;
    loop {
        let id = UniqueId::create(&lo).unwrap();
        let mut told = Vec::new();
        for (rank, process) in ranks.iter_mut().enumerate() {
            let more = if rank == 1 { failures } else { 1000 };
            process.order(&format!("with {more} {id}"));
        }
        for process in &ranks {
            told.push(process.hear("ended", MOMENT).1);
        }
        println!("{failures}: {told:?}");
        if told == ["fine", "fine"] {
            break;
        }
        assert!(told[1].contains("`ulimit -n`"), "with {failures} more: {}", told[1]);
        assert!(told[0].contains("rank 1") || told[0].ends_with(" 1"), "{}", told[0]);
        failures += 1;
        assert!(failures < 60, "a rank needs more than {failures} descriptors");
    }
    assert!(failures > 4, "a rank has been set up with {failures} descriptors");
    for process in &mut ranks {
        process.order("with 1000 end");
        assert!(process.end(START).success());
    }
    traces::none(&group, &Sockets::default());
}

pub(crate) fn run(role: &str, control: &Control) {
    let what = role.split(' ').next().unwrap();
    let done = match what {
        "memory" => memory(),
        "files" => files(),
        "stacks" => stacks(),
        "descriptors" => {
            let (_, rank) = role.split_once(' ').unwrap();
            descriptors(rank.parse().unwrap(), control);
            return;
        }
        other => panic!("{other}"),
    };
    done.unwrap();
    say("done");
}

/// Sets the limit of this process that it can raise again.
fn limit(resource: Resource, current: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
}

fn mapped() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

fn one_rank(device: &Device) -> Result<Member> {
    let bootstrap = LocalBootstrap::create(1, SETUP).remove(0);
    Member::new(Communicator::new(Arc::new(bootstrap), device.clone())?)
}

fn memory() -> Result<()> {
    let device = Device::open(BackendKind::Cpu, 0)?;
    let member = one_rank(&device)?;
    member.reduces(&member.memory()?, 1)?;
    let most = mapped() + 100 * MIB;
    limit(Resource::As, most);
    for kind in [MemoryKind::Plain, MemoryKind::Shareable, MemoryKind::Host] {
        let error = device.alloc(1024 * MIB, kind).unwrap_err().to_string();
        for text in ["1073741824 bytes", "`ulimit -v`", &format!(" {most} bytes")] {
            ensure!(error.contains(text), "no word of {text}: {error}");
        }
    }
    // What was refused is not counted, and the rest works.
    member.reduces(&member.memory()?, 2)
}

fn files() -> Result<()> {
    let device = Device::open(BackendKind::Cpu, 0)?;
    let member = one_rank(&device)?;
    limit(Resource::Fsize, MIB);
    let error = device.alloc(8 * MIB, MemoryKind::Shareable).unwrap_err().to_string();
    for text in ["8388608 bytes", "`ulimit -f`", " 1048576 bytes"] {
        ensure!(error.contains(text), "no word of {text}: {error}");
    }
    device.alloc(8 * MIB, MemoryKind::Plain)?;
    member.reduces(&member.memory()?, 1)
}

/// A block of many lanes, each of which needs a stack.
fn stacks() -> Result<()> {
    let device = Device::open(BackendKind::Cpu, 0)?;
    let stream = device.create_stream()?;
    let meet = Meet::new(&device)?;
    // Stacks take all that there is but less than one of them, and telling of it takes memory too: pieces
    // of it that this process has and does not use, between others that it keeps.
    let mut pieces: Vec<Option<Vec<u8>>> = (0..64).map(|_| Some(vec![1; 16 << 10])).collect();
    pieces.iter_mut().step_by(2).for_each(|piece| *piece = None);
    limit(Resource::As, mapped() + 4 * MIB);
    meet.launch(&stream, 4, 256)?;
    let error = stream.synchronize().unwrap_err().to_string();
    ensure!(error.contains("no stack for lane") && error.contains("`ulimit -v`"), "{error}");
    drop(pieces);
    Ok(())
}

fn descriptors(rank: u32, control: &Control) {
    // What is made once and stays is there.
    let device = Device::open(BackendKind::Cpu, 0).unwrap();
    one_rank(&device).unwrap();
    drop(device);
    say("started");
    let before = Held::settled();
    loop {
        let order = control.order();
        let (more, id) = order.split_once(' ').unwrap();
        let Ok(id) = id.parse::<UniqueId>() else { return };
        let now = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
        let most = getrlimit(Resource::Nofile).current;
        limit(Resource::Nofile, now + more.parse::<u64>().unwrap());
        let begin = Instant::now();
        // While the limit holds: the text says how high it is.
        let ended = set_up(rank, id).map_err(|error| format!("{error:#}"));
        let took = begin.elapsed();
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: most, maximum }).unwrap();
        let surplus = before.surplus();
        match (ended, surplus) {
            (_, Some(surplus)) => say(&surplus),
            (_, None) if took > MOMENT / 2 => say(&format!("it took {took:?}")),
            (Ok(()), None) => say("ended fine"),
            (Err(error), None) => say(&format!("ended {error}")),
        }
    }
}

fn set_up(rank: u32, id: UniqueId) -> Result<()> {
    let mut config = Config::new(rank, 2, id);
    config.timeout = Some(SETUP);
    let bootstrap = TcpBootstrap::new(config)?;
    let device = Device::open(BackendKind::Cpu, rank)?;
    let member = Member::new(Communicator::new(Arc::new(bootstrap), device)?)?;
    let memory = member.memory()?;
    (0..3).try_for_each(|seed| member.reduces(&memory, seed))?;
    member.communicator.bootstrap().barrier()?;
    Ok(())
}

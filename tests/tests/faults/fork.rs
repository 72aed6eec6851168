//! A rank forks while the others work with it, as a loader of data does: whatever the child does, only
//! the parent is the rank.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Communicator, LocalBootstrap, TcpBootstrap, UniqueId};
use mscclrs_gpu::{BackendKind, Device};
use rustix::process::Signal;

use crate::process::{Control, Group, Process, START, say};
use crate::rank::{Member, Memory};
use crate::traces::{self, Sockets};

const RANKS: u32 = 3;
const PARENT: u32 = 1;
const MOMENT: Duration = Duration::from_secs(2);
/// Forks of one run, each at another moment of the parent's threads.
const FORKS: u32 = 20;

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Child {
    /// `exit`, as programs end.
    Exits,
    /// First it drops what it inherited, as the end of an interpreter may.
    Drops,
    /// It goes on when its parent has left.
    Outlives,
    /// It goes on when its parent has been killed.
    OutlivesKilled,
    /// It asks what it inherited for work, and then makes a communicator of its own.
    Works,
}

const CHILDREN: [Child; 5] =
    [Child::Exits, Child::Drops, Child::Outlives, Child::OutlivesKilled, Child::Works];

#[test]
fn child_exits() {
    forks(Child::Exits);
}

#[test]
fn child_drops_what_it_inherited() {
    forks(Child::Drops);
}

#[test]
fn child_outlives_a_parent_that_left() {
    forks(Child::Outlives);
}

#[test]
fn child_outlives_a_killed_parent() {
    forks(Child::OutlivesKilled);
}

#[test]
fn child_has_no_device_but_may_open_one() {
    forks(Child::Works);
}

fn forks(child: Child) {
    let lo: InterfaceFilter = "=lo".parse().unwrap();
    let id = UniqueId::create(&lo).unwrap();
    let mut group = Group::new();
    let mut ranks: Vec<Process> =
        (0..RANKS).map(|rank| group.start(&format!("fork {rank} {child:?} {id}"))).collect();
    for rank in &ranks {
        rank.hear("forked", START);
    }
    let mut sockets = Sockets::default();
    ranks.iter().for_each(|rank| sockets.note(rank.pid()));
    let others = (0..RANKS).filter(|&rank| rank != PARENT);
    let parent = &mut ranks[PARENT as usize];
    let fault = Instant::now();
    if child == Child::OutlivesKilled {
        parent.signal(Signal::KILL);
    } else {
        parent.go();
    }
    for rank in others.clone() {
        let rank = &mut ranks[rank as usize];
        if child == Child::OutlivesKilled {
            let (at, text) = rank.hear("lost", START);
            assert!(text.contains("rank 1 was lost"), "{text}");
            let took = at.saturating_duration_since(fault);
            assert!(took < MOMENT, "told after {took:?}: {text}");
        } else {
            rank.hear("left", START);
        }
        assert!(rank.end(MOMENT).success());
    }
    let status = ranks[PARENT as usize].end(MOMENT);
    assert_eq!(status.success(), child != Child::OutlivesKilled, "the parent ended with {status}");
    if matches!(child, Child::Outlives | Child::OutlivesKilled) {
        assert!(group.is_alive(), "the child did not live on");
        group.signal(Signal::KILL);
    }
    traces::none(&group, &sockets);
}

pub(crate) fn run(role: &str, control: &Control) {
    let words: Vec<&str> = role.split(' ').collect();
    let [rank, child, id] = words[..] else { panic!("{role}") };
    let child = CHILDREN.into_iter().find(|c| format!("{c:?}") == child).unwrap();
    let (rank, id) = (rank.parse().unwrap(), id.parse::<UniqueId>().unwrap());
    let bootstrap = TcpBootstrap::new(Config::new(rank, RANKS, id)).unwrap();
    let device = Device::open(BackendKind::Cpu, rank).unwrap();
    let member = Member::new(Communicator::new(Arc::new(bootstrap), device).unwrap()).unwrap();
    let mut held = Some((member.memory().unwrap(), member));
    for seed in 0..FORKS {
        let (memory, member) = held.as_ref().unwrap();
        if rank != PARENT {
            member.reduces(memory, 2 * seed).unwrap();
            member.reduces(memory, 2 * seed + 1).unwrap();
            continue;
        }
        // The others wait in their kernels while this rank forks, before its own and beside it.
        fork(child, &mut held);
        let (memory, member) = held.as_ref().unwrap();
        member.reduces(memory, 2 * seed).unwrap();
        member.begins(memory, 2 * seed + 1).unwrap();
        fork(child, &mut held);
        let (memory, member) = held.as_ref().unwrap();
        member.ends(memory, 2 * seed + 1).unwrap();
    }
    let (memory, member) = held.as_ref().unwrap();
    member.communicator.check().unwrap();
    member.communicator.bootstrap().barrier().unwrap();
    say("forked");
    if rank == PARENT {
        control.wait();
        return;
    }
    // Who waits for a rank that is gone is told how it went.
    let error = member.reduces(memory, 7).unwrap_err().to_string();
    match error.contains("rank 1 was lost") {
        true => say(&format!("lost {error}")),
        false if error.contains("rank 1") && error.contains("left") => say("left"),
        false => say(&error),
    }
}

type Inherited = Option<(Memory, Member)>;

fn fork(child: Child, held: &mut Inherited) {
    // SAFETY: the child has one thread, and what it does is what this test is about; it ends by itself.
    unsafe {
        match libc::fork() {
            0 => {
                // Whatever it waits for in vain.
                libc::alarm(40);
                be_a_child(child, held);
            }
            -1 => panic!("{}", std::io::Error::last_os_error()),
            _ if matches!(child, Child::Outlives | Child::OutlivesKilled) => {}
            pid => {
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                assert_eq!(status, 0, "the child ended with {status:#x}");
            }
        }
    }
}

fn be_a_child(child: Child, held: &mut Inherited) -> ! {
    let status = match child {
        Child::Exits => 0,
        Child::Drops => {
            drop(held.take());
            0
        }
        Child::Outlives | Child::OutlivesKilled => {
            for fd in 0..3 {
                // SAFETY: the child says nothing, and the test reads to the end of its parent's output.
                unsafe { libc::close(fd) };
            }
            loop {
                // SAFETY: it has no memory to be wrong about.
                unsafe { libc::pause() };
            }
        }
        Child::Works => i32::from(works(held).is_err()),
    };
    // SAFETY: the hooks that it runs are those of this process, and they are what is tested.
    unsafe { libc::exit(status) }
}

/// What it inherited is of no use to it, and says so; it makes its own.
fn works(held: &Inherited) -> Result<()> {
    let (memory, member) = held.as_ref().unwrap();
    let error = member.reduces(memory, 1).unwrap_err().to_string();
    anyhow::ensure!(error.contains("fork"), "{error}");
    let bootstrap = LocalBootstrap::create(1, MOMENT).remove(0);
    let device = Device::open(BackendKind::Cpu, PARENT)?;
    let own = Member::new(Communicator::new(Arc::new(bootstrap), device)?)?;
    own.reduces(&own.memory()?, 1)
}

//! One cell of the matrix: what is done to the victim, and what the others have to say to it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use mscclrs_core::UniqueId;
use mscclrs_core::bootstrap::InterfaceFilter;
use rustix::process::Signal;

use crate::process::{Group, Process, START};
use crate::proxy::Proxy;
use crate::traces::{self, Sockets};

pub(crate) const RANKS: u32 = 3;
pub(crate) const VICTIM: u32 = 1;
/// What set-up may wait for a rank, where the test is about that wait.
const SETUP: Duration = Duration::from_millis(2500);
/// What a kernel may wait for a rank, where the test is about that wait.
const KERNEL: Duration = Duration::from_millis(700);
/// When silence from another host is a loss: five heartbeats.
const SILENCE: Duration = Duration::from_secs(5);
/// Where it is not: longer than the test.
const LONG: Duration = Duration::from_secs(60);
/// From the end of a rank, or from a deadline, to the errors of the others, on a busy machine.
const MOMENT: Duration = Duration::from_secs(2);

/// How far the victim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    BeforeRendezvous,
    /// It has joined, another has not.
    InRendezvous,
    AfterRendezvous,
    /// It waits for another rank in a collective call that registers memory.
    Registering,
    /// Its kernel runs, and others' wait for it.
    InKernel,
    /// As before, in the middle of a graph.
    InReplay,
    /// It has done one call, the others have enqueued more.
    OthersAhead,
    /// It is on another host, and all are busy with themselves.
    Elsewhere,
    /// It drops its communicator, which waits for a kernel.
    InDestroy,
}

impl Point {
    pub(crate) const ALL: [Point; 9] = [
        Point::BeforeRendezvous,
        Point::InRendezvous,
        Point::AfterRendezvous,
        Point::Registering,
        Point::InKernel,
        Point::InReplay,
        Point::OthersAhead,
        Point::Elsewhere,
        Point::InDestroy,
    ];

    /// Whether the others wait until the fault has been done.
    fn others_wait(self) -> bool {
        use Point::{BeforeRendezvous, Elsewhere, InDestroy, Registering};
        matches!(self, BeforeRendezvous | Registering | Elsewhere | InDestroy)
    }

    /// Whether ranks are set up, so that they watch over each other.
    fn is_set_up(self) -> bool {
        matches!(self, Point::InKernel | Point::InReplay | Point::OthersAhead | Point::InDestroy)
    }
}

/// How the victim comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Killed,
    /// It goes on when the others have given it up.
    Stopped,
    /// `exit` without dropping anything.
    Exits,
}

impl End {
    pub(crate) const ALL: [End; 3] = [End::Killed, End::Stopped, End::Exits];
}

/// What the others are told, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// An error, as soon as the victim has ended.
    AtOnce,
    /// An error, after this time.
    After(Duration),
    /// They do not need the victim any more.
    Nothing,
}

fn told(point: Point, end: End) -> Told {
    match (point, end) {
        // Nobody knows of a process that has not come.
        (Point::BeforeRendezvous, _) => Told::After(SETUP),
        (Point::InDestroy, End::Stopped | End::Exits) | (Point::Elsewhere, End::Exits) => {
            Told::Nothing
        }
        (Point::Elsewhere, End::Stopped) => Told::After(SILENCE),
        (_, End::Killed | End::Exits) => Told::AtOnce,
        // On one host a rank that is stopped is late and not lost: time limits end the waits.
        (point, End::Stopped) if point.is_set_up() => Told::After(KERNEL),
        (_, End::Stopped) => Told::After(SETUP),
    }
}

/// Where the ranks meet, at an address that no other test has, and those who are left once more.
pub(crate) fn meeting() -> (SocketAddr, UniqueId) {
    let own = Ipv4Addr::from(0x7f00_0000 | (std::process::id() << 2 & 0xff_fffc) | 1);
    let port = TcpListener::bind((own, 0)).unwrap().local_addr().unwrap().port();
    let lo: InterfaceFilter = "=lo".parse().unwrap();
    (SocketAddr::from((own, port)), UniqueId::create(&lo).unwrap())
}

/// What a rank's process is told.
pub(crate) fn role(
    rank: u32,
    point: Point,
    end: End,
    meeting: SocketAddr,
    next: &UniqueId,
    setup: Duration,
    kernel: Duration,
) -> String {
    let (setup, kernel) = (setup.as_millis(), kernel.as_millis());
    format!("rank {rank} {point:?} {end:?} {meeting} {next} {setup} {kernel}")
}

/// Runs one cell.
pub(crate) fn lose(point: Point, end: End) {
    let told = told(point, end);
    let (meeting, next) = meeting();
    let proxy = Proxy::start(meeting);
    let setup = if told == Told::After(SETUP) { SETUP } else { LONG };
    let kernel = if told == Told::After(KERNEL) { KERNEL } else { LONG };
    let mut group = Group::new();
    let mut start = |rank| {
        let at = if rank == VICTIM { proxy.address } else { meeting };
        group.start(&role(rank, point, end, at, &next, setup, kernel))
    };
    let mut ranks: Vec<Process> = (0..RANKS).map(&mut start).collect();
    for rank in &ranks {
        rank.hear("started", START);
    }

    // Up to the point.
    let late = point == Point::InRendezvous;
    ranks.iter_mut().take(if late { 2 } else { 3 }).for_each(Process::go);
    match point {
        Point::InRendezvous => proxy.joined.recv_timeout(START).unwrap(),
        _ => {
            for rank in &ranks {
                let (_, thread) = rank.hear("here", START);
                let blocks = matches!(point, Point::Registering | Point::InDestroy);
                if blocks && rank.pid() == ranks[VICTIM as usize].pid() {
                    rank.until_blocked(&thread);
                }
            }
        }
    }
    let mut sockets = Sockets::default();
    ranks.iter().for_each(|rank| sockets.note(rank.pid()));

    // The fault.
    let victim = &mut ranks[VICTIM as usize];
    let fault = Instant::now();
    match end {
        End::Killed => victim.signal(Signal::KILL),
        End::Stopped => victim.signal(Signal::STOP),
        End::Exits => victim.order("exit"),
    }
    if end != End::Stopped {
        let status = victim.end(MOMENT);
        assert_eq!(status.success(), end == End::Exits, "the victim ended with {status}");
    }

    // What the others say.
    if late || point.others_wait() {
        let waits = |rank| rank == 2 || (point != Point::Registering && !late && rank == 0);
        (0..RANKS).filter(|&rank| waits(rank)).for_each(|rank| ranks[rank as usize].go());
    }
    let others = (0..RANKS).filter(|&rank| rank != VICTIM);
    for rank in others.clone() {
        let (at, text) = ranks[rank as usize].hear("ended", LONG);
        let took = at.saturating_duration_since(fault);
        println!("{point:?} {end:?}: rank {rank} after {took:?}: {text}");
        check(told, rank, took, &text);
    }
    // What they took they have given back, and what they make next works.
    for word in ["clean", "again"] {
        for rank in others.clone() {
            ranks[rank as usize].hear(word, START);
        }
    }
    for rank in others {
        let status = ranks[rank as usize].end(MOMENT);
        assert!(status.success(), "rank {rank} ended with {status}");
    }
    if end == End::Stopped {
        let victim = &mut ranks[VICTIM as usize];
        victim.signal(Signal::CONT);
        // Nothing but time tells that there is no rendezvous.
        if point == Point::BeforeRendezvous {
            victim.signal(Signal::KILL);
            victim.end(MOMENT);
        } else {
            victim.go();
            let (_, text) = victim.hear("ended", MOMENT + SETUP);
            println!("the victim: {text}");
            assert_eq!(text == "fine", point == Point::InDestroy, "the victim ended {text}");
            victim.hear("clean", START);
            assert!(victim.end(MOMENT).success());
        }
    }
    traces::none(&group, &sockets);
}

fn check(told: Told, rank: u32, took: Duration, text: &str) {
    let (from, to) = match told {
        Told::Nothing => {
            assert_eq!(text, "fine", "rank {rank}");
            return;
        }
        Told::AtOnce => (Duration::ZERO, MOMENT),
        // The clock of a wait begins somewhat before the fault.
        Told::After(limit) => (limit / 4, limit + MOMENT),
    };
    assert!((from..to).contains(&took), "rank {rank} was told after {took:?}: {text}");
    let names = |lost: u32| {
        let of_it = ["was lost", "is gone", "ended before", "left", "failed: it left"];
        of_it.iter().any(|words| text.contains(&format!("rank {lost} {words}")))
    };
    let victim = format!("rank {VICTIM}");
    let missing = text.contains("did not come") && text.ends_with(&format!(": {VICTIM}"));
    assert!(text.contains(&victim) || missing, "rank {rank}: no word of {victim}: {text}");
    for other in (0..RANKS).filter(|&other| other != VICTIM) {
        assert!(!names(other), "rank {rank} takes rank {other} for lost: {text}");
    }
}

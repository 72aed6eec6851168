//! A rank that is killed at any moment of set-up is named by all others, at once.
#![allow(clippy::unwrap_used)]

mod common;
mod process;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Rank;
use mscclrs_core::bootstrap::{Address, Config, InterfaceFilter, Rendezvous, Secret};
use mscclrs_core::{Communicator, Result, TcpBootstrap, UniqueId};
use mscclrs_gpu::{BackendKind, Device};
use process::{Process, say};

const RANKS: u32 = 4;

/// How long a rank's set-up may wait, longer than anybody may take to hear of a loss.
const DEADLINE: Duration = Duration::from_secs(3);

/// Microseconds in which a process gets as far as to have said who it is, as a rule.
const EARLIEST: u64 = 2500;

/// From the death of a rank to the errors of the others.
const LIMIT: Duration = Duration::from_secs(2);

/// The system's clock, the same in all processes.
fn now_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time that it is given room for.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// What a rank's process does; without a role, as among the tests, nothing.
#[test]
fn started_process() {
    let Some(role) = process::role() else { return };
    let parts: Vec<&str> = role.split_whitespace().collect();
    let [rank, ranks, meeting, dies] = parts[..] else { panic!("{role}") };
    let rendezvous: Rendezvous = match meeting.parse::<UniqueId>() {
        Ok(id) => id.into(),
        Err(_) => meeting.parse::<Address>().unwrap().into(),
    };
    if let Ok(after) = dies.parse() {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(after));
            say(&format!("died {}", now_us()));
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
        });
    }
    let mut config = Config::new(rank.parse().unwrap(), ranks.parse().unwrap(), rendezvous);
    config.timeout = Some(DEADLINE);
    config.secret = Some(Secret::new("of this test"));
    let error = match set_up(config) {
        Err(error) => error.to_string(),
        Ok(()) => "nothing".into(),
    };
    say(&format!("heard {} {error}", now_us()));
}

/// All that a program sets up, then until a rank is lost.
fn set_up(config: Config) -> Result<()> {
    let rank = config.rank;
    let bootstrap = Arc::new(TcpBootstrap::new(config)?);
    let device = Device::open(BackendKind::Cpu, rank)?;
    let comm = Communicator::new(bootstrap, device)?;
    let rank = Rank::new(comm);
    let _regions = rank.comm.create_regions(&[64, 4096])?;
    let _memory = rank.comm.alloc(4096)?;
    let config = Default::default();
    let futures =
        rank.peers().map(|peer| rank.comm.connect(&config, peer, 1)).collect::<Result<Vec<_>>>()?;
    let connections = futures.into_iter().map(|f| f.get()).collect::<Result<Vec<_>>>()?;
    let futures =
        connections.iter().map(|c| rank.comm.build_semaphore(c, 1)).collect::<Result<Vec<_>>>()?;
    let _semaphores = futures.into_iter().map(|f| f.get()).collect::<Result<Vec<_>>>()?;
    rank.comm.bootstrap().barrier()?;
    let since = Instant::now();
    while since.elapsed() < DEADLINE {
        rank.comm.check()?;
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// What a process said behind `word` before it ended, with the time.
fn said(process: &Process) -> impl Fn(&str) -> Option<(u64, String)> + use<> {
    let lines = process.hear_out();
    move |word| {
        let line = lines.iter().find_map(|line| line.strip_prefix(&format!("{word} ")))?;
        let (time, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some((time.parse().unwrap(), rest.to_owned()))
    }
}

/// Where the ranks of a round meet: at an id that this process serves, or at an address that rank 0
/// serves. Its port is below those that the system gives out by itself, so nobody else gets it meanwhile.
fn meeting(round: u64) -> String {
    if round.is_multiple_of(2) {
        return UniqueId::create(&"=lo".parse::<InterfaceFilter>().unwrap()).unwrap().to_string();
    }
    let mut port = (u64::from(std::process::id()) * 37 + round) % 8_000 + 2_000;
    while TcpListener::bind(("127.0.0.1", port as u16)).is_err() {
        port += 1;
    }
    format!("127.0.0.1:{port}")
}

/// Starts ranks and has one of them die after `after` microseconds. Gives whether the others were told
/// at once; where it had not even joined they can be told at their deadline only.
fn round(number: u64, victim: u32, after: u64) -> bool {
    let meeting = meeting(number);
    let start = |rank| {
        let dies = if rank == victim { after.to_string() } else { "never".into() };
        Process::start(&format!("{rank} {RANKS} {meeting} {dies}"))
    };
    let processes: Vec<Process> = (0..RANKS).map(start).collect();
    let said: Vec<_> = processes.iter().map(said).collect();
    let (died, _) = said[victim as usize]("died").unwrap_or_else(|| {
        let error = said[victim as usize]("heard");
        panic!("rank {victim} at {meeting} ends before its {after} us are over: {error:?}")
    });
    let mut at_once = true;
    for rank in (0..RANKS).filter(|&rank| rank != victim) {
        let case = format!("rank {rank}, of rank {victim} that died after {after} us at {meeting}");
        let (heard, error) =
            said[rank as usize]("heard").unwrap_or_else(|| panic!("{case}: it says nothing"));
        let names = |rank: u32| {
            let gone = ["is gone", "was lost", "ended before"];
            gone.iter().any(|words| error.contains(&format!("rank {rank} {words}")))
                || (error.contains("did not come") && error.ends_with(&format!(": {rank}")))
                || (rank == 0 && error.contains("is rank 0 running"))
        };
        let named: Vec<u32> = (0..RANKS).filter(|&rank| names(rank)).collect();
        assert_eq!(named, [victim], "{case}: {error}");
        let late = ["did not come within", "found no rendezvous"];
        if late.iter().any(|words| error.contains(words)) {
            at_once = false;
        } else {
            let took = Duration::from_micros(heard.saturating_sub(died));
            assert!(took < LIMIT, "{case}: told after {took:?}: {error}");
        }
    }
    at_once
}

/// Rounds with deaths spread evenly over set-up, and a little beyond.
fn rounds(count: u64, span: u64) {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut at_once = 0;
    for number in 0..count {
        // A generator of Marsaglia's: any numbers will do.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let victim = (seed >> 40) as u32 % RANKS;
        let after = (number * span + (seed >> 8) % span) / count;
        at_once += u64::from(round(number, victim, after.max(EARLIEST)));
    }
    println!("{at_once} of {count} deaths were known at once");
    assert!(at_once >= count / 4, "{at_once} of {count}: the deaths come before anybody can know");
}

#[test]
fn whoever_is_killed_in_set_up_is_named_by_all_others_at_once() {
    rounds(30, 25_000);
}

#[test]
#[ignore = "takes a minute"]
fn whoever_is_killed_in_set_up_is_named_in_hundreds_of_rounds() {
    rounds(400, 25_000);
}

//! Many ranks meet: as threads of one process, and as processes.
//!
//! What the tests that run everywhere hold to is lenient, for machines that do other things too. The
//! others hold to what is promised, on two idle cores: `cargo test --release -p mscclrs-core --test
//! scale -- --ignored --test-threads=1`.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Bootstrap, TcpBootstrap, UniqueId};
use rustix::process::{Resource, getrlimit, setrlimit};

const ROLE: &str = "SCALE_TEST_ROLE";

/// How long the ranks may take to meet, as promised.
const PROMISED: Duration = Duration::from_secs(3);

/// How long on a machine that is busy.
const LENIENT: Duration = Duration::from_secs(30);

fn lo() -> InterfaceFilter {
    "=lo".parse().unwrap()
}

fn config(rank: u32, ranks: u32, id: UniqueId) -> Config {
    let mut config = Config::new(rank, ranks, id);
    config.timeout = Some(Duration::from_secs(60));
    config.interfaces = Some(lo());
    config
}

/// Takes part, and makes sure that everybody is there.
fn meet(rank: u32, ranks: u32, id: UniqueId) -> TcpBootstrap {
    let group = TcpBootstrap::new(config(rank, ranks, id)).unwrap();
    let all = group.all_gather(&rank.to_le_bytes()).unwrap();
    assert_eq!(all.len(), ranks as usize);
    assert!((0..).zip(&all).all(|(rank, bytes): (u32, _)| bytes[..] == rank.to_le_bytes()));
    group
}

/// Each of the ranks has some ten files.
fn raise_the_limit_of_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })
        .unwrap();
}

fn threads_meet(ranks: u32, limit: Duration) {
    raise_the_limit_of_files();
    let id = UniqueId::create(&lo()).unwrap();
    let since = Instant::now();
    let took = std::thread::scope(|scope| {
        let start = |rank| {
            let id = id.clone();
            let body = move || {
                let group = meet(rank, ranks, id);
                (since.elapsed(), group)
            };
            std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, body).unwrap()
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        // No rank leaves before the last has met.
        let met: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        met.iter().map(|(took, _)| *took).max().unwrap()
    });
    println!("{ranks} ranks as threads met within {took:?}");
    assert!(took < limit, "{ranks} threads took {took:?}");
}

/// What a started process does; without a role, as among the tests, nothing.
#[test]
fn started_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let parts: Vec<&str> = role.split_whitespace().collect();
    let [rank, ranks, id] = parts[..] else { panic!("{role}") };
    let group = meet(rank.parse().unwrap(), ranks.parse().unwrap(), id.parse().unwrap());
    println!("\n> met");
    // Until the test has heard of all.
    let _ = std::io::stdin().read(&mut [0]);
    drop(group);
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn processes_meet(ranks: u32, limit: Duration) {
    let id = UniqueId::create(&lo()).unwrap();
    let since = Instant::now();
    let start = |rank| {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "started_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{rank} {ranks} {id}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Process(child)
    };
    let mut processes: Vec<_> = (0..ranks).map(start).collect();
    for (rank, process) in processes.iter_mut().enumerate() {
        let output = process.0.stdout.as_mut().unwrap();
        let mut said = String::new();
        while !said.contains("> met") {
            let mut chunk = [0; 64];
            let count = output.read(&mut chunk).unwrap();
            assert!(count > 0, "rank {rank} ended: {said}");
            said.push_str(&String::from_utf8_lossy(&chunk[..count]));
        }
    }
    let took = since.elapsed();
    println!("{ranks} processes started and met within {took:?}");
    assert!(took < limit, "{ranks} processes took {took:?}");
}

#[test]
fn two_hundred_ranks_as_threads_meet() {
    threads_meet(200, LENIENT);
}

#[test]
fn sixteen_processes_meet() {
    processes_meet(16, LENIENT);
}

#[test]
#[ignore = "holds to a time that only an idle machine keeps"]
fn a_thousand_ranks_as_threads_meet_in_three_seconds() {
    threads_meet(1024, PROMISED);
}

#[test]
#[ignore = "holds to a time that only an idle machine keeps"]
fn sixty_four_processes_meet_in_three_seconds() {
    processes_meet(64, PROMISED);
}

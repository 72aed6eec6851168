//! Ranks that are processes: memory given over sockets, and a rank that is killed.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Rank;
use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Communicator, Error, TcpBootstrap, UniqueId};
use mscclrs_gpu::{BackendKind, Device};

const RANK: &str = "CORE_TEST_RANK";
const RANKS: &str = "CORE_TEST_RANKS";
const ID: &str = "CORE_TEST_ID";
const SCENARIO: &str = "CORE_TEST_SCENARIO";

/// Ranks that this test started; none outlives it.
struct Ranks(Vec<Option<Child>>);

impl Ranks {
    fn start(n: u32, scenario: &str) -> Ranks {
        let id = UniqueId::create(&InterfaceFilter::default()).unwrap().to_string();
        let start = |rank: u32| {
            Command::new(std::env::current_exe().unwrap())
                .args(["a_rank_of_its_own", "--exact", "--ignored", "--nocapture"])
                .envs([(RANK, rank.to_string()), (RANKS, n.to_string())])
                .envs([(ID, id.as_str()), (SCENARIO, scenario)])
                .stdin(Stdio::null())
                .spawn()
                .unwrap()
        };
        Ranks((0..n).map(|rank| Some(start(rank))).collect())
    }

    fn join(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(40);
        for (rank, slot) in self.0.iter_mut().enumerate() {
            let Some(child) = slot else { continue };
            let status = loop {
                match child.try_wait().unwrap() {
                    Some(status) => break status,
                    None => assert!(Instant::now() < deadline, "rank {rank} does not end"),
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            // How a rank that was to be killed ends is no matter.
            assert!(status.success() || status.code().is_none(), "rank {rank}: {status}");
            *slot = None;
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
#[ignore = "started by the other tests, once a rank"]
fn a_rank_of_its_own() {
    let Ok(rank) = std::env::var(RANK) else { return };
    let var = |name: &str| std::env::var(name).unwrap();
    let id: UniqueId = var(ID).parse().unwrap();
    let (rank, ranks) = (rank.parse().unwrap(), var(RANKS).parse().unwrap());
    let mut config = Config::new(rank, ranks, id);
    config.timeout = Some(common::timeout());
    let bootstrap = Arc::new(TcpBootstrap::new(config).unwrap());
    let device = Device::open(BackendKind::Cpu, rank).unwrap();
    let rank = Rank::new(Communicator::new(bootstrap, device).unwrap());
    match var(SCENARIO).as_str() {
        "exchange" => exchange(&rank),
        "killed" => killed(&rank),
        "leaves" => leaves(rank),
        other => panic!("{other}"),
    }
}

/// Everybody's memory is written by everybody, then signals in all directions.
fn exchange(rank: &Rank) {
    let (me, n) = (rank.rank(), rank.comm.world_size());
    let region = rank.comm.create_regions(&[8 * n as u64]).unwrap().remove(0);
    let memory = rank.comm.alloc(8 * n as u64).unwrap();
    assert!(memory.registration().is_mapped());
    let word = rank.buffer(8);
    word.write(&rank.stream, 0, &u64::from(100 + me).to_le_bytes()).unwrap();
    for peer in 0..n {
        for base in [region.of(peer), memory.registration().of(peer)] {
            // SAFETY: both hold a word of each rank.
            unsafe { rank.stream.copy(base + 8 * me as u64, word.address(), 8).unwrap() };
        }
    }
    rank.synchronize().unwrap();
    rank.comm.bootstrap().barrier().unwrap();
    let mut bytes = vec![0; 8 * n as usize];
    memory.buffer().read(&rank.stream, 0, &mut bytes).unwrap();
    for (i, word) in bytes.chunks_exact(8).enumerate() {
        assert_eq!(word, (100 + i as u64).to_le_bytes());
    }
    let config = Default::default();
    let futures: Vec<_> =
        rank.peers().map(|peer| rank.comm.connect(&config, peer, 1).unwrap()).collect();
    let connections: Vec<_> = futures.into_iter().map(|f| f.get().unwrap()).collect();
    let futures: Vec<_> =
        connections.iter().map(|c| rank.comm.build_semaphore(c, 1).unwrap()).collect();
    let semaphores: Vec<_> = futures.into_iter().map(|f| f.get().unwrap()).collect();
    for name in ["send_signals", "wait_signals"] {
        for semaphore in &semaphores {
            rank.launch_semaphore(name, semaphore, 3).unwrap();
        }
    }
    rank.synchronize().unwrap();
    rank.comm.bootstrap().barrier().unwrap();
}

/// Rank 1 ends without a word while the others' kernels wait: for it, or for one who is alive.
fn killed(rank: &Rank) {
    let peer = if rank.rank() == 2 { 0 } else { 2 - rank.rank() };
    let futures: Vec<_> =
        rank.peers().map(|peer| rank.comm.connect(&Default::default(), peer, 1).unwrap()).collect();
    let connections: Vec<_> = futures.into_iter().map(|f| f.get().unwrap()).collect();
    let futures: Vec<_> =
        connections.iter().map(|c| rank.comm.build_semaphore(c, 1).unwrap()).collect();
    let semaphores: Vec<_> = futures.into_iter().map(|f| f.get().unwrap()).collect();
    rank.comm.bootstrap().barrier().unwrap();
    if rank.rank() == 1 {
        std::thread::sleep(Duration::from_millis(200));
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
            .unwrap();
    }
    let semaphore = semaphores.iter().find(|s| s.peer() == peer).unwrap();
    rank.launch_semaphore("wait_signals", semaphore, 1).unwrap();
    let start = Instant::now();
    let error = rank.synchronize().unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(matches!(&error, Error::RankLost(lost) if lost.loss.rank == 1), "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 1"), "{text}");
    assert!(text.contains(&format!("waited for a semaphore of rank {peer}")), "{text}");
    assert!(rank.comm.check().is_err());
}

/// Rank 1 says goodbye; the others go on without it.
fn leaves(rank: Rank) {
    let barrier = || rank.comm.bootstrap().barrier().unwrap();
    barrier();
    if rank.rank() == 1 {
        return;
    }
    let peer = 2 - rank.rank();
    std::thread::sleep(Duration::from_millis(300));
    let semaphore = rank.semaphore(&rank.connect(peer, 1), 1);
    rank.launch_semaphore("send_signals", &semaphore, 1).unwrap();
    rank.launch_semaphore("wait_signals", &semaphore, 1).unwrap();
    rank.synchronize().unwrap();
    rank.comm.check().unwrap();
}

#[test]
fn memory_and_signals_go_between_processes() {
    for n in [2, 3, 5, 8] {
        Ranks::start(n, "exchange").join();
    }
}

#[test]
fn a_killed_rank_is_an_error_that_names_it_on_every_other() {
    Ranks::start(3, "killed").join();
}

#[test]
fn a_rank_that_leaves_is_not_lost() {
    Ranks::start(3, "leaves").join();
}

//! How soon a communicator is of use: from live devices to the end of the first allreduce.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use mscclrs_collectives::{Collectives, DataType, ReduceOp};
use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Communicator, TcpBootstrap, UniqueId};
use mscclrs_gpu::{BackendKind, Device};

const RANKS: u32 = 8;
const COUNT: u64 = 256;

/// The slowest rank's time.
fn first_all_reduce() -> Duration {
    let id = UniqueId::create(&"=lo".parse::<InterfaceFilter>().unwrap()).unwrap();
    let start = Barrier::new(RANKS as usize);
    let rank = &|rank: u32| {
        let device = Device::open(BackendKind::Cpu, rank).unwrap();
        let stream = device.create_stream().unwrap();
        start.wait();
        let since = Instant::now();
        let bootstrap = TcpBootstrap::new(Config::new(rank, RANKS, id.clone())).unwrap();
        let communicator = Communicator::new(Arc::new(bootstrap), device).unwrap();
        let collectives = Collectives::new(&communicator).unwrap();
        let buffer = collectives.alloc(4 * COUNT).unwrap();
        let (data_type, op) = (DataType::U32, ReduceOp::Sum);
        let one = 1u32.to_le_bytes().repeat(COUNT as usize);
        buffer.buffer().write(&stream, 0, &one).unwrap();
        let memory = buffer.buffer();
        collectives.all_reduce(memory, memory, COUNT, data_type, op, &stream).unwrap();
        communicator.synchronize(&stream).unwrap();
        let took = since.elapsed();
        let mut sums = vec![0; 4 * COUNT as usize];
        memory.read(&stream, 0, &mut sums).unwrap();
        assert_eq!(sums, RANKS.to_le_bytes().repeat(COUNT as usize));
        took
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..RANKS).map(|r| scope.spawn(move || rank(r))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).max().unwrap()
    })
}

/// A try that fits says what the code needs; a busy machine gets some more.
#[test]
fn eight_ranks_have_reduced_in_150_ms() {
    let limit = Duration::from_millis(150);
    let mut tries = Vec::new();
    while tries.len() < 20 && tries.last().is_none_or(|took| *took >= limit) {
        tries.push(first_all_reduce());
    }
    assert!(tries.last().is_some_and(|took| *took < limit), "{tries:?}");
}

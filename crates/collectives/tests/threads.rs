//! Ranks that are threads of one process, and threads that share a rank. `cargo xtask tsan` runs these
//! too: what threads of ranks and of devices share on the host is all in one process here.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclrs_collectives::{AllGather, AllReduce, Collectives, Error, Shape, Tuning};
use mscclrs_core::{Communicator, LocalBootstrap};
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::{BackendKind, Device, Stream};

/// A number that nothing divides.
const COUNT: u64 = 1009;
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `body` as ranks with a CPU device each.
fn on_ranks(
    ranks: u32,
    first_device: u32,
    algorithms: (AllReduce, AllGather),
    body: impl Fn(Collectives) + Sync,
) {
    let tuning = Tuning::only(algorithms.0, algorithms.1, Shape { blocks: 2, threads: 64 });
    std::thread::scope(|scope| {
        for (i, bootstrap) in (0..).zip(LocalBootstrap::create(ranks, LIMIT)) {
            let (body, tuning) = (&body, tuning.clone());
            scope.spawn(move || {
                let device = Device::open(BackendKind::Cpu, first_device + i).unwrap();
                let communicator = Communicator::new(Arc::new(bootstrap), device).unwrap();
                communicator.set_timeout(Some(LIMIT));
                body(Collectives::with_tuning(&communicator, tuning).unwrap());
            });
        }
    });
}

fn bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_le_bytes).collect()
}

/// What a rank gives at an index in a round.
fn given(round: u32, rank: u32, index: u64) -> u32 {
    (round * 1_000_003).wrapping_add(rank * 65_537).wrapping_add(index as u32)
}

fn stream(collectives: &Collectives) -> Stream {
    collectives.communicator().device().create_stream().unwrap()
}

/// The algorithms that [`rounds`] uses.
fn algorithms(collectives: &Collectives) -> (&'static str, &'static str) {
    let memory = collectives.alloc(4 * COUNT * 2).unwrap();
    let (at, data_type) = (memory.buffer().address(), DataType::U32);
    (
        collectives.all_reduce_algorithm(at, at, COUNT, data_type, ReduceOp::Sum),
        collectives.all_gather_algorithm(at, at, COUNT, data_type),
    )
}

/// Four rounds of both collectives on two streams in turn, on memory that every rank can reach.
fn rounds(collectives: &Collectives) {
    let communicator = collectives.communicator();
    let (rank, ranks) = (communicator.rank(), communicator.world_size());
    let streams = [stream(collectives), stream(collectives)];
    let reduced = collectives.alloc(4 * COUNT).unwrap();
    let gathered = collectives.alloc(4 * COUNT * u64::from(ranks)).unwrap();
    let mine = collectives.alloc(4 * COUNT).unwrap();
    for round in 0..4 {
        let stream = &streams[round as usize % 2];
        let data = bytes((0..COUNT).map(|index| given(round, rank, index)));
        reduced.buffer().write(stream, 0, &data).unwrap();
        mine.buffer().write(stream, 0, &data).unwrap();
        let (sums, all) = (reduced.buffer(), gathered.buffer());
        collectives.all_reduce(sums, sums, COUNT, DataType::U32, ReduceOp::Sum, stream).unwrap();
        collectives.all_gather(mine.buffer(), all, COUNT, DataType::U32, stream).unwrap();
        communicator.synchronize(stream).unwrap();
        let mut found = vec![0; sums.bytes() as usize];
        sums.read(stream, 0, &mut found).unwrap();
        let sum =
            |index| (0..ranks).fold(0, |sum: u32, r| sum.wrapping_add(given(round, r, index)));
        assert!(found == bytes((0..COUNT).map(sum)), "allreduce in round {round}");
        let mut found = vec![0; all.bytes() as usize];
        all.read(stream, 0, &mut found).unwrap();
        let expected = (0..ranks).flat_map(|r| (0..COUNT).map(move |index| given(round, r, index)));
        assert!(found == bytes(expected), "allgather in round {round}");
        // Nobody writes what a peer may still read.
        communicator.bootstrap().barrier().unwrap();
    }
}

#[test]
fn every_algorithm_gives_threads_the_same_results() {
    for (at, all_reduce) in AllReduce::ALL.into_iter().enumerate() {
        let all_gather = AllGather::ALL[at % AllGather::ALL.len()];
        // Two ranks have all algorithms; of one that three have not they use another.
        for ranks in [2, 3] {
            on_ranks(ranks, 0, (all_reduce, all_gather), |collectives| {
                if ranks == 2 {
                    let names = algorithms(&collectives);
                    assert_eq!(names, (all_reduce.name(), all_gather.name()));
                }
                rounds(&collectives);
            });
        }
    }
}

#[test]
fn threads_that_share_a_rank_take_turns_or_are_told_that_it_is_busy() {
    const CALLS: usize = 20;
    const RANKS: u32 = 3;
    on_ranks(RANKS, 10, (AllReduce::TwoShotLl16, AllGather::Mesh), |collectives| {
        let communicator = collectives.communicator();
        let memory = collectives.alloc(4 * COUNT).unwrap();
        let first = stream(&collectives);
        let data = bytes((0..COUNT).map(|index| given(0, communicator.rank(), index)));
        memory.buffer().write(&first, 0, &data).unwrap();
        communicator.synchronize(&first).unwrap();
        // The calls are equal, so it does not matter which thread makes which.
        let calls = |stream: &Stream| {
            let (at, began) = (memory.buffer(), Instant::now());
            for _ in 0..CALLS {
                while let Err(error) =
                    collectives.all_reduce(at, at, COUNT, DataType::U32, ReduceOp::Max, stream)
                {
                    // The second is of the other thread's `synchronize`, which frees what was dropped.
                    let is_busy = matches!(
                        error,
                        Error::Busy | Error::Core(mscclrs_core::Error::Busy { .. })
                    );
                    assert!(is_busy && began.elapsed() < LIMIT, "{error}");
                    std::thread::yield_now();
                }
            }
            communicator.synchronize(stream).unwrap();
        };
        let second = stream(&collectives);
        std::thread::scope(|scope| {
            scope.spawn(|| calls(&second));
            calls(&first);
        });
        let mut found = vec![0; data.len()];
        memory.buffer().read(&first, 0, &mut found).unwrap();
        assert!(found == bytes((0..COUNT).map(|index| given(0, RANKS - 1, index))));
        communicator.bootstrap().barrier().unwrap();
    });
}

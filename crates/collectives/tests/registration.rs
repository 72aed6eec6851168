//! How long memory stays registered, and when it is freed.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclrs_collectives::{AllGather, AllReduce, Collectives, Shape, Tuning};
use mscclrs_core::{Communicator, LocalBootstrap, SymmetricBuffer};
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::{BackendKind, Buffer, Device, MemoryKind, Stream};

const BYTES: u64 = 1 << 20;
const COUNT: u64 = BYTES / 4;

struct Rank {
    collectives: Collectives,
    stream: Stream,
}

impl Rank {
    fn communicator(&self) -> &Communicator {
        self.collectives.communicator()
    }

    fn barrier(&self) {
        self.communicator().bootstrap().barrier().unwrap();
    }

    fn algorithm(&self, buffer: &Buffer) -> &'static str {
        let at = buffer.address();
        self.collectives.all_reduce_algorithm(at, at, COUNT, DataType::F32, ReduceOp::Sum)
    }

    fn reduce(&self, memory: &Buffer) -> mscclrs_collectives::Result<()> {
        let (collectives, stream) = (&self.collectives, &self.stream);
        collectives.all_reduce(memory, memory, COUNT, DataType::F32, ReduceOp::Sum, stream)
    }

    fn finish(&self) {
        self.communicator().synchronize(&self.stream).unwrap();
    }

    fn free(&self) -> u64 {
        self.communicator().device().memory().unwrap().0
    }
}

/// Runs `body` as two ranks, each with a CPU device of its own and zero copy wherever memory allows it.
fn on_ranks(first_device: u32, body: impl Fn(Rank) + Sync) {
    let shape = Shape { blocks: 2, threads: 64 };
    let tuning = Tuning::only(AllReduce::Direct, AllGather::Direct, shape);
    std::thread::scope(|scope| {
        for (i, bootstrap) in (0..).zip(LocalBootstrap::create(2, Duration::from_secs(30))) {
            let (body, tuning) = (&body, tuning.clone());
            scope.spawn(move || {
                let device = Device::open(BackendKind::Cpu, first_device + i).unwrap();
                let communicator = Communicator::new(Arc::new(bootstrap), device).unwrap();
                communicator.set_timeout(Some(Duration::from_secs(30)));
                let collectives = Collectives::with_tuning(&communicator, tuning).unwrap();
                let stream = communicator.device().create_stream().unwrap();
                body(Rank { collectives, stream });
            });
        }
    });
}

fn is_direct(rank: &Rank, memory: &SymmetricBuffer) {
    assert_eq!(rank.algorithm(memory.buffer()), "direct");
    memory.buffer().fill(&rank.stream, 0).unwrap();
    rank.reduce(memory.buffer()).unwrap();
    rank.finish();
}

#[test]
fn memory_of_alloc_is_freed_when_it_is_dropped() {
    on_ranks(0, |rank| {
        let before = rank.free();
        for _ in 0..20 {
            let memory = rank.collectives.alloc(BYTES).unwrap();
            is_direct(&rank, &memory);
            let clone = memory.clone();
            drop(memory);
            is_direct(&rank, &clone);
            drop(clone);
            rank.communicator().reclaim().unwrap();
            assert_eq!(rank.free(), before);
            rank.barrier();
        }
    });
}

#[test]
fn what_was_dropped_is_not_taken_for_memory_at_the_same_address() {
    on_ranks(10, |rank| {
        let memory = rank.collectives.alloc(BYTES).unwrap();
        let buffer = memory.buffer().clone();
        assert_eq!(rank.algorithm(&buffer), "direct");
        drop(memory);
        assert_eq!(
            rank.algorithm(&buffer),
            "mesh",
            "the memory is there, but its registration is not"
        );
        buffer.fill(&rank.stream, 0).unwrap();
        rank.reduce(&buffer).unwrap();
        rank.finish();
        rank.barrier();
    });
}

#[test]
fn a_graph_keeps_memory_of_alloc_that_is_dropped_after_the_capture() {
    on_ranks(20, |rank| {
        let before = rank.free();
        let memory = rank.collectives.alloc(BYTES).unwrap();
        let graph = rank.stream.capture(|_| rank.reduce(memory.buffer())).unwrap();
        let exec = graph.instantiate().unwrap();
        drop(graph);
        drop(memory);
        rank.communicator().reclaim().unwrap();
        rank.barrier();
        for _ in 0..10 {
            rank.communicator().launch_graph(&exec, &rank.stream).unwrap();
        }
        rank.finish();
        assert!(rank.free() < before);
        rank.barrier();
        drop(exec);
        let since = Instant::now();
        // A graph lets go on a thread of its own.
        while rank.free() != before {
            assert!(since.elapsed() < Duration::from_secs(10), "{} of {before}", rank.free());
            std::thread::sleep(Duration::from_millis(1));
            rank.communicator().reclaim().unwrap();
        }
        rank.barrier();
    });
}

#[test]
fn registered_memory_stays_registered_until_it_is_deregistered() {
    on_ranks(30, |rank| {
        let device = rank.communicator().device().clone();
        let before = rank.free();
        let buffer = device.alloc(BYTES, MemoryKind::Shareable).unwrap();
        let id = rank.collectives.register(&buffer).unwrap().id();
        assert_eq!(rank.algorithm(&buffer), "direct", "nobody keeps the registration");
        let again = rank.collectives.register(&buffer).unwrap();
        assert_ne!(again.id(), id);
        rank.collectives.deregister(&again).unwrap();
        assert_eq!(rank.algorithm(&buffer), "direct", "the first one counts still");
        drop((again, buffer));
        rank.communicator().reclaim().unwrap();
        assert!(rank.free() < before, "it is registered");
        rank.barrier();
    });
}

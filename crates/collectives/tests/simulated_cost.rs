//! What it costs to check, so that it stays a thing that one does. A program of its own: it counts the
//! processor time of all of the process.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Duration;

use mscclrs_collectives::{AllGather, AllReduce, Collectives, Shape, Tuning};
use mscclrs_core::{Communicator, LocalBootstrap};
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::simulation::{Check, Mode, Schedule, Simulation};
use mscclrs_gpu::{BackendKind, Device};
use rustix::time::{ClockId, clock_gettime};

const LIMIT: Duration = Duration::from_secs(60);
const RANKS: u32 = 4;
const SHAPE: Shape = Shape { blocks: 2, threads: 128 };
const BYTES: u64 = 64 << 10;
const ROUNDS: u32 = 5;
/// A checked call takes at most so long,
const A_CALL: Duration = Duration::from_secs(10);
/// and so many times the processor time of an ordinary one.
const TIMES: f64 = 30.0;
/// Other work of the machine takes its caches away: measured until that holds, so often at most.
const TRIES: u32 = 8;

/// Processor time of this process so far.
fn used() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Processor time of a call, of all ranks together: the least of some rounds of so many calls, as other
/// work of the machine only adds to it.
fn time(algorithm: AllReduce, calls: u32, device: impl Fn(u32) -> Device + Sync) -> Duration {
    let run = |rank: u32, bootstrap: LocalBootstrap| {
        let device = device(rank);
        let stream = device.create_stream().unwrap();
        let communicator = Communicator::new(Arc::new(bootstrap), device).unwrap();
        communicator.set_timeout(Some(LIMIT));
        let tuning = Tuning::only(algorithm, AllGather::Mesh, SHAPE);
        let collectives = Collectives::with_tuning(&communicator, tuning).unwrap();
        let memory = collectives.alloc(BYTES).unwrap();
        memory.buffer().fill(&stream, 1).unwrap();
        let call = || {
            let (buffer, count) = (memory.buffer(), BYTES / 4);
            collectives
                .all_reduce(buffer, buffer, count, DataType::U32, ReduceOp::Sum, &stream)
                .unwrap();
        };
        // Made at the first call: memory's cells, pages, and what the call itself keeps.
        call();
        let all_have_ended = || {
            communicator.synchronize(&stream).unwrap();
            communicator.bootstrap().barrier().unwrap();
        };
        let round = |_| {
            all_have_ended();
            let before = used();
            (0..calls).for_each(|_| call());
            all_have_ended();
            used().saturating_sub(before) / calls
        };
        (0..ROUNDS).map(round).min().unwrap()
    };
    std::thread::scope(|scope| {
        let start = |(rank, bootstrap)| scope.spawn(move || run(rank, bootstrap));
        let ranks: Vec<_> = (0..).zip(LocalBootstrap::create(RANKS, LIMIT)).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).max().unwrap()
    })
}

#[test]
fn checking_takes_no_more_than_its_share() {
    // The ordinary ones first: every access asks whether to go another way once a simulation was there.
    let fast = AllReduce::ALL.map(|algorithm| {
        (algorithm, time(algorithm, 20, |rank| Device::open(BackendKind::Cpu, rank).unwrap()))
    });
    let mut worst = 0.0_f64;
    for (algorithm, fast) in fast {
        let mode = Mode { schedule: Some(Schedule::Random), ..Mode::new(Check::Checked, 1) };
        let simulation = Simulation::start(mode).unwrap();
        let mut checked = Duration::MAX;
        for _ in 0..TRIES {
            checked = time(algorithm, 1, |rank| simulation.device(rank).unwrap()).min(checked);
            if checked.as_secs_f64() <= TIMES * fast.as_secs_f64() {
                break;
            }
        }
        assert_eq!(simulation.finding().unwrap(), None);
        let times = checked.as_secs_f64() / fast.as_secs_f64();
        println!("{algorithm:?}: {fast:.1?} a call, checked {checked:.1?}, {times:.0} times");
        assert!(checked < A_CALL, "{algorithm:?}: a call took {checked:?} of processor time");
        worst = worst.max(times);
    }
    assert!(worst <= TIMES, "checking takes {worst:.0} times what a run takes");
}

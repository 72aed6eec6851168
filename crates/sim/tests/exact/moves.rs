//! Copies and fills of queues beside kernels, and what orders them.

use std::sync::Arc;

use mscclrs_device::{Relaxed, Sys, WaitKind, poll};
use mscclrs_sim::{
    Check, DeviceConfig, Finding, FindingKind, Graph, Mode, Node, Point, Queue, TestMemory, Work,
};

use crate::common::LIMIT;
use crate::parts::{Parts, parts};
use crate::world::Ranks;

parts! {
    Writes "_writes" = |args| {
        (0..8).for_each(|word| args.memory.at(word).store(1));
    }
    Reads "_reads" = |args| {
        let sum = (0..8).map(|word| args.memory.at(word).load()).sum();
        args.memory.at(16).store(sum);
    }
    OnlyReads "_only_reads" = |args| {
        (0..8).for_each(|word| assert!(args.memory.at(word).load() < u64::MAX));
    }
    // Tells the host, and goes on when the host says so.
    Tells "_tells" = |args| {
        (0..8).for_each(|word| args.memory.at(word).store(1));
        args.host.store_atomic(mscclrs_device::Release, Sys, 1);
        poll(&args.guard, args.host.at(2), 1, WaitKind::Semaphore, 0, |word| word == 1)?;
    }
    // A flag in the upper half of a word, whose lower half a queue fills.
    Half "_half" = |args| {
        let flag = args.memory.cast::<u32>().at(1);
        if args.rank == 0 {
            args.memory.at(8).store(7);
            flag.store_atomic(mscclrs_device::Release, Sys, 1);
            args.host.store_atomic(Relaxed, Sys, 1);
        } else {
            poll(&args.guard, args.host.at(2), 1, WaitKind::Semaphore, 0, |word| word == 1)?;
            flag.load_atomic(mscclrs_device::Acquire, Sys);
            args.memory.at(16).store(args.memory.at(8).load());
        }
    }
}

fn run(queue: &Queue, work: Work) -> u64 {
    // SAFETY: a test keeps its memory until its queues are done.
    queue.run(Arc::new(unsafe { Graph::single(work) }))
}

struct Moves {
    parts: Parts,
    /// Of the same device as the first rank's.
    second: Queue,
}

impl Moves {
    fn new(seed: u64) -> Moves {
        let parts = Parts::new(Mode::new(Check::Checked, seed), 1, 32);
        let second = parts.ranks.queues[0].device().create_queue();
        Moves { parts, second }
    }

    fn fill(&self) -> Work {
        Work::Fill { to: self.parts.memory.address(), byte: 1, bytes: 64 }
    }

    fn copy(&self) -> Work {
        let from = self.parts.memory.address();
        Work::Copy { to: from + 192, from, bytes: 64 }
    }

    fn kernel(&self, name: &str) {
        self.parts.launch(part.instance(name), 0, (1, 1, 0));
    }

    fn finish(&self) -> Option<Finding> {
        let found = self.parts.ranks.finish();
        let done = self.second.synchronize(LIMIT);
        assert!(found.is_some() || done == Ok(true));
        self.parts.ranks.world.finding().unwrap()
    }
}

#[test]
fn a_move_that_nothing_orders_with_a_kernel_is_a_race() {
    for (kernel, copies) in [("_writes", false), ("_reads", false), ("_writes", true)] {
        let moves = Moves::new(1);
        moves.kernel(kernel);
        run(&moves.second, if copies { moves.copy() } else { moves.fill() });
        let finding = moves.finish().expect("a race");
        println!("{finding}");
        assert_eq!(finding.kind, FindingKind::Race, "{finding}");
        assert!(finding.what.contains("of a queue of device 0"), "{finding}");
        assert!(finding.missing.as_ref().unwrap().contains("an event"), "{finding}");
    }
    // Two moves.
    let moves = Moves::new(1);
    run(&moves.parts.ranks.queues[0], moves.fill());
    run(&moves.second, moves.copy());
    assert!(moves.finish().expect("a race").what.starts_with("the copy of a queue"));
    // Two that only read.
    let moves = Moves::new(1);
    let begin = Point::new();
    moves.parts.ranks.queues[0].record(begin.clone());
    moves.second.wait_for(begin);
    moves.kernel("_reads");
    run(&moves.second, moves.copy());
    assert_eq!(moves.finish().map(|finding| finding.to_string()), None);
}

#[test]
fn launches_of_two_queues_miss_an_event() {
    let moves = Moves::new(1);
    let begin = Point::new();
    moves.parts.ranks.queues[0].record(begin.clone());
    moves.second.wait_for(begin);
    moves.kernel("_writes");
    let kernel = part.instance("_reads").expect("a part of this name");
    crate::common::launch_kernel(&moves.second, kernel, (1, 1, 0), &moves.parts.args(0));
    let finding = moves.finish().expect("a race");
    assert_eq!(finding.kind, FindingKind::Race, "{finding}");
    assert!(finding.missing.as_ref().unwrap().starts_with("an event"), "{finding}");
}

#[test]
fn a_copy_of_what_nothing_wrote_is_not_written() {
    // Some bytes, and pages of which only queues know.
    for (bytes, at) in [(64, 0), (1 << 16, (1 << 16) - 64)] {
        for fills in [false, true] {
            let moves = Moves::new(1);
            let (from, to) = (TestMemory::new(bytes), TestMemory::new(bytes));
            let queue = &moves.parts.ranks.queues[0];
            let fill =
                |to: &TestMemory| Work::Fill { to: to.address(), byte: 1, bytes: bytes as u64 };
            run(queue, fill(&to));
            if fills {
                run(queue, fill(&from));
            }
            let (to, bytes) = (to.address(), bytes as u64);
            run(queue, Work::Copy { to, from: from.address(), bytes });
            let args = crate::parts::PartArgs {
                memory: mscclrs_device::Global::from_address(to + at),
                ..moves.parts.args(0)
            };
            let kernel = part.instance("_only_reads").expect("a part of this name");
            crate::common::launch_kernel(queue, kernel, (1, 1, 0), &args);
            let kind = moves.finish().map(|finding| finding.kind);
            assert_eq!(kind, (!fills).then_some(FindingKind::Unwritten), "{bytes} {fills}");
        }
    }
}

#[test]
fn a_move_with_a_race_does_not_end_well() {
    let moves = Moves::new(1);
    let first = &moves.parts.ranks.queues[0];
    run(first, moves.fill());
    run(&moves.second, moves.copy());
    moves.parts.ranks.begin();
    // The one that came first has ended.
    let ends = [first, &moves.second].map(|queue| queue.synchronize(LIMIT));
    assert!(ends.iter().any(Result::is_err), "{ends:?}");
    assert!(moves.parts.ranks.world.finding().unwrap().is_some());
}

#[test]
fn a_move_with_a_race_ends_what_could_go_on() {
    let moves = Moves::new(1);
    let (waits, passes) = (&moves.parts.ranks.queues[0], &moves.second);
    let races = passes.device().create_queue();
    // The first queue could go on as soon as the second has passed the point, and then the third one races.
    let (memory, point) = (TestMemory::new(64), Point::new());
    let fill = || Work::Fill { to: memory.address(), byte: 1, bytes: 64 };
    waits.wait_for(point.clone());
    run(waits, moves.fill());
    run(passes, fill());
    passes.record(point);
    run(&races, fill());
    moves.parts.ranks.begin();
    let end = waits.synchronize(LIMIT);
    assert!(end.is_err(), "{end:?}");
    assert_eq!(moves.parts.ranks.world.finding().unwrap().unwrap().kind, FindingKind::Race);
}

#[test]
fn a_kernel_that_runs_when_a_move_comes_is_named() {
    let config =
        DeviceConfig { deadlock: Some(std::time::Duration::from_secs(20)), ..Default::default() };
    let ranks = Ranks::with(Mode::new(Check::Checked, 1), 1, config);
    let second = ranks.queues[0].device().create_queue();
    let (memory, host) = (TestMemory::new(256), TestMemory::of_host(64));
    let parts = Parts { ranks, memory, host };
    let moves = Moves { parts, second };
    moves.kernel("_tells");
    // It is waited for by nothing that orders it: before it tells the host, it has written.
    moves.parts.ranks.begin();
    moves.parts.wait_for_host_word();
    run(&moves.second, moves.copy());
    let ordered = moves.second.synchronize(LIMIT);
    moves.parts.host.set(2, 1);
    // What it told the host is in order.
    assert_eq!(ordered, Ok(true));
    assert_eq!(moves.finish().map(|finding| finding.to_string()), None);
}

#[test]
fn queues_events_and_the_host_order_moves() {
    for seed in 0..10 {
        let moves = Moves::new(seed);
        let (first, second) = (&moves.parts.ranks.queues[0], &moves.second);
        moves.kernel("_writes");
        run(first, moves.fill());
        moves.kernel("_reads");
        let (there, back) = (Point::new(), Point::new());
        first.record(there.clone());
        second.wait_for(there);
        run(second, moves.copy());
        run(second, moves.fill());
        second.record(back.clone());
        first.wait_for(back);
        moves.kernel("_writes");
        moves.parts.ranks.begin();
        assert_eq!(first.synchronize(LIMIT), Ok(true));
        run(second, moves.fill());
        assert_eq!(second.synchronize(LIMIT), Ok(true));
        moves.kernel("_reads");
        // A graph: a kernel's memory is filled after it.
        let fill = Node { work: moves.fill(), after: vec![] };
        let copy = Node { work: moves.copy(), after: vec![0] };
        let again = Node { work: moves.fill(), after: vec![1] };
        // SAFETY: the memory outlives the run, which is waited for below.
        let graph = Arc::new(unsafe { Graph::new(vec![fill, copy, again], Vec::new()) });
        (0..3).for_each(|_| {
            first.run(graph.clone());
        });
        moves.kernel("_writes");
        let nothing = Work::Fill { to: moves.parts.memory.address() + 1, byte: 9, bytes: 0 };
        run(second, nothing);
        assert_eq!(moves.finish().map(|finding| finding.to_string()), None);
    }
}

#[test]
fn a_fill_beside_a_flag_leaves_what_the_flag_tells() {
    let config =
        DeviceConfig { deadlock: Some(std::time::Duration::from_secs(20)), ..Default::default() };
    let ranks = Ranks::with(Mode::new(Check::Checked, 1), 2, config);
    let (memory, host) = (TestMemory::new(256), TestMemory::of_host(64));
    let parts = Parts { ranks, memory, host };
    for rank in 0..2 {
        parts.launch(part.instance("_half"), rank, (1, 1, 0));
    }
    let third = parts.ranks.queues[0].device().create_queue();
    parts.ranks.begin();
    parts.wait_for_host_word();
    run(&third, Work::Fill { to: parts.memory.address(), byte: 5, bytes: 4 });
    assert_eq!(third.synchronize(LIMIT), Ok(true));
    parts.host.set(2, 1);
    assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
    assert_eq!((parts.memory.get(0), parts.memory.get(16)), (1 << 32 | 0x0505_0505, 7));
}

//! What orders launches of several queues: what the host has seen to be done, and not what has only ended.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use mscclrs_device::{Acquire, Gpu, Relaxed, Release, Sys, WaitKind, poll, poll_acquire};
use mscclrs_sim::{
    Check, DeviceConfig, Finding, FindingKind, Mode, Point, Queue, TestMemory, World,
};

use crate::common::{LIMIT, launch_kernel};
use crate::parts::{Parts, parts};
use crate::world::Ranks;

parts! {
    Writes "_writes" = |args| {
        args.memory.at(2).store(7);
    }
    // Tells the host, in a way that orders nothing.
    Marks "_marks" = |args| {
        args.host.store_atomic(Relaxed, Sys, 1);
    }
    Waits "_waits" = |args| {
        poll_acquire(&args.guard, args.host.at(2), 1, WaitKind::Semaphore, 0, |word| word == 1)?;
    }
    WaitsRelaxed "_waits_relaxed" = |args| {
        poll(&args.guard, args.host.at(2), 1, WaitKind::Semaphore, 0, |word| word == 1)?;
    }
    WaitsAndReads "_waits_and_reads" = |args| {
        poll_acquire(&args.guard, args.host.at(2), 1, WaitKind::Semaphore, 0, |word| word == 1)?;
        args.memory.at(4).store(args.memory.at(2).load());
    }
    // A flag in half a word, for the same device only.
    Half "_half" = |args| {
        args.memory.at(2).store(7);
        args.host.cast::<u32>().at(4).store_atomic(Release, Gpu, 1);
        args.host.store_atomic(Relaxed, Sys, 1);
    }
    HalfReads "_half_reads" = |args| {
        if args.host.cast::<u32>().at(4).load_atomic(Acquire, Gpu) == 1 {
            args.memory.at(4).store(args.memory.at(2).load());
        }
    }
    Reads "_reads" = |args| {
        args.memory.at(4).store(args.memory.at(2).load());
    }
}

/// Two devices with a queue each, and memory for both.
fn two(seed: u64) -> Parts {
    let config = DeviceConfig { deadlock: Some(Duration::from_secs(20)), ..Default::default() };
    let ranks = Ranks::with(Mode::new(Check::Checked, seed), 2, config);
    let (memory, host) = (TestMemory::new(64), TestMemory::of_host(64));
    ranks.upload(0, &memory, &[0; 8]);
    Parts { ranks, memory, host }
}

/// Two queues of different devices, of which one has written what the other is to read.
struct Written {
    parts: Parts,
    /// The ticket of the write; more came after it.
    writes: u64,
}

impl Written {
    /// All has ended, and nobody has seen it.
    fn new(seed: u64) -> Written {
        let written = Written::begun(seed);
        written.parts.wait_for_host_word();
        // Its end is not far.
        std::thread::sleep(Duration::from_millis(20));
        written
    }

    fn begun(seed: u64) -> Written {
        let parts = two(seed);
        parts.ranks.begin();
        let writes = parts.launch(part.instance("_writes"), 0, (1, 1, 0));
        parts.launch(part.instance("_marks"), 0, (1, 1, 0));
        Written { parts, writes }
    }

    fn first(&self) -> &Queue {
        &self.parts.ranks.queues[0]
    }

    /// What is found if the other queue reads now.
    fn read(self) -> Option<Finding> {
        self.parts.launch(part.instance("_reads"), 1, (1, 1, 0));
        self.parts.ranks.finish()
    }
}

#[track_caller]
fn assert_race(finding: Option<Finding>) {
    let finding = finding.expect("a race");
    assert_eq!(finding.kind, FindingKind::Race, "{finding}");
    assert!(finding.missing.as_ref().unwrap().starts_with("an event"), "{finding}");
}

#[test]
fn what_has_ended_unseen_orders_nothing() {
    assert_race(Written::new(1).read());
}

fn recorded(queue: &Queue) -> Arc<Point> {
    let point = Point::new();
    queue.record(point.clone());
    point
}

fn until(seen: impl Fn() -> bool) {
    let begin = Instant::now();
    while !seen() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it does not end");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Ways of a host thread to see that something is done.
const WAYS: [fn(&Queue, u64); 8] = [
    |queue, writes| assert_eq!(queue.wait(writes, LIMIT), Ok(true)),
    |queue, _| assert_eq!(queue.synchronize(LIMIT), Ok(true)),
    |queue, _| assert_eq!(queue.device().synchronize(), Ok(())),
    |queue, _| until(|| queue.is_idle()),
    |queue, _| assert_eq!(recorded(queue).wait(LIMIT), Ok(true)),
    |queue, _| {
        let point = recorded(queue);
        until(|| point.is_passed());
    },
    |queue, _| {
        let point = recorded(queue);
        until(|| point.passed_at().is_some());
    },
    |queue, _| {
        let (sender, receiver) = mpsc::channel();
        queue.call(Box::new(move || sender.send(()).unwrap()));
        receiver.recv_timeout(Duration::from_secs(20)).unwrap();
    },
];

#[test]
fn each_way_to_see_it_is_an_order() {
    for (way, see) in WAYS.iter().enumerate() {
        let written = Written::begun(1);
        see(written.first(), written.writes);
        assert_eq!(written.read().map(|finding| finding.to_string()), None, "way {way}");
        // Threads tell each other in ways that nobody sees.
        let written = Written::begun(1);
        let (queue, writes) = (written.first(), written.writes);
        std::thread::scope(|scope| {
            scope.spawn(|| see(queue, writes));
        });
        assert_eq!(written.read().map(|finding| finding.to_string()), None, "way {way}");
    }
}

#[test]
fn only_what_was_waited_for_is_known() {
    for point_before in [false, true] {
        let parts = two(1);
        let (before, after) = (Point::new(), Point::new());
        parts.ranks.queues[0].record(before.clone());
        parts.launch(part.instance("_writes"), 0, (1, 1, 0));
        parts.ranks.queues[0].record(after.clone());
        parts.launch(part.instance("_marks"), 0, (1, 1, 0));
        parts.ranks.begin();
        parts.wait_for_host_word();
        let of = if point_before { before } else { after };
        // As the host does, and as a queue does.
        if point_before {
            assert_eq!(of.wait(LIMIT), Ok(true));
        }
        parts.ranks.queues[1].wait_for(of);
        parts.launch(part.instance("_reads"), 1, (1, 1, 0));
        let finding = parts.ranks.finish();
        match point_before {
            true => assert_race(finding),
            false => assert_eq!(finding.map(|finding| finding.to_string()), None),
        }
    }
}

#[test]
fn what_was_submitted_before_the_host_saw_it_does_not_know_it() {
    let written = Written::new(1);
    let hold = written.parts.ranks.world.hold();
    written.parts.launch(part.instance("_reads"), 1, (1, 1, 0));
    assert_eq!(written.first().synchronize(LIMIT), Ok(true));
    drop(hold);
    assert_race(written.parts.ranks.finish());
}

#[test]
fn what_comes_later_tells_nothing_to_what_waits_in_the_queue() {
    let written = Written::new(1);
    let second = &written.parts.ranks.queues[1];
    for kernel in ["_waits_relaxed", "_reads"] {
        written.parts.launch(part.instance(kernel), 1, (1, 1, 0));
    }
    assert_eq!(written.first().synchronize(LIMIT), Ok(true));
    written.parts.launch(part.instance("_marks"), 1, (1, 1, 0));
    assert!(!second.is_idle());
    written.parts.host.set(2, 1);
    assert_race(written.parts.ranks.finish());
}

/// Sets how much of the processors this thread gets beside others; 19 is the least.
fn be_nice(nice: i32) {
    // SAFETY: it has no memory to do with; 0 is the calling thread.
    assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }, 0);
}

/// How long this thread was on a processor.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_host_thread_that_gets_no_processor_is_waited_for() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let parts = two(1);
    parts.ranks.begin();
    assert_eq!(parts.ranks.queues[0].synchronize(LIMIT), Ok(true));
    assert_eq!(parts.ranks.queues[1].synchronize(LIMIT), Ok(true));
    let (barrier, busy) = (Barrier::new(2), AtomicBool::new(true));
    let [writes, reads] = ["_writes", "_reads"].map(|name| part.instance(name).unwrap());
    let (args, queues) = ([parts.args(0), parts.args(1)], &parts.ranks.queues);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let late = scope.spawn(|| {
            be_nice(19);
            barrier.wait();
            // Others get more of the processors meanwhile.
            let begin = own_time();
            while own_time() - begin < Duration::from_millis(3) {}
            launch_kernel(&queues[1], reads, (1, 1, 0), &args[1]);
        });
        barrier.wait();
        launch_kernel(&queues[0], writes, (1, 1, 0), &args[0]);
        // Were the other not waited for, all that comes now would be after it.
        let _ = queues[0].synchronize(LIMIT);
        late.join().unwrap();
        busy.store(false, Ordering::Relaxed);
    });
    // Both run at the same time.
    let finding = parts.ranks.finish().expect("a race");
    assert_eq!(finding.kind, FindingKind::Race, "{finding}");
    assert!(finding.missing.as_ref().unwrap().starts_with("a release"), "{finding}");
}

/// Writes on a queue of its own that is dropped at once; read after all of the device was waited for.
fn of_a_dropped_queue(has_ended: bool) -> Option<Finding> {
    let parts = two(1);
    parts.ranks.begin();
    assert_eq!(parts.ranks.queues[0].synchronize(LIMIT), Ok(true));
    let device = parts.ranks.queues[0].device().clone();
    let queue = device.create_queue();
    for kernel in ["_writes", "_marks"] {
        launch_kernel(&queue, part.instance(kernel).unwrap(), (1, 1, 0), &parts.args(0));
    }
    drop(queue);
    if has_ended {
        parts.wait_for_host_word();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(device.synchronize(), Ok(()));
    parts.launch(part.instance("_reads"), 1, (1, 1, 0));
    parts.ranks.finish()
}

#[test]
fn a_device_is_waited_for_with_its_dropped_queues() {
    for has_ended in [false, true].repeat(20) {
        let finding = of_a_dropped_queue(has_ended).map(|finding| finding.to_string());
        assert_eq!(finding, None, "ended: {has_ended}");
    }
}

#[test]
fn a_queue_elsewhere_that_has_waited_tells_the_host() {
    let elsewhere = World::start(Mode::new(Check::Checked, 1), false).unwrap();
    let devices = [crate::common::device(1, 32), elsewhere.device(DeviceConfig::default())];
    for device in devices {
        let written = Written::begun(1);
        let point = recorded(written.first());
        let other = device.create_queue();
        other.wait_for(point);
        assert_eq!(other.synchronize(LIMIT), Ok(true));
        assert_eq!(written.read().map(|finding| finding.to_string()), None);
    }
}

#[test]
fn a_flag_that_the_host_writes_again_brings_what_it_has_seen_since() {
    let parts = two(1);
    parts.ranks.begin();
    parts.host.set(2, 1);
    parts.launch(part.instance("_waits"), 1, (1, 1, 0));
    assert_eq!(parts.ranks.queues[1].synchronize(LIMIT), Ok(true));
    parts.host.set(2, 0);
    parts.launch(part.instance("_writes"), 0, (1, 1, 0));
    let hold = parts.ranks.world.hold();
    // Submitted before the write is seen, and told of it by the flag.
    parts.launch(part.instance("_waits_and_reads"), 1, (1, 1, 0));
    drop(hold);
    assert_eq!(parts.ranks.queues[0].synchronize(LIMIT), Ok(true));
    parts.host.set(2, 1);
    assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
}

#[test]
fn what_the_host_writes_beside_a_flag_leaves_the_flag_as_it_is() {
    let parts = two(1);
    parts.ranks.begin();
    let first = &parts.ranks.queues[0];
    parts.launch(part.instance("_half"), 0, (1, 1, 0));
    parts.wait_for_host_word();
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: in the memory, which lives, and aligned.
    let beside = unsafe { AtomicU32::from_ptr((parts.host.address() + 20) as *mut u32) };
    beside.store(9, Ordering::Release);
    let queue = first.device().create_queue();
    launch_kernel(&queue, part.instance("_half_reads").unwrap(), (1, 1, 0), &parts.args(0));
    assert_eq!(queue.synchronize(LIMIT), Ok(true));
    assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
    assert_eq!(parts.memory.get(4), 7);
}

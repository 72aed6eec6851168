//! Host threads that come at other times: the run of a seed stays what it is.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use mscclrs_device::arch::fence;
use mscclrs_device::{
    Acquire, Relaxed, Release, Sys, WaitKind, block_idx, poll, poll_acquire, thread_idx,
};
use mscclrs_sim::{
    Check, Departures, DeviceConfig, FindingKind, Mode, Point, Schedule, TestMemory, World,
};

use crate::common::{LIMIT, launch_kernel};
use crate::parts::{Parts, parts};
use crate::world::Ranks;

/// Work of a lane.
const LONG: u32 = 400;

parts! {
    // Each lane waits for its flag, and then works.
    Waits "_waits" = |args| {
        let lane = thread_idx();
        args.host.store_atomic(Relaxed, Sys, 1);
        let flag = args.memory.at(lane);
        poll_acquire(&args.guard, flag, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
        (0..20).for_each(|time| args.memory.at(64 + lane).store(time));
    }
    Tells "_tells" = |args| {
        (0..20).for_each(|time| args.memory.at(128 + thread_idx()).store(time));
        args.memory.at(thread_idx()).store_atomic(Release, Sys, 1);
    }
    // Blocks end one after the other.
    Works "_works" = |args| {
        args.host.store_atomic(Relaxed, Sys, 1);
        let own = args.memory.at(64 + block_idx());
        (0..(block_idx() + 1) * LONG).for_each(|_| {
            own.fetch_add(Relaxed, Sys, 1);
        });
    }
    // Words that others look at meanwhile.
    Stores "_stores" = |args| {
        let other = if args.rank == 0 { 5 } else { 6 };
        (0..200).for_each(|_| args.memory.at(other).store_atomic(Relaxed, Sys, 1));
        args.memory.at(2 + args.rank as u32).store_atomic(Relaxed, Sys, 5);
    }
    Looks "_looks" = |args| {
        (0..20).for_each(|_| _ = args.memory.at(3).load_atomic(Relaxed, Sys));
    }
    // What relaxed loads saw is learnt by the fence.
    Fences "_fences" = |args| {
        args.host.store_atomic(Relaxed, Sys, 1);
        poll(&args.guard, args.memory.at(7), 1, WaitKind::Semaphore, 0, |word| word == 1)?;
        fence::<Sys>();
        (0..20).for_each(|_| _ = args.memory.at(8).load_atomic(Relaxed, Sys));
    }
    Before "_before" = |args| {
        (1..5).for_each(|value| args.memory.at(8).store_atomic(Relaxed, Sys, value));
    }
    Flags "_flags" = |args| {
        args.memory.at(7).store_atomic(Relaxed, Sys, 1);
    }
    // Without a guard: as long as the host takes.
    Polls "_polls" = |args| {
        args.host.store_atomic(Relaxed, Sys, 1);
        while args.host.at(1).load_atomic(Acquire, Sys) == 0 {}
    }
    Adds "_adds" = |args| {
        (0..LONG).for_each(|_| {
            args.memory.at(128).fetch_add(Relaxed, Sys, 1);
        });
    }
}

/// Ranks with memory, of which everything may wait for so long.
fn patient(mode: Mode, devices: u32, limit: Duration) -> Parts {
    let config = DeviceConfig { deadlock: Some(limit), ..Default::default() };
    let ranks = Ranks::with(mode, devices, config);
    let (memory, host) = (TestMemory::new(8 * 192), TestMemory::of_host(16));
    ranks.upload(0, &memory, &[0; 192]);
    Parts { ranks, memory, host }
}

/// One of each rank, the second rank's so much after the first has begun.
fn run(mode: Mode, names: [&str; 2], blocks: u32, late: Duration) -> (u64, u64) {
    let parts = patient(mode, 2, Duration::from_secs(20));
    let launch = |rank: u64, blocks| {
        let kernel = part.instance(names[rank as usize]).unwrap();
        launch_kernel(
            &parts.ranks.queues[rank as usize],
            kernel,
            (blocks, 16, 0),
            &parts.args(rank),
        )
    };
    let first = launch(0, blocks);
    parts.ranks.begin();
    parts.wait_for_host_word();
    std::thread::sleep(late);
    launch(1, 1);
    assert_eq!(parts.ranks.queues[0].wait(first, LIMIT), Ok(true));
    assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
    parts.ranks.world.trace_sum().unwrap()
}

#[test]
fn how_long_everything_waits_changes_nothing() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        for schedule in Schedule::ALL {
            let mode = Mode { check, seed: 5, schedule: Some(schedule) };
            let sums = [0, 5, 60]
                .map(|ms| run(mode.clone(), ["_waits", "_tells"], 1, Duration::from_millis(ms)));
            assert_eq!(sums[0], sums[1], "{mode}");
            assert_eq!(sums[0], sums[2], "{mode}");
        }
    }
}

#[test]
fn how_often_lanes_look_in_vain_teaches_them_nothing() {
    for seed in 0..6 {
        let mode = Mode::new(Check::Weak, seed);
        let sums = [0, 5, 60].map(|ms| {
            let parts = patient(mode.clone(), 2, Duration::from_secs(20));
            parts.launch(part.instance("_fences"), 0, (1, 1, 0));
            parts.ranks.begin();
            parts.wait_for_host_word();
            let before = parts.launch(part.instance("_before"), 1, (1, 1, 0));
            assert_eq!(parts.ranks.queues[1].wait(before, LIMIT), Ok(true));
            std::thread::sleep(Duration::from_millis(ms));
            let third = parts.ranks.queues[1].device().create_queue();
            launch_kernel(&third, part.instance("_flags").unwrap(), (1, 1, 0), &parts.args(1));
            assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
            parts.ranks.world.trace_sum().unwrap()
        });
        assert_eq!(sums[0], sums[1], "{mode}");
        assert_eq!(sums[0], sums[2], "{mode}");
    }
}

#[test]
fn what_comes_while_lanes_run_begins_after_them() {
    let mode = Mode { check: Check::Checked, seed: 5, schedule: Some(Schedule::Random) };
    // Lanes run for longer than the first two.
    let late = [0, 20, 1000].map(Duration::from_millis);
    let sums = late.map(|late| run(mode.clone(), ["_works", "_adds"], 8, late));
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0], sums[2]);
}

/// Two host threads that wait for their own work only, after which the first launches again.
fn run_apart<T>(mode: Mode, ask: impl Fn(&World) -> T) -> T {
    let parts = patient(mode, 2, Duration::from_secs(20));
    parts.ranks.begin();
    let hold = Mutex::new(Some(parts.ranks.world.hold()));
    let (barrier, queues) = (Barrier::new(2), &parts.ranks.queues);
    let [stores, looks] = ["_stores", "_looks"].map(|name| part.instance(name).unwrap());
    let args = [parts.args(0), parts.args(1)];
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (barrier, hold, args) = (&barrier, &hold, &args[rank]);
            scope.spawn(move || {
                launch_kernel(&queues[rank], stores, (1, 1, 0), args);
                barrier.wait();
                hold.lock().unwrap().take();
                assert_eq!(queues[rank].synchronize(LIMIT), Ok(true));
                if rank == 0 {
                    launch_kernel(&queues[0], looks, (1, 1, 0), args);
                    assert_eq!(queues[0].synchronize(LIMIT), Ok(true));
                }
            });
        }
    });
    assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
    ask(&parts.ranks.world)
}

#[test]
fn when_host_threads_see_an_end_changes_no_run() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        for seed in 0..3 {
            let mode = Mode::new(check, seed);
            let sum = || run_apart(mode.clone(), |world| world.trace_sum().unwrap());
            let first = sum();
            (0..8).for_each(|_| assert_eq!(sum(), first, "{mode}"));
        }
    }
    let schedule = Some(Schedule::Departures(Departures::default()));
    let mode = Mode { schedule, ..Mode::new(Check::Weak, 0) };
    let decisions = || run_apart(mode.clone(), |world| world.decisions().unwrap());
    let first = decisions();
    (0..10).for_each(|_| assert_eq!(decisions(), first));
}

#[test]
fn a_host_that_submits_until_something_is_done_gets_there() {
    let parts = patient(Mode::new(Check::Checked, 1), 2, Duration::from_secs(20));
    parts.ranks.begin();
    let point = Point::new();
    parts.ranks.queues[0].record(point.clone());
    let begin = Instant::now();
    while !point.is_passed() {
        parts.launch(part.instance("_looks"), 1, (1, 1, 0));
        let next = Instant::now() + Duration::from_micros(50);
        while Instant::now() < next {}
        assert!(begin.elapsed() < Duration::from_secs(20), "it did not begin");
    }
    assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
}

/// The child of a thread that waits for it in the system.
static CHILD: AtomicI32 = AtomicI32::new(0);

#[test]
fn a_thread_that_the_system_holds_up_holds_up_no_launch_for_long() {
    let parts = patient(Mode::new(Check::Checked, 1), 1, Duration::from_secs(20));
    parts.ranks.begin();
    assert_eq!(parts.ranks.queues[0].synchronize(LIMIT), Ok(true));
    let waits = std::thread::spawn(|| {
        // SAFETY: the child tells its number, sleeps and ends: it leaves the memory, which both have,
        // as it is.
        #[allow(deprecated)]
        unsafe {
            let child = libc::vfork();
            if child == 0 {
                CHILD.store(libc::getpid(), Ordering::Release);
                libc::sleep(25);
                libc::_exit(0);
            }
            // Where tools make a fork of it, nobody waits and the child tells nothing.
            CHILD.store(child, Ordering::Release);
        }
    });
    while CHILD.load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = Instant::now();
    parts.launch(part.instance("_looks"), 0, (1, 1, 0));
    assert_eq!(parts.ranks.queues[0].synchronize(LIMIT), Ok(true));
    let took = begin.elapsed();
    // SAFETY: the child lives, or its number is not given away before it is waited for.
    unsafe {
        libc::kill(CHILD.load(Ordering::Acquire), libc::SIGKILL);
        libc::waitpid(CHILD.load(Ordering::Acquire), std::ptr::null_mut(), 0);
    }
    waits.join().unwrap();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn what_comes_while_a_lane_polls_begins() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        let parts = patient(Mode::new(check, 1), 2, Duration::from_secs(20));
        parts.launch(part.instance("_polls"), 0, (1, 1, 0));
        parts.ranks.begin();
        parts.wait_for_host_word();
        std::thread::sleep(Duration::from_millis(10));
        let adds = parts.launch(part.instance("_adds"), 1, (1, 1, 0));
        assert_eq!(parts.ranks.queues[1].wait(adds, LIMIT), Ok(true), "{check:?}");
        parts.host.set(1, 1);
        assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
    }
}

#[test]
fn a_poll_that_the_host_ends_within_the_limit_is_not_endless() {
    let parts = patient(Mode::new(Check::Checked, 1), 1, Duration::from_secs(20));
    parts.launch(part.instance("_polls"), 0, (1, 1, 0));
    parts.ranks.begin();
    // Many more polls than it takes to be taken for endless otherwise.
    std::thread::sleep(Duration::from_secs(2));
    parts.host.set(1, 1);
    assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
}

#[test]
fn while_a_host_thread_is_awake_it_may_yet_do_what_is_waited_for() {
    let limit = Duration::from_millis(50);
    let parts = patient(Mode::new(Check::Checked, 1), 1, limit);
    parts.ranks.begin();
    assert_eq!(parts.ranks.queues[0].synchronize(LIMIT), Ok(true));
    parts.launch(part.instance("_waits"), 0, (1, 1, 0));
    parts.wait_for_host_word();
    let end = Instant::now() + 4 * limit;
    while Instant::now() < end {}
    let second = parts.ranks.queues[0].device().create_queue();
    launch_kernel(&second, part.instance("_tells").unwrap(), (1, 1, 0), &parts.args(0));
    assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
}

#[test]
fn who_asks_all_the_time_what_everything_waits_for_hides_no_deadlock() {
    let limit = Duration::from_millis(100);
    let parts = patient(Mode::new(Check::Checked, 1), 1, limit);
    parts.launch(part.instance("_waits"), 0, (1, 1, 0));
    parts.ranks.begin();
    let device = parts.ranks.queues[0].device().clone();
    let end = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                device.waiting_report();
                std::thread::sleep(limit / 10);
            }
        });
        let found = parts.ranks.queues[0].synchronize(Some(Duration::from_secs(20)));
        end.store(true, Ordering::Relaxed);
        found
    });
    assert!(found.is_err(), "{found:?}");
    let finding = parts.ranks.finish().expect("a deadlock");
    assert_eq!(finding.kind, FindingKind::Deadlock, "{finding}");
}

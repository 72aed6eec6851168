//! Host threads that come at other times: the run of a seed stays what it is.

use std::time::Duration;

use mscclrs_device::{Relaxed, Release, Sys, WaitKind, block_idx, poll_acquire, thread_idx};
use mscclrs_sim::{Check, DeviceConfig, Mode, Schedule, TestMemory};

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
    Adds "_adds" = |args| {
        (0..LONG).for_each(|_| {
            args.memory.at(128).fetch_add(Relaxed, Sys, 1);
        });
    }
}

/// One of each rank, the second rank's so much after the first has begun.
fn run(mode: Mode, names: [&str; 2], blocks: u32, late: Duration) -> (u64, u64) {
    let config = DeviceConfig { deadlock: Some(Duration::from_secs(20)), ..Default::default() };
    let ranks = Ranks::with(mode, 2, config);
    let (memory, host) = (TestMemory::new(8 * 192), TestMemory::of_host(16));
    ranks.upload(0, &memory, &[0; 192]);
    let parts = Parts { ranks, memory, host };
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
fn what_comes_while_lanes_run_begins_after_them() {
    let mode = Mode { check: Check::Checked, seed: 5, schedule: Some(Schedule::Random) };
    // Lanes run for longer than the first two.
    let late = [0, 20, 1000].map(Duration::from_millis);
    let sums = late.map(|late| run(mode.clone(), ["_works", "_adds"], 8, late));
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0], sums[2]);
}

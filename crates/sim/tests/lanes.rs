//! Lanes, blocks and places: what a launch does by itself.

mod common;

use std::time::{Duration, Instant};

use common::{MODULE, Way, Words, device, device_with, finish, launch};
use mscclrs_device::{
    Global, Guard, Relaxed, Sys, WaitKind, arch, ballot, block_dim, block_idx, block_sync,
    grid_dim, kernel_args, kernels, lane, poll, shuffle_xor, thread_idx, warp_sync,
};
use mscclrs_sim::DeviceConfig;

kernel_args! {
    /// Words to write.
    pub struct Data {
        /// One word a lane.
        pub data: Global<u32>,
    }
}

kernel_args! {
    /// A word to wait for.
    pub struct Wait {
        /// Ends the wait.
        pub guard: Guard,
        /// The word.
        pub word: Global<u64>,
        /// What it becomes.
        pub value: u64,
        /// Counts blocks that came.
        pub came: Global<u64>,
    }
}

kernels! {
    module = MODULE;

    /// Each lane writes where it is.
    pub fn where_am_i<>(args: Data) threads 1024 for { "" = <> } {
        let at = block_idx() * block_dim() + thread_idx();
        args.data.at(at).store(block_idx() << 16 | thread_idx() | grid_dim() << 24);
        Ok(())
    }

    /// Odd lanes leave; the others still meet, ten times.
    pub fn early_exits<>(args: Data) threads 1024 for { "" = <> } {
        if thread_idx() % 2 == 1 {
            return Ok(());
        }
        let mut round = 0;
        while round < 10 {
            args.data.at(thread_idx()).store(round + 1);
            block_sync();
            let other = args.data.at((thread_idx() + 2) % block_dim()).load();
            assert_eq!(other, round + 1);
            block_sync();
            round += 1;
        }
        Ok(())
    }

    /// A reversal through shared memory.
    pub fn reverse<>(args: Data) threads 1024 for { "" = <> } {
        let base = arch::shared_base();
        arch::shared_store(base + 4 * thread_idx(), thread_idx() + 100 * block_idx());
        block_sync();
        let value = arch::shared_load(base + 4 * (block_dim() - 1 - thread_idx()));
        args.data.at(block_idx() * block_dim() + thread_idx()).store(value);
        Ok(())
    }

    /// Butterflies over whole and half warps, votes, and lanes that left.
    pub fn warps<>(args: Data) threads 1024 for { "" = <> } {
        let mut sum = thread_idx();
        let mut mask = 1;
        while mask < 32 {
            sum += shuffle_xor(u32::MAX, sum, mask);
            mask *= 2;
        }
        let half = if lane() < 16 { 0xffff } else { 0xffff_0000 };
        let neighbour = shuffle_xor(half, thread_idx(), 1);
        let votes = ballot(u32::MAX, lane().is_multiple_of(3));
        warp_sync(u32::MAX);
        if lane() == 31 {
            return Ok(());
        }
        let left = ballot(u32::MAX, true);
        let ok = neighbour == (thread_idx() ^ 1) && votes == 0x4924_9249 && left == u32::MAX >> 1;
        args.data.at(thread_idx()).store(if ok { sum } else { 0 });
        Ok(())
    }

    /// Counts itself, then waits for the word.
    pub fn wait_for<>(args: Wait) threads 1024 for { "" = <> } {
        if thread_idx() == 0 {
            args.came.fetch_add(Relaxed, Sys, 1);
        }
        let value = args.value;
        poll(&args.guard, args.word, value, WaitKind::EpochFlag, 1, |seen| seen == value)?;
        Ok(())
    }

    /// Waits for the word, then writes behind the count how many have come.
    pub fn look_at<>(args: Wait) threads 1024 for { "" = <> } {
        let value = args.value;
        poll(&args.guard, args.word, value, WaitKind::EpochFlag, 1, |seen| seen == value)?;
        if thread_idx() == 0 {
            let came = args.came.load_atomic(Relaxed, Sys);
            args.came.at(1).store_atomic(Relaxed, Sys, came);
        }
        Ok(())
    }

    /// One lane panics while others wait for it.
    pub fn panics<>(args: Data) threads 1024 for { "" = <> } {
        let _ = args;
        if thread_idx() == 5 {
            panic!("lane five is broken");
        }
        block_sync();
        Ok(())
    }

    /// Lanes of a warp that do not agree on who meets.
    pub fn disagree<>(args: Data) threads 1024 for { "" = <> } {
        let _ = args;
        ballot(if lane() == 0 { 1 << 1 | 1 } else { u32::MAX }, true);
        Ok(())
    }

    /// Lanes of a warp that do not do the same.
    pub fn mix_operations<>(args: Data) threads 1024 for { "" = <> } {
        let _ = args;
        if lane() < 16 {
            ballot(u32::MAX, true);
        } else {
            warp_sync(u32::MAX);
        }
        Ok(())
    }

    /// Has as much on its stack as code has that is not optimised.
    pub fn large_frame<>(args: Data) threads 1024 for { "" = <> } {
        let frame = core::hint::black_box([1_u8; 128 * 1024]);
        args.data.store(frame[thread_idx() as usize].into());
        Ok(())
    }

    /// Does nothing.
    pub fn nothing<>(args: Data) threads 1024 for { "" = <> } {
        let _ = args;
        Ok(())
    }

    /// Made for more lanes than any GPU takes.
    pub fn wide<>(args: Data) threads 4096 for { "" = <> } {
        let _ = args;
        Ok(())
    }
}

#[test]
fn lanes_know_where_they_are() {
    let (device, data) = (device(2, 64), Words::new(256));
    let queue = device.create_queue();
    launch(&queue, &where_am_i, (5, 48, 0), &Data { data: data.global() });
    finish(&queue);
    for block in 0..5 {
        for thread in 0..48 {
            let found = data.get_u32((block * 48 + thread) as usize);
            assert_eq!(found, block << 16 | thread | 5 << 24);
        }
    }
}

#[test]
fn barriers_count_lanes_that_left_as_arrived() {
    let (device, data) = (device(1, 256), Words::new(128));
    let queue = device.create_queue();
    launch(&queue, &early_exits, (1, 256, 0), &Data { data: data.global() });
    finish(&queue);
    assert_eq!(data.get_u32(254), 10);
}

#[test]
fn shared_memory_belongs_to_a_block() {
    let (device, data) = (device(2, 128), Words::new(256));
    let queue = device.create_queue();
    launch(&queue, &reverse, (4, 128, 512), &Data { data: data.global() });
    finish(&queue);
    for block in 0..4 {
        for thread in 0..128 {
            let found = data.get_u32((block * 128 + thread) as usize);
            assert_eq!(found, 127 - thread + 100 * block);
        }
    }
}

#[test]
fn warps_exchange_and_vote() {
    let (device, data) = (device(1, 64), Words::new(32));
    let queue = device.create_queue();
    launch(&queue, &warps, (1, 64, 0), &Data { data: data.global() });
    finish(&queue);
    for thread in (0..64).filter(|thread| thread % 32 != 31) {
        let warp = thread / 32;
        assert_eq!(data.get_u32(thread as usize), 496 + 1024 * warp, "lane {thread}");
    }
}

#[test]
fn more_blocks_than_places_run_in_turn() {
    let (device, data, way) = (device(2, 64), Words::new(2), Way::new());
    let queue = device.create_queue();
    let guard = way.guard(Duration::from_secs(30));
    let args = Wait { guard, word: data.global(), value: 1, came: data.global::<u64>().at(1) };
    launch(&queue, &wait_for, (9, 64, 0), &args);
    wait_until(|| data.get(1) == 2);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(data.get(1), 2, "only two blocks are resident");
    let report = device.waiting_report().expect("an answer");
    assert_eq!(report.rows.len(), 2);
    assert_eq!(report.rows[0].lanes, 64);
    assert_eq!(report.not_resident, [("wait_for", 7, 9)]);
    data.set(0, 1);
    finish(&queue);
    assert_eq!(data.get(1), 9);
}

#[test]
fn queues_share_the_places() {
    let (device, data, way) = (device(2, 32), Words::new(4), Way::new());
    let (first, second) = (device.create_queue(), device.create_queue());
    let guard = way.guard(Duration::from_secs(30));
    let args = Wait { guard, word: data.global(), value: 1, came: data.global::<u64>().at(1) };
    // The first fills the device with blocks that end at once when the word is there, which is when both
    // have been sent, however late this thread runs; the second gets places meanwhile.
    launch(&first, &wait_for, (2000, 32, 0), &args);
    launch(&second, &look_at, (1, 32, 0), &args);
    wait_until(|| data.get(1) > 0);
    data.set(0, 1);
    finish(&second);
    finish(&first);
    assert_eq!(data.get(1), 2000);
    assert!(data.get(2) < 2000, "the second waited for the whole first");
}

#[test]
fn a_queue_runs_in_order() {
    let (device, data, way) = (device(4, 64), Words::new(3), Way::new());
    let queue = device.create_queue();
    let guard = way.guard(Duration::from_secs(30));
    let args = Wait { guard, word: data.global(), value: 1, came: data.global::<u64>().at(1) };
    launch(&queue, &wait_for, (1, 32, 0), &args);
    launch(&queue, &wait_for, (1, 32, 0), &args);
    wait_until(|| data.get(1) == 1);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(data.get(1), 1);
    assert!(!queue.is_idle());
    data.set(0, 1);
    finish(&queue);
    assert_eq!(data.get(1), 2);
}

#[test]
fn a_lane_that_panics_stops_its_queue_only() {
    let (device, data) = (device(4, 64), Words::new(32));
    let (bad, good) = (device.create_queue(), device.create_queue());
    launch(&bad, &panics, (3, 64, 0), &Data { data: data.global() });
    let error = bad.synchronize(common::LIMIT).expect_err("it panicked");
    assert!(error.report.contains("lane 5 of block 0 of kernel panics"), "{error}");
    assert!(error.report.contains("lane five is broken"), "{error}");
    launch(&bad, &where_am_i, (1, 32, 0), &Data { data: data.global() });
    assert_eq!(bad.synchronize(common::LIMIT), Err(error));
    assert_eq!(data.get_u32(0), 0, "a stopped queue runs nothing");
    launch(&good, &where_am_i, (1, 32, 0), &Data { data: data.global() });
    finish(&good);
    assert_eq!(data.get_u32(1), 1 | 1 << 24);
}

#[test]
fn lanes_that_disagree_about_a_warp_are_told() {
    let device = device(1, 32);
    let queue = device.create_queue();
    launch(&queue, &disagree, (1, 32, 0), &Data { data: Global::null() });
    let error = queue.synchronize(common::LIMIT).expect_err("masks differ");
    assert!(error.report.contains("different masks"), "{error}");
}

#[test]
fn lanes_of_a_warp_that_do_not_do_the_same_are_told_what_they_do() {
    let device = device(1, 32);
    let queue = device.create_queue();
    launch(&queue, &mix_operations, (1, 32, 0), &Data { data: Global::null() });
    let error = queue.synchronize(common::LIMIT).expect_err("operations differ");
    let text = "lane 0 with ballot, lane 16 with warp_sync";
    assert!(error.report.contains(text) && !error.report.contains("masks"), "{error}");
}

#[test]
fn a_lane_has_room_for_code_that_is_not_optimised() {
    let device = device(1, 32);
    let queue = device.create_queue();
    let data = Words::new(1);
    launch(&queue, &large_frame, (1, 1, 0), &Data { data: data.global() });
    assert_eq!(queue.synchronize(common::LIMIT), Ok(true));
}

#[test]
fn a_launch_that_cannot_run_is_refused() {
    let config = DeviceConfig::default();
    let kernel = nothing.instance("").expect("an instance");
    let refused = |blocks, threads, shared, bytes: usize| {
        let args = vec![0; bytes];
        // SAFETY: never run.
        let launch =
            unsafe { mscclrs_sim::Launch::new(kernel, blocks, threads, shared, &args, &config) };
        launch.err().map(|error| error.what)
    };
    assert_eq!(refused(1, 256, 0, 8), None);
    assert_eq!(refused(0, 256, 0, 8), Some("number of blocks"));
    assert_eq!(refused(1, 257, 0, 8), Some("threads a block"));
    assert_eq!(refused(1, 0, 0, 8), Some("threads a block"));
    assert_eq!(refused(1, 32, 50_000, 8), Some("shared memory a block"));
    assert_eq!(refused(1, 32, 0, 4), Some("bytes of arguments"));
    // A kernel and a device that could have more than any GPU.
    let kernel = wide.instance("").expect("an instance");
    let large = DeviceConfig { threads: 4096, ..config.clone() };
    let refused = |threads| {
        // SAFETY: never run.
        let launch = unsafe { mscclrs_sim::Launch::new(kernel, 1, threads, 0, &[0; 8], &large) };
        launch.err().map(|error| error.what)
    };
    assert_eq!((refused(1024), refused(1025)), (None, Some("threads a block")));
    assert_eq!(config.resident_blocks(100, 0), 8);
    assert_eq!(config.resident_blocks(32, 40_000), 4);
}

#[test]
fn an_idle_device_uses_no_time() {
    let device = device_with(DeviceConfig { ordinal: 77, ..Default::default() });
    let queue = device.create_queue();
    launch(&queue, &nothing, (1, 32, 0), &Data { data: Global::null() });
    finish(&queue);
    std::thread::sleep(Duration::from_millis(20));
    let before = thread_switches("mscclrs-cpu-77");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(thread_switches("mscclrs-cpu-77"), before);
}

fn thread_switches(name: &str) -> String {
    for entry in std::fs::read_dir("/proc/self/task").expect("/proc").flatten() {
        let path = entry.path();
        if std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name) {
            let status = std::fs::read_to_string(path.join("status")).expect("status");
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
            return line.expect("a count").to_owned();
        }
    }
    panic!("no thread {name}");
}

fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing happened");
        std::thread::sleep(Duration::from_millis(1));
    }
}

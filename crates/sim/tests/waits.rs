//! Waits for memory: between devices, queues and the host, and how each of them ends.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{LIMIT, MODULE, Way, Words, device, device_with, finish, launch};
use mscclrs_device::{
    Acquire, Global, Guard, Release, Sys, WaitKind, arch, block_idx, block_sync, kernel_args,
    kernels, poll, poll_acquire, thread_idx,
};
use mscclrs_sim::{DeviceConfig, Graph, Node, Point, Work};

kernel_args! {
    /// One side of a ping-pong.
    pub struct Hops {
        /// Ends the waits.
        pub guard: Guard,
        /// Written by the other side.
        pub mine: Global<u64>,
        /// Written by this side.
        pub theirs: Global<u64>,
        /// Hops.
        pub hops: u64,
        /// 1: this side begins.
        pub first: u64,
    }
}

kernel_args! {
    /// Words to wait for.
    pub struct Hang {
        /// Ends the wait.
        pub guard: Guard,
        /// Never written.
        pub word: Global<u64>,
    }
}

kernels! {
    module = MODULE;

    /// Lane 0 of each block plays, the others wait at a barrier.
    pub fn ping_pong<>(args: Hops) threads 1024 for { "" = <> } {
        let mut hop = 0;
        let (mine, theirs) = (args.mine.at(block_idx()), args.theirs.at(block_idx()));
        while hop < args.hops {
            if thread_idx() == 0 {
                if args.first == 1 {
                    theirs.store_atomic(Release, Sys, hop + 1);
                }
                let want = hop + 1;
                poll_acquire(&args.guard, mine, want, WaitKind::Semaphore, 1, |seen| seen >= want)?;
                if args.first == 0 {
                    theirs.store_atomic(Release, Sys, hop + 1);
                }
            }
            block_sync();
            hop += 1;
        }
        Ok(())
    }

    /// Waits for what does not come.
    pub fn hang<>(args: Hang) threads 1024 for { "" = <> } {
        if thread_idx() % 2 == 1 {
            block_sync();
        }
        poll(&args.guard, args.word, 9, WaitKind::Packet, 3, |seen| seen == 9)?;
        Ok(())
    }

    /// Waits for the word with no guard at all.
    pub fn wait_bare<>(args: Hang) threads 1024 for { "" = <> } {
        while args.word.load_atomic(Acquire, Sys) == 0 {
            arch::spin(args.word.raw(), 0, std::ptr::null(), "bare flag");
        }
        Ok(())
    }
}

fn play(a: &mscclrs_sim::Queue, b: &mscclrs_sim::Queue, hops: u64, grid: (u32, u32, u32)) {
    let (words, way) = (Words::new(256), Way::new());
    let guard = way.guard(Duration::from_secs(20));
    let side = |mine, theirs, first| Hops {
        guard,
        mine: words.global::<u64>().at(mine),
        theirs: words.global::<u64>().at(theirs),
        hops,
        first,
    };
    launch(a, &ping_pong, grid, &side(0, 128, 1));
    launch(b, &ping_pong, grid, &side(128, 0, 0));
    finish(a);
    finish(b);
    assert_eq!(way.record().valid, 0);
    assert_eq!(words.get(0), hops);
}

#[test]
fn two_devices_play_ping_pong() {
    let (a, b) = (device(4, 256), device(4, 256));
    play(&a.create_queue(), &b.create_queue(), 2000, (2, 64, 0));
}

#[test]
fn two_queues_of_one_device_play_ping_pong() {
    let device = device(4, 256);
    play(&device.create_queue(), &device.create_queue(), 2000, (2, 256, 0));
}

#[test]
fn an_abort_word_ends_a_wait() {
    let (device, words, way) = (device(4, 256), Words::new(1), Way::new());
    let queue = device.create_queue();
    let guard = way.guard(Duration::ZERO);
    launch(&queue, &hang, (3, 128, 0), &Hang { guard, word: words.global() });
    assert_eq!(queue.synchronize(Some(Duration::from_millis(30))), Ok(false));
    let start = Instant::now();
    way.abort();
    finish(&queue);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let record = way.record();
    assert_eq!((record.valid, record.cause, record.peer, record.launch), (1, 1, 3, 7));
    assert_eq!(record.address, words.global::<u64>().address());
}

#[test]
fn a_deadline_ends_a_wait() {
    let (device, words, way) = (device(4, 256), Words::new(1), Way::new());
    let queue = device.create_queue();
    let guard = way.guard(Duration::from_millis(40));
    let start = Instant::now();
    launch(&queue, &hang, (1, 128, 0), &Hang { guard, word: words.global() });
    finish(&queue);
    assert!(start.elapsed() >= Duration::from_millis(40));
    let record = way.record();
    assert_eq!((record.valid, record.cause, record.expected), (1, 2, 9));
}

#[test]
fn a_report_says_who_waits_for_what() {
    let (device, words, way) = (device(4, 256), Words::new(1), Way::new());
    let queue = device.create_queue();
    let guard = way.guard(Duration::ZERO);
    launch(&queue, &hang, (2, 64, 0), &Hang { guard, word: words.global() });
    assert_eq!(queue.synchronize(Some(Duration::from_millis(30))), Ok(false));
    let report = device.waiting_report().expect("an answer");
    // Of each block, 32 lanes at the barrier and 32 at the word.
    assert_eq!(report.rows.len(), 4, "{report}");
    let row = report.rows.iter().find(|row| row.address != 0).expect("a wait for a word");
    assert_eq!((row.kernel, row.what, row.lanes, row.lane), ("hang", "packet", 32, 0));
    assert_eq!(row.address, words.global::<u64>().address());
    assert!(row.line.contains("waits.rs"), "{}", row.line);
    assert!(report.to_string().contains("32 lanes"), "{report}");
    assert!(mscclrs_sim::waiting_reports().contains(&report));
    way.abort();
    finish(&queue);
    assert!(device.waiting_report().expect("an answer").is_empty());
}

#[test]
fn a_limit_stops_kernels_that_wait_for_each_other() {
    let deadlock = Some(Duration::from_millis(300));
    let device = device_with(DeviceConfig { deadlock, ..Default::default() });
    let (words, queue) = (Words::new(1), device.create_queue());
    let guard = Way::new().guard(Duration::ZERO);
    launch(&queue, &wait_bare, (2, 32, 0), &Hang { guard, word: words.global() });
    let error = queue.synchronize(LIMIT).expect_err("a deadlock");
    assert!(error.report.contains("nothing happened for 300 ms"), "{error}");
    assert!(error.report.contains("bare flag"), "{error}");
}

#[test]
fn work_of_a_dropped_device_ends() {
    let words = Words::new(1);
    words.set(0, 0);
    let held = Arc::new(());
    let device = device(1, 32);
    let queue = device.create_queue();
    let guard = Way::new().guard(Duration::ZERO);
    launch(&queue, &wait_bare, (1, 32, 0), &Hang { guard, word: words.global() });
    mscclrs_sim::release_after_work(held.clone());
    drop((queue, device));
    std::thread::sleep(Duration::from_millis(20));
    assert!(Arc::strong_count(&held) >= 2, "memory is not freed under a kernel");
    words.set(0, 1);
    let start = Instant::now();
    while Arc::strong_count(&held) > 1 {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn points_order_queues_of_two_devices() {
    let (a, b) = (device(1, 32), device(1, 32));
    let (first, second) = (a.create_queue(), b.create_queue());
    let (words, point) = (Words::new(1), Point::new());
    second.wait_for(point.clone());
    let seen = Arc::new(AtomicU32::new(0));
    let at = seen.clone();
    second.call(Box::new(move || at.store(1, Ordering::Release)));
    let guard = Way::new().guard(Duration::ZERO);
    launch(&first, &wait_bare, (1, 32, 0), &Hang { guard, word: words.global() });
    first.record(point.clone());
    assert_eq!(point.wait(Some(Duration::from_millis(20))), Ok(false));
    assert!(!second.is_idle());
    assert_eq!(seen.load(Ordering::Acquire), 0);
    words.set(0, 1);
    finish(&second);
    assert!(point.is_passed() && point.passed_at().is_some());
    assert_eq!(seen.load(Ordering::Acquire), 1);
}

#[test]
fn branches_of_a_graph_run_at_the_same_time() {
    let (device, words, way) = (device(4, 256), Words::new(3), Way::new());
    let queue = device.create_queue();
    let guard = way.guard(Duration::from_secs(20));
    let (a, b) = (words.global::<u64>(), words.global::<u64>().at(1));
    let side = |mine, theirs, first| {
        let args = Hops { guard, mine, theirs, hops: 100, first };
        // SAFETY: plain data.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const args).cast::<u8>(), size_of::<Hops>())
        };
        let kernel = ping_pong.instance("").expect("an instance");
        // SAFETY: the words outlive the graph.
        unsafe { mscclrs_sim::Launch::new(kernel, 1, 32, 0, bytes, device.config()) }
    };
    let node = |work, after: &[u32]| Node { work, after: after.into() };
    let address = words.global::<u64>().address();
    let held = Arc::new(());
    let nodes = vec![
        node(Work::Fill { to: address, byte: 0, bytes: 16 }, &[]),
        node(Work::Launch(side(a, b, 1).expect("valid")), &[0]),
        node(Work::Launch(side(b, a, 0).expect("valid")), &[0]),
        node(Work::Copy { to: address + 16, from: address, bytes: 8 }, &[1, 2]),
    ];
    // SAFETY: the words outlive the graph.
    let graph = Arc::new(unsafe { Graph::new(nodes, vec![held.clone()]) });
    for _ in 0..3 {
        queue.run(graph.clone());
    }
    drop(graph);
    finish(&queue);
    assert_eq!((way.record().valid, words.get(2)), (0, 100));
    let start = Instant::now();
    while Arc::strong_count(&held) > 1 {
        assert!(start.elapsed() < Duration::from_secs(10), "the graph is gone");
        std::thread::sleep(Duration::from_millis(1));
    }
}

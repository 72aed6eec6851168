//! A world that runs for long holds no more memory than one that has run for a while.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod common;

use common::{LIMIT, MODULE};
use mscclrs_device::arch::{shared_load, shared_store};
use mscclrs_device::{
    Global, Gpu, Relaxed, Release, block_idx, block_sync, kernel_args, kernels, thread_idx,
};
use mscclrs_sim::{Check, DeviceConfig, Graph, Mode, Point, TestMemory, Work, World};

/// Launches of a round, and rounds before and after which memory is looked at.
const LAUNCHES: u32 = 20;
const WARM: u32 = 20;
const ROUNDS: u32 = 60;
const BLOCKS: u32 = 2;
const SHARED: u32 = 1024;
/// Bytes that all rounds may add: some a block of each launch, and what the allocator does.
const MOST: u64 = 4 << 20;

kernel_args! {
    pub struct GrowthArgs {
        pub memory: Global<u64>,
    }
}

kernels! {
    module = MODULE;
    pub fn busy<>(args: GrowthArgs) threads 64 for { "" = <> } {
        let lane = thread_idx();
        let own = args.memory.at(64 * block_idx() + lane);
        shared_store(4 * lane, own.load() as u32);
        block_sync();
        own.store(u64::from(shared_load(4 * (lane ^ 1))) + 1);
        if lane == 0 {
            args.memory.at(128 + block_idx()).store_atomic(Release, Gpu, 1);
            args.memory.at(130).fetch_add(Relaxed, Gpu, 1);
        }
        Ok(())
    }

    pub fn idle<>(args: GrowthArgs) threads 64 for { "" = <> } {
        args.memory.at(64 * block_idx() + thread_idx()).fetch_add(Relaxed, Gpu, 1);
        Ok(())
    }
}

/// Bytes that this process has in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Some launches on two streams of their own, in memory of their own, with blocks of ever other sizes.
fn round(world: &World, device: &std::sync::Arc<mscclrs_sim::Device>, nth: u32) {
    for stream in 0..2 {
        let memory = TestMemory::new(8 * 131);
        let args = GrowthArgs { memory: Global::from_address(memory.address()) };
        let queue = device.create_queue();
        let fill = Work::Fill { to: memory.address(), byte: 0, bytes: 8 * 131 };
        // SAFETY: the memory outlives the work, which is waited for below.
        queue.run(std::sync::Arc::new(unsafe { Graph::single(fill) }));
        for launch in 0..LAUNCHES {
            let lanes = 2 * (1 + (7 * nth + 11 * stream + launch) % 32);
            common::launch(&queue, &busy, (BLOCKS, lanes, SHARED), &args);
        }
        assert_eq!(queue.synchronize(LIMIT), Ok(true));
    }
    assert_eq!(world.finding().unwrap().map(|finding| finding.to_string()), None);
}

#[test]
fn a_world_does_not_grow_by_what_it_ran() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        let world = World::start(Mode::new(check, 1), false).unwrap();
        let device = world.device(DeviceConfig::default());
        (0..WARM).for_each(|nth| round(&world, &device, nth));
        let before = resident();
        (0..ROUNDS).for_each(|nth| round(&world, &device, nth));
        let grown = resident().saturating_sub(before);
        println!("{check:?}: {grown} bytes by {} launches", 2 * LAUNCHES * ROUNDS);
        assert!(grown < MOST, "{check:?}: {grown} bytes by {} launches", 2 * LAUNCHES * ROUNDS);
    }
}

#[test]
fn queues_that_hosts_wait_for_by_points_hold_little() {
    // Many slots, and many queues that know of all of them.
    let world = World::start(Mode::new(Check::Checked, 1), false).unwrap();
    let device = world.device(DeviceConfig { multiprocessors: 64, ..Default::default() });
    let queues: Vec<_> = (0..16).map(|_| device.create_queue()).collect();
    let memory = TestMemory::new(8 * 64 * 64);
    let args = GrowthArgs { memory: Global::from_address(memory.address()) };
    let fill = Work::Fill { to: memory.address(), byte: 0, bytes: 8 * 64 * 64 };
    // SAFETY: the memory outlives the work, which is waited for below.
    let filled = queues[0].run(std::sync::Arc::new(unsafe { Graph::single(fill) }));
    assert_eq!(queues[0].wait(filled, LIMIT), Ok(true));
    let begin = |queue: &mscclrs_sim::Queue, blocks| {
        common::launch(queue, &idle, (blocks, 64, 0), &args);
        let point = Point::new();
        queue.record(point.clone());
        point
    };
    let round = |blocks| {
        let points: Vec<_> = queues.iter().map(|queue| begin(queue, blocks)).collect();
        points.iter().for_each(|point| assert_eq!(point.wait(LIMIT), Ok(true)));
    };
    round(64);
    (0..5).for_each(|_| round(1));
    let before = resident();
    (0..60).for_each(|_| round(1));
    let grown = resident().saturating_sub(before);
    println!("{grown} bytes");
    assert!(grown < 10 * MOST, "{grown} bytes");
    assert_eq!(world.finding().unwrap().map(|finding| finding.to_string()), None);
}

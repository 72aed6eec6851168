//! What communicators take they give back. Alone in its binary: it counts the process's own things.
#![allow(clippy::unwrap_used)]

mod common;

use common::on_ranks;
use mscclrs_gpu::MemoryKind;

fn round() {
    on_ranks(2, |rank| {
        let peer = 1 - rank.rank();
        let regions = rank.comm.create_regions(&[4096, 100]).unwrap();
        let symmetric = rank.comm.alloc(1 << 16).unwrap();
        let plain = rank.comm.device().alloc(4096, MemoryKind::Plain).unwrap();
        let registration = rank.comm.register(&plain).unwrap();
        let data = rank.buffer(4096);
        let channel = rank.channel(peer, &data);
        rank.launch_semaphore("send_signals", channel.semaphore(), 1).unwrap();
        rank.launch_semaphore("wait_signals", channel.semaphore(), 1).unwrap();
        rank.synchronize().unwrap();
        rank.comm.bootstrap().barrier().unwrap();
        drop((regions, symmetric, registration));
    });
}

/// Open descriptors, threads, mappings, and KiB resident.
fn usage() -> [usize; 4] {
    let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = resident.trim().trim_end_matches(" kB").parse().unwrap();
    // Only mappings of files: the allocator's own come and go.
    let maps = maps.lines().filter(|line| line.contains("memfd:")).count();
    [entries("/proc/self/fd"), entries("/proc/self/task"), maps, resident]
}

/// Devices end on threads of their own, a moment after the last use.
fn settled() -> [usize; 4] {
    let mut before = usage();
    loop {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let now = usage();
        if now[..3] == before[..3] {
            return now;
        }
        before = now;
    }
}

#[test]
fn two_hundred_rounds_give_everything_back() {
    for _ in 0..20 {
        round();
    }
    let before = settled();
    for _ in 0..200 {
        round();
    }
    let after = settled();
    assert_eq!(before[..3], after[..3], "descriptors, threads, mappings");
    assert!(after[3] < before[3] + 16 * 1024, "{} KiB became {}", before[3], after[3]);
}

//! Waits that end early: others go on without what these would have brought, and that is no fault.

use mscclrs_device::arch::{shared_load, shared_store};
use mscclrs_device::{Relaxed, Release, Sys, WaitKind, block_sync, poll_acquire, thread_idx};
use mscclrs_sim::{Check, FindingKind, Mode};

use crate::parts::{Parts, parts};

parts! {
    // Lane 0 waits for a peer that does not come.
    InABlock "_in_a_block" = |args| {
        let lane = thread_idx();
        args.memory.at(2 + lane).store(1);
        if lane == 0 {
            poll_acquire(&args.guard, args.memory, 1, WaitKind::Semaphore, 1, |word| word == 1)?;
            shared_store(0, 7);
        }
        block_sync();
        let sum = u64::from(shared_load(0)) + args.memory.at(2 + (lane + 1) % 32).load();
        args.memory.at(64 + lane).store(sum);
    }
    // Rank 0 tells rank 1 of what its lane 0 did not write.
    AmongRanks "_among_ranks" = |args| {
        let lane = thread_idx();
        if args.rank == 0 {
            if lane == 0 {
                poll_acquire(&args.guard, args.memory, 1, WaitKind::Semaphore, 1, |word| word == 1)?;
            }
            args.memory.at(128 + lane).store(1);
            block_sync();
            if lane == 1 {
                args.memory.at(1).store_atomic(Release, Sys, 1);
            }
        } else {
            let flag = args.memory.at(1);
            while flag.load_atomic(Relaxed, Sys) == 0 {}
            flag.load_atomic(mscclrs_device::Acquire, Sys);
            args.memory.at(64 + lane).store(args.memory.at(128 + lane).load());
        }
    }
    Race "_race" = |args| {
        args.memory.at(200).store(u64::from(thread_idx()));
    }
}

fn parts(seed: u64, devices: u32) -> Parts {
    let ranks = crate::world::Ranks::new(Mode::new(Check::Checked, seed), devices);
    let memory = mscclrs_sim::TestMemory::new(8 * 256);
    ranks.upload(0, &memory, &[0; 2]);
    Parts { ranks, memory, host: mscclrs_sim::TestMemory::of_host(16) }
}

#[test]
fn what_an_aborted_wait_would_have_brought_is_not_missed() {
    for seed in 0..20 {
        for (name, devices) in [("_in_a_block", 1), ("_among_ranks", 2)] {
            let parts = parts(seed, devices);
            parts.ranks.abort();
            for rank in 0..u64::from(devices) {
                parts.launch(part.instance(name), rank, (1, 32, 16));
            }
            let finding = parts.ranks.finish();
            assert_eq!(finding.map(|finding| finding.to_string()), None, "{name}, seed {seed}");
        }
    }
}

#[test]
fn faults_of_what_comes_after_an_aborted_launch_are_found() {
    let parts = parts(1, 1);
    parts.ranks.abort();
    parts.launch(part.instance("_in_a_block"), 0, (1, 32, 16));
    parts.launch(part.instance("_race"), 0, (1, 32, 16));
    assert_eq!(parts.ranks.finish().expect("a race").kind, FindingKind::Race);
}

//! Waits that end early: others go on without what these would have brought, and that is no fault.

use mscclrs_device::arch::{shared_load, shared_store, warp_sync};
use mscclrs_device::{
    Aborted, DeviceResult, Epochs, Guard, Relaxed, Release, Sys, WaitKind, block_sync,
    poll_acquire, thread_idx,
};
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
    // A lane that leaves its block behind says no more than that it has ended.
    LeavesWell "_leaves_well" = |args| {
        if thread_idx() == 0 && came(&args.guard, args.memory).is_err() {
            return Ok(());
        }
        block_sync();
        warp_sync(u32::MAX);
    }
    // Rank 1 writes what rank 0 waits for, and does not tell it.
    LooksFirst "_looks_first" = |args| {
        if args.rank == 0 {
            let came = came(&args.guard, args.memory);
            // The first races, and nothing has written the second.
            let sum = args.memory.at(128).load() + args.memory.at(129).load();
            args.memory.at(64 + thread_idx()).store(sum);
            came?;
        } else if thread_idx() == 0 {
            args.memory.at(128).store(1);
        }
    }
    AsksTheGuard "_asks_the_guard" = |args| {
        if args.guard.has_ended() {
            args.memory.at(64).store(args.memory.at(129).load());
            return Err(Aborted);
        }
        panic!("a wait before has ended early");
    }
    AsksTheEpochs "_asks_the_epochs" = |args| {
        if Epochs(args.memory).begin(&args.guard).ended {
            args.memory.at(64).store(args.memory.at(129).load());
            return Err(Aborted);
        }
        panic!("a wait before has ended early");
    }
    // These say that a wait has ended early, and none has.
    RacesAndErrs "_races_and_errs" = |args| {
        args.memory.at(200).store(u64::from(thread_idx()));
        return Err(Aborted);
    }
    ReadsAndErrs "_reads_and_errs" = |args| {
        if thread_idx() > 0 {
            args.memory.at(64 + thread_idx()).store(args.memory.at(129).load());
        }
        return Err(Aborted);
    }
    LeavesABarrier "_leaves_a_barrier" = |_args| {
        if thread_idx() == 3 {
            return Err(Aborted);
        }
        block_sync();
    }
    LeavesAWarp "_leaves_a_warp" = |_args| {
        if thread_idx() == 3 {
            return Err(Aborted);
        }
        warp_sync(u32::MAX);
    }
}

/// Waits for a peer that does not come.
fn came(guard: &Guard, at: mscclrs_device::Global<u64>) -> DeviceResult<u64> {
    poll_acquire(guard, at, 1, WaitKind::Semaphore, 1, |word| word == 1)
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
        let all =
            [("_in_a_block", 1), ("_among_ranks", 2), ("_leaves_well", 1), ("_looks_first", 2)];
        for (name, devices) in all {
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

#[test]
fn who_learns_of_an_earlier_early_end_does_without_what_it_would_have_brought() {
    for seed in 0..20 {
        for name in ["_asks_the_guard", "_asks_the_epochs"] {
            let parts = parts(seed, 1);
            parts.ranks.abort();
            parts.launch(part.instance("_in_a_block"), 0, (1, 32, 16));
            parts.launch(part.instance(name), 0, (1, 1, 0));
            let finding = parts.ranks.finish();
            assert_eq!(finding.map(|finding| finding.to_string()), None, "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_kernel_that_reports_an_early_end_that_was_none_hides_nothing() {
    for seed in 0..40 {
        for (name, kind) in [
            ("_races_and_errs", FindingKind::Race),
            ("_reads_and_errs", FindingKind::Unwritten),
            ("_leaves_a_barrier", FindingKind::MissingLane),
            ("_leaves_a_warp", FindingKind::Warp),
        ] {
            let parts = parts(seed, 1);
            parts.launch(part.instance(name), 0, (1, 32, 16));
            let finding = parts.ranks.finish().map(|finding| finding.kind);
            assert_eq!(finding, Some(kind), "{name}, seed {seed}");
        }
    }
}

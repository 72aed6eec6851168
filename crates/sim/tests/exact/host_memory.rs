//! Flags in host memory: between kernels, and with a host thread that passes them on.

use std::time::Duration;

use mscclrs_device::{Relaxed, Release, Sys, WaitKind, poll_acquire};
use mscclrs_sim::{Check, FindingKind, Mode};

use crate::parts::{Parts, parts};

parts! {
    // Word 0 of host memory says that word 2 of device memory is there.
    Flag "_flag" = |args| {
        if args.rank == 0 {
            args.memory.at(2).store(7);
            args.host.store_atomic(Release, Sys, 1);
        } else {
            poll_acquire(&args.guard, args.host, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
            args.memory.at(4).store(args.memory.at(2).load());
        }
    }
    RelaxedFlag "_relaxed_flag" = |args| {
        if args.rank == 0 {
            args.memory.at(2).store(7);
            args.host.store_atomic(Relaxed, Sys, 1);
        } else {
            poll_acquire(&args.guard, args.host, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
            args.memory.at(4).store(args.memory.at(2).load());
        }
    }
    // The host reads word 0 and writes word 2.
    PassedOn "_passed_on" = |args| {
        if args.rank == 0 {
            args.memory.at(2).store(7);
            args.host.store_atomic(Release, Sys, 1);
        } else {
            let flag = args.host.at(2);
            poll_acquire(&args.guard, flag, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
            args.memory.at(4).store(args.memory.at(2).load());
        }
    }
    // The lane that the host told goes on for a while, so that the next launch comes meanwhile.
    StaysOn "_stays_on" = |args| {
        args.memory.at(2).store(7);
        args.host.store_atomic(Release, Sys, 1);
        let flag = args.host.at(2);
        poll_acquire(&args.guard, flag, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
    }
    Reads "_reads" = |args| {
        args.memory.at(4).store(args.memory.at(2).load());
        args.host.at(2).store_atomic(Release, Sys, 1);
    }
}

#[test]
fn a_flag_in_host_memory_orders_as_any_other() {
    for check in [Check::Checked, Check::Weak] {
        for seed in 0..30 {
            let (finding, memory) =
                Parts::new(Mode::new(check, seed), 2, 8).run(part.instance("_flag"));
            assert_eq!((finding.map(|finding| finding.to_string()), memory.get(4)), (None, 7));
        }
    }
    let run = |seed| {
        Parts::new(Mode::new(Check::Checked, seed), 2, 8).run(part.instance("_relaxed_flag"))
    };
    let finding = (0..30).find_map(|seed| run(seed).0).expect("a race");
    assert_eq!(finding.kind, FindingKind::Race);
    assert!(finding.missing.as_ref().unwrap().starts_with("a release: "), "{finding}");
}

fn patient(mode: Mode, devices: u32) -> Parts {
    let config =
        mscclrs_sim::DeviceConfig { deadlock: Some(Duration::from_secs(20)), ..Default::default() };
    let ranks = crate::world::Ranks::with(mode, devices, config);
    let memory = mscclrs_sim::TestMemory::new(64);
    ranks.upload(0, &memory, &[0; 8]);
    Parts { ranks, memory, host: mscclrs_sim::TestMemory::of_host(64) }
}

#[test]
fn a_host_thread_passes_on_what_it_was_told() {
    for seed in 0..5 {
        let parts = patient(Mode::new(Check::Checked, seed), 2);
        for rank in 0..2 {
            parts.launch(part.instance("_passed_on"), rank, (1, 1, 0));
        }
        parts.ranks.begin();
        parts.wait_for_host_word();
        parts.host.set(2, 1);
        assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
        assert_eq!(parts.memory.get(4), 7);
    }
}

#[test]
fn what_the_host_was_told_comes_before_what_it_launches() {
    for seed in 0..5 {
        let parts = patient(Mode::new(Check::Checked, seed), 2);
        parts.launch(part.instance("_stays_on"), 0, (1, 1, 0));
        parts.ranks.begin();
        parts.wait_for_host_word();
        parts.launch(part.instance("_reads"), 1, (1, 1, 0));
        assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
        assert_eq!(parts.memory.get(4), 7);
    }
}

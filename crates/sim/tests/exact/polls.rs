//! Polls that are endless, and kernels that read much or wait for a lane that was not asked.

use mscclrs_device::arch::{shared_load, shared_store};
use mscclrs_device::{Acquire, Cta, Gpu, Relaxed, Release, global_timer_ns, thread_idx};
use mscclrs_sim::{Check, FindingKind, Mode, Schedule};

use crate::parts::{Parts, parts};

/// Words that are read.
const WORDS: u32 = 1 << 13;

parts! {
    ReadsMuch "_reads_much" = |args| {
        let mut sum = 0;
        for _round in 0..(1_500_000 / WORDS / 4) {
            // One factor for all, as kernels have it.
            (0..WORDS).for_each(|word| sum += args.memory.at(word).load() * args.memory.at(1).load());
        }
        args.memory.at(WORDS + thread_idx()).store(sum);
    }
    HeldLock "_held_lock" = |args| {
        args.memory.compare_exchange(Acquire, Gpu, 0, 1);
        while args.memory.compare_exchange(Acquire, Gpu, 0, 1) != 0 {}
    }
    AddsNothing "_adds_nothing" = |args| {
        while args.memory.fetch_add(Relaxed, Gpu, 0) == 0 {}
    }
    SharedWord "_shared_word" = |_args| {
        shared_store(0, 0);
        while shared_load(0) == 0 {}
    }
    Delays "_delays" = |args| {
        let begun = global_timer_ns();
        while global_timer_ns() - begun < 20_000 {}
        args.memory.at(4).store(7);
    }
    WatchesTheClock "_watches_the_clock" = |_args| {
        while global_timer_ns() < u64::MAX {}
    }
    // The second lane waits for the first without a guard.
    WaitsForOther "_waits_for_other" = |args| {
        if thread_idx() == 0 {
            args.memory.at(2).store(7);
            args.memory.store_atomic(Release, Cta, 1);
        } else {
            while args.memory.load_atomic(Acquire, Cta) == 0 {}
            args.memory.at(4).store(args.memory.at(2).load());
        }
    }
}

fn run(mode: Mode, name: &str, lanes: u32) -> (Option<mscclrs_sim::Finding>, u64) {
    let parts = Parts::new(mode, 1, WORDS as usize + 4);
    parts.launch(part.instance(name), 0, (1, lanes, 16));
    (parts.ranks.finish(), parts.memory.get(4))
}

#[test]
fn to_read_much_is_no_poll() {
    let (finding, _) = run(Mode::new(Check::Checked, 1), "_reads_much", 4);
    assert_eq!(finding.map(|finding| finding.to_string()), None);
}

#[test]
fn every_way_to_poll_without_end_is_found() {
    let checks = [Check::Ordered, Check::Checked, Check::Weak];
    for (name, check) in ["_held_lock", "_adds_nothing", "_shared_word"].into_iter().zip(checks) {
        let finding = run(Mode::new(check, 1), name, 1).0.expect("a finding");
        assert_eq!(finding.kind, FindingKind::EndlessPoll, "{name}: {finding}");
        assert!(finding.here.unwrap().line.contains("polls.rs"), "{name}");
    }
}

#[test]
fn a_delay_by_the_clock_ends() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        for schedule in Schedule::ALL {
            let mode = Mode { check, seed: 1, schedule: Some(schedule) };
            let (finding, seen) = run(mode.clone(), "_delays", 1);
            assert_eq!((finding.map(|finding| finding.to_string()), seen), (None, 7), "{mode}");
        }
    }
}

#[test]
fn to_look_at_the_clock_for_ever_is_an_endless_poll() {
    let finding = run(Mode::new(Check::Checked, 1), "_watches_the_clock", 2).0.expect("a finding");
    assert_eq!(finding.kind, FindingKind::EndlessPoll, "{finding}");
    assert!(finding.what.contains("looking at the clock"), "{finding}");
}

#[test]
fn a_lane_that_polls_makes_room_for_the_one_it_waits_for() {
    for schedule in Schedule::ALL {
        for seed in 0..10 {
            let mode = Mode { check: Check::Checked, seed, schedule: Some(schedule.clone()) };
            let (finding, seen) = run(mode.clone(), "_waits_for_other", 2);
            assert_eq!((finding.map(|finding| finding.to_string()), seen), (None, 7), "{mode}");
        }
    }
}

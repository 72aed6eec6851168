//! One lane writes, another reads what it was told of.

use std::convert::Infallible;

use mscclrs_device::atomic::{LoadOrder, StoreOrder};
use mscclrs_device::{
    Acquire, Global, Guard, Kernel, Relaxed, Release, Sys, WaitKind, kernel_args, kernels, poll,
    poll_acquire,
};
use mscclrs_sim::{Check, Exploration, Finding, FindingKind, Mode, TestMemory, explore};

use crate::common::MODULE;
use crate::world::{Ranks, first_finding, ran};

kernel_args! {
    pub struct MessageArgs {
        pub guard: Guard,
        pub data: Global<u64>,
        pub flag: Global<u64>,
        pub seen: Global<u64>,
        pub rank: u64,
    }
}

trait Orders {
    type Store: StoreOrder;
    type Load: LoadOrder;
    const STORE: Self::Store;
    const LOAD: Self::Load;
}
macro_rules! orders {
    ($($name:ident = $store:ident, $load:ident;)*) => { $(
        struct $name;
        impl Orders for $name {
            type Store = $store;
            type Load = $load;
            const STORE: $store = $store;
            const LOAD: $load = $load;
        }
    )* };
}
orders! {
    Ordered = Release, Acquire;
    NoRelease = Relaxed, Acquire;
    NoAcquire = Release, Relaxed;
}

kernels! {
    module = MODULE;
    pub fn message<O: Orders>(args: MessageArgs) threads 32 for {
        "" = <Ordered>,
        "_no_release" = <NoRelease>,
        "_no_acquire" = <NoAcquire>,
    } {
        if args.rank == 0 {
            args.data.store(42);
            args.flag.store_atomic(O::STORE, Sys, 1);
        } else {
            poll(&args.guard, args.flag, 1, WaitKind::Semaphore, 0, |v| v == 1)?;
            args.flag.load_atomic(O::LOAD, Sys);
            args.seen.store(args.data.load());
        }
        Ok(())
    }
    /// The sender tells of what it has not written yet.
    pub fn too_early<>(args: MessageArgs) threads 32 for { "" = <> } {
        if args.rank == 0 {
            args.flag.store_atomic(Release, Sys, 1);
            args.data.store(42);
        } else {
            poll_acquire(&args.guard, args.flag, 1, WaitKind::Semaphore, 0, |v| v == 1)?;
            args.seen.store(args.data.load());
        }
        Ok(())
    }
    /// Rank 1 hands on what rank 0 told it, and says so by what releases nothing.
    pub fn hand_on<>(args: MessageArgs) threads 32 for { "" = <> } {
        let (first, second) = (args.flag, args.flag.at(2));
        match args.rank {
            0 => {
                args.data.store(42);
                first.store_atomic(Release, Sys, 1);
            }
            1 => {
                poll_acquire(&args.guard, first, 1, WaitKind::Semaphore, 0, |v| v == 1)?;
                second.store_atomic(Relaxed, Sys, 1);
            }
            _ => {
                poll_acquire(&args.guard, second, 1, WaitKind::Semaphore, 1, |v| v == 1)?;
                args.seen.store(args.data.load());
            }
        }
        Ok(())
    }
}

/// What was found, and what was seen.
fn send(mode: Mode, suffix: &str) -> (Option<Finding>, u64, (u64, u64)) {
    run(mode, message.instance(suffix).unwrap(), 2)
}

fn run(mode: Mode, kernel: &'static Kernel, devices: u32) -> (Option<Finding>, u64, (u64, u64)) {
    let ranks = Ranks::new(mode, devices);
    let memory = TestMemory::new(64);
    let at = |word: u64| Global::from_address(memory.address() + 8 * word);
    for rank in 0..u64::from(devices) {
        let (guard, data, flag, seen) = (ranks.guard(), at(0), at(2), at(6));
        let args = MessageArgs { guard, data, flag, seen, rank };
        crate::common::launch_kernel(&ranks.queues[rank as usize], kernel, (1, 1, 0), &args);
    }
    let finding = ranks.finish();
    (finding, memory.get(6), ranks.world.trace_sum().unwrap())
}

#[test]
fn an_ordered_message_is_no_finding() {
    for seed in 0..50 {
        for check in [Check::Ordered, Check::Checked, Check::Weak] {
            let (finding, seen, _) = send(Mode::new(check, seed), "");
            assert_eq!((finding.map(|f| f.to_string()), seen), (None, 42));
        }
    }
}

#[test]
fn an_ordered_message_is_right_in_every_order_of_two_departures() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        let exploration = Exploration { check, departures: 2, runs: 20_000 };
        let outcome = explore(&exploration, |mode| {
            let (finding, seen, _) = send(mode, "");
            Ok::<_, Infallible>(ran(finding, seen == 42))
        });
        let outcome = outcome.unwrap();
        println!("{check:?}: {outcome}");
        assert_eq!(outcome.found.map(|found| found.to_string()), None);
        assert!(outcome.runs > 2 && outcome.within == Some(2));
    }
}

#[test]
fn a_message_without_order_is_a_race_that_names_what_is_missing() {
    for (suffix, missing) in [("_no_release", "a release: "), ("_no_acquire", "an acquire: ")] {
        let mode = |seed| Mode::new(Check::Checked, seed);
        let finding = first_finding(1, mode, |mode| send(mode, suffix).0).unwrap();
        println!("{finding}");
        assert_eq!(finding.kind, FindingKind::Race);
        assert!(finding.missing.as_ref().unwrap().starts_with(missing), "{finding}");
        let (here, other) = (finding.here.unwrap(), finding.other.unwrap());
        assert_eq!((here.device, other.device), (1, 0));
        assert!(here.line.contains("messages.rs"), "{here}");
    }
}

#[test]
fn an_access_after_the_release_that_was_seen_lacks_one_after_it_and_no_acquire() {
    let runs = |seed| run(Mode::new(Check::Checked, seed), too_early.instance("").unwrap(), 2).0;
    let is_reader = |finding: &Finding| finding.here.as_ref().is_some_and(|here| here.device == 1);
    let finding =
        (0..20).filter_map(runs).find(is_reader).expect("the reader is second in some run");
    let missing = finding.missing.as_ref().unwrap();
    assert!(missing.starts_with("a release by the first lane after its access"), "{finding}");
    let seen = "what it saw, the release store (system scope) at ";
    assert!(missing.contains(seen) && missing.contains("came before that access"), "{finding}");
}

#[test]
fn a_message_that_is_handed_on_lacks_the_release_of_who_hands_it_on() {
    let runs = |seed| run(Mode::new(Check::Checked, seed), hand_on.instance("").unwrap(), 3).0;
    let is_last = |finding: &Finding| finding.here.as_ref().is_some_and(|here| here.device == 2);
    let finding = (0..20).filter_map(runs).find(is_last).expect("the reader is second in some run");
    let missing = finding.missing.as_ref().unwrap();
    let over = "by way of other lanes, a release: the relaxed load (system scope)";
    assert!(missing.contains(over) && missing.contains("saw the relaxed store"), "{finding}");
}

#[test]
fn a_message_without_order_comes_late_in_weak_mode() {
    for suffix in ["_no_release", "_no_acquire"] {
        let late = (0..100).find(|&seed| send(Mode::new(Check::Weak, seed), suffix).1 == 0);
        assert!(late.is_some_and(|seed| seed < 20), "{suffix}: {late:?}");
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..10 {
        for check in [Check::Ordered, Check::Checked, Check::Weak] {
            let run = || send(Mode::new(check, seed), "").2;
            let (steps, _) = run();
            assert!(steps > 4);
            assert_eq!(run(), run());
        }
    }
}

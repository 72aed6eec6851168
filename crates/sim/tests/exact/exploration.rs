//! Every order that few departures make.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::atomic::AtomicU64;

use mscclrs_device::{
    Acquire, Global, Guard, Ll8, Packet, Relaxed, Release, Sys, kernel_args, kernels,
};
use mscclrs_sim::{
    Check, Exploration, ExploreError, FindingKind, Found, MappedMemory, MemoryOwner, Mode, Outcome,
    Ran, Schedule, TestMemory, explore, shorten,
};

use crate::common::MODULE;
use crate::planted::pair::{Pair, PairArgs};
use crate::world::{Ranks, ran};

kernel_args! {
    pub struct LaneArgs {
        pub guard: Guard,
        pub memory: Global<u64>,
        pub rank: u64,
    }
}

kernels! {
    module = MODULE;
    // A signal there and one back.
    pub fn round_trip<>(args: PairArgs) threads 32 for { "" = <> } {
        let channel = &args.channel;
        if args.rank == 0 {
            channel.signal();
            channel.wait(&args.guard)?;
        } else {
            channel.wait(&args.guard)?;
            channel.signal();
        }
        args.out.store(1);
        Ok(())
    }

    // A packet each way.
    pub fn hop<>(args: PairArgs) threads 32 for { "" = <> } {
        Ll8::put(args.channel.outbox, 7 + args.rank as u32, 1);
        args.out.store(Ll8::take(&args.guard, args.channel.inbox, 1, 0)?);
        Ok(())
    }

    // Rank 1 sees that both words were 1 only if rank 0 is held up twice in the middle.
    pub fn two_moments<>(args: LaneArgs) threads 32 for { "" = <> } {
        let (x, y) = (args.memory, args.memory.at(1));
        if args.rank == 0 {
            for word in [x, y] {
                word.store_atomic(Relaxed, Sys, 1);
                word.store_atomic(Relaxed, Sys, 0);
            }
        } else {
            let seen = x.load_atomic(Relaxed, Sys) + y.load_atomic(Relaxed, Sys);
            args.memory.at(4).store(seen);
        }
        Ok(())
    }

    // A loop that polls without saying so: it ends as soon as the other lane has run.
    pub fn bare_poll<>(args: LaneArgs) threads 32 for { "" = <> } {
        if args.rank == 0 {
            while args.memory.load_atomic(Acquire, Sys) == 0 {}
        } else {
            args.memory.store_atomic(Release, Sys, 1);
        }
        Ok(())
    }

    // Locks by exchanging, and counts under the lock.
    pub fn spin_lock<>(args: LaneArgs) threads 32 for { "" = <> } {
        let (lock, count) = (args.memory, args.memory.at(4));
        for _ in 0..2 {
            while lock.compare_exchange(Acquire, Sys, 0, 1) != 0 {}
            count.store(count.load() + 1);
            lock.store_atomic(Release, Sys, 0);
        }
        Ok(())
    }

    // Polls two words in turn.
    pub fn poll_of_two<>(args: LaneArgs) threads 32 for { "" = <> } {
        let (flag, end) = (args.memory, args.memory.at(1));
        if args.rank == 0 {
            while flag.load_atomic(Acquire, Sys) == 0 && end.load_atomic(Relaxed, Sys) == 0 {}
        } else {
            flag.store_atomic(Release, Sys, 1);
        }
        Ok(())
    }

    // Looks at how far it is before each poll.
    pub fn poll_with_count<>(args: LaneArgs) threads 32 for { "" = <> } {
        if args.rank == 0 {
            while args.memory.load_atomic(Acquire, Sys) <= args.memory.at(8).load() {}
        } else {
            args.memory.store_atomic(Release, Sys, 1);
        }
        Ok(())
    }

    // Polls by adding nothing.
    pub fn poll_by_adding<>(args: LaneArgs) threads 32 for { "" = <> } {
        if args.rank == 0 {
            while args.memory.fetch_add(Acquire, Sys, 0) == 0 {}
        } else {
            args.memory.store_atomic(Release, Sys, 1);
        }
        Ok(())
    }

    // Rank 0 releases by the first word and rank 1 does not acquire.
    pub fn unordered<>(args: LaneArgs) threads 32 for { "" = <> } {
        let times = args.memory.at(8).load();
        if args.rank == 0 {
            args.memory.at(4).store(1);
            for time in 0..times {
                args.memory.store_atomic(Release, Sys, time);
            }
        } else {
            for _ in 0..times {
                args.memory.load_atomic(Relaxed, Sys);
            }
            args.memory.at(6).store(args.memory.at(4).load());
        }
        Ok(())
    }

    // As many orders as the memory says.
    pub fn adds<>(args: LaneArgs) threads 32 for { "" = <> } {
        for _ in 0..args.memory.at(8).load() {
            args.memory.fetch_add(Relaxed, Sys, 1);
        }
        Ok(())
    }
}

fn exploration(check: Check, departures: u32) -> Exploration {
    Exploration { check, departures, runs: 20_000 }
}

fn made(exploration: &Exploration, mut run: impl FnMut(Mode) -> Ran) -> Outcome {
    let outcome = explore(exploration, |mode| Ok::<_, Infallible>(run(mode))).unwrap();
    println!("{:?}: {outcome}", exploration.check);
    outcome
}

/// Both ranks run the kernel; the words that it leaves.
fn both(
    mode: Mode,
    kernel: &'static mscclrs_device::Family<LaneArgs>,
    times: u64,
) -> (Ranks, TestMemory) {
    let ranks = Ranks::new(mode, 2);
    let memory = TestMemory::new(128);
    ranks.upload(0, &memory, &[0, 0, 0, 0, 0, 0, 0, 0, times]);
    for rank in 0..2 {
        let memory = Global::from_address(memory.address());
        let args = LaneArgs { guard: ranks.guard(), memory, rank };
        crate::common::launch(&ranks.queues[rank as usize], kernel, (1, 1, 0), &args);
    }
    (ranks, memory)
}

fn two_moments_run(mode: Mode) -> Ran {
    let (ranks, memory) = both(mode, &two_moments, 0);
    let finding = ranks.finish();
    ran(finding, memory.get(4) != 2)
}

#[test]
fn small_kernels_are_right_in_every_order_of_two_departures() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        for (kernel, out) in [(&round_trip, [1, 1]), (&hop, [8, 7])] {
            let outcome = made(&exploration(check, 2), |mode| {
                let pair = Pair::new(mode);
                pair.launch_both(kernel, "", 1);
                let finding = pair.finish();
                ran(finding, [0, 1].map(|rank| pair.out(rank, 0)) == out)
            });
            assert_eq!(outcome.found.map(|found| found.to_string()), None);
            assert!(outcome.runs > 2 && outcome.within == Some(2));
        }
    }
}

#[test]
fn a_fault_is_found_with_the_fewest_departures() {
    let two = made(&exploration(Check::Ordered, 2), two_moments_run);
    assert_eq!((two.found, two.within, two.exhausted), (None, Some(2), false));
    let three = made(&exploration(Check::Ordered, 3), two_moments_run);
    let found = three.found.unwrap();
    let Some(Schedule::Departures(list)) = &found.mode.schedule else { panic!("{found}") };
    assert_eq!((list.list().len(), three.within), (3, Some(2)));
    // The text that a person gets is the run.
    let text = found.to_string();
    let mode = text.rsplit_once("MSCCLRS_SIM=").unwrap().1;
    assert_eq!(two_moments_run(mode.parse().unwrap()).wrong, found.wrong);
}

#[test]
fn a_fault_of_a_seed_is_told_by_a_run_with_fewer_departures() {
    let exploration = exploration(Check::Ordered, 4);
    let run = |mode| Ok::<_, Infallible>(two_moments_run(mode));
    let mode = |seed| Mode { schedule: Some(Schedule::Random), ..Mode::new(Check::Ordered, seed) };
    let of_seed = |seed| Found::of(&mode(seed), two_moments_run(mode(seed)));
    let long = (0..2000).find_map(of_seed).expect("a seed");
    let short = shorten(long.clone(), &exploration, run).unwrap();
    let Some(Schedule::Departures(list)) = &short.mode.schedule else { panic!("{short}") };
    assert_eq!((list.list().len(), &short.wrong), (3, &long.wrong));
    // The shortest is as short as it was, and so is one that few runs do not find.
    assert_eq!(shorten(short.clone(), &exploration, run).unwrap(), short);
    let few = Exploration { runs: 3, ..exploration };
    assert_eq!(shorten(long.clone(), &few, run).unwrap(), long);
}

#[test]
fn a_wait_that_does_not_say_so_lets_others_run() {
    let kernels =
        [&bare_poll, &spin_lock, &poll_of_two, &poll_with_count, &poll_by_adding].into_iter();
    for (kernel, check) in
        kernels.flat_map(|kernel| [(kernel, Check::Checked), (kernel, Check::Weak)])
    {
        let name = kernel.instance("").unwrap().name;
        let outcome = made(&exploration(check, 3), |mode| {
            let (ranks, memory) = both(mode, kernel, 0);
            let finding = ranks.finish();
            ran(finding, name != "spin_lock" || memory.get(4) == 4)
        });
        assert_eq!(outcome.found.as_ref().map(ToString::to_string), None, "{name}");
        assert!(outcome.within == Some(3) || outcome.exhausted, "{name}: {outcome}");
    }
}

#[test]
fn the_limit_of_runs_is_told() {
    let run = |mode| {
        let (ranks, _memory) = both(mode, &adds, 4);
        ran(ranks.finish(), true)
    };
    let all_of =
        |departures, runs| made(&Exploration { check: Check::Ordered, departures, runs }, run);
    let whole = all_of(32, 20_000);
    assert!(whole.exhausted && whole.within == Some(32), "{whole}");
    let limited = all_of(32, whole.runs - 1);
    assert_eq!((limited.runs, limited.exhausted), (whole.runs - 1, false));
    assert!(limited.within.is_some_and(|within| within < 32), "{limited}");
    let none = all_of(0, 20_000);
    assert_eq!((none.runs, none.within, none.exhausted), (1, Some(0), false));
    let nothing = all_of(2, 0);
    assert_eq!((nothing.runs, nothing.within, nothing.exhausted), (0, None, false));
}

#[test]
fn a_program_that_does_not_repeat_is_an_error() {
    let times = Cell::new(6);
    let error = explore(&exploration(Check::Ordered, 2), |mode| {
        let (ranks, _memory) = both(mode, &adds, times.replace(1));
        Ok::<_, Infallible>(ran(ranks.finish(), true))
    });
    let error = error.unwrap_err();
    assert!(matches!(error, ExploreError::NotRepeated { .. }), "{error}");
    assert!(error.to_string().starts_with("the program does not repeat: the run `ordered,sched"));
}

#[test]
fn memory_at_an_address_that_other_memory_had_is_new() {
    // Which rank gets whose old place is a matter of its host threads.
    let decisions = |half: usize| {
        let ranks = Ranks::new(
            Mode {
                check: Check::Checked,
                seed: 0,
                schedule: Some(Schedule::Departures(Default::default())),
            },
            2,
        );
        let words: Vec<AtomicU64> = (0..32).map(|_| AtomicU64::new(0)).collect();
        let start = words.as_ptr() as u64;
        let map = |at: u64| {
            let object = MappedMemory::new_object();
            MappedMemory::new(at, 128, object, MemoryOwner::Device)
        };
        let launch = |kernel, rank: u64, at: u64| {
            let args = LaneArgs { guard: ranks.guard(), memory: Global::from_address(at), rank };
            crate::common::launch(&ranks.queues[rank as usize], kernel, (1, 1, 0), &args);
        };
        let old = map(start);
        launch(&bare_poll, 1, start);
        assert_eq!(ranks.finish(), None);
        drop(old);

        let at = start + 128 * half as u64;
        let _new = map(at);
        let hold = ranks.world.hold();
        (0..2).for_each(|rank| launch(&two_moments, rank, at));
        drop(hold);
        assert_eq!(ranks.finish(), None);
        ranks.world.decisions().unwrap()
    };
    let met = decisions(0);
    assert!(met.len() > 2, "{met:?}");
    assert_eq!(met, decisions(1));
}

#[test]
fn departures_of_another_program_are_refused() {
    let mode: Mode = "checked,schedule=departures:0=7".parse().unwrap();
    let (ranks, _memory) = both(mode, &adds, 4);
    let stopped = ranks.stopped().expect("an error").to_string();
    assert!(
        stopped.contains("the departure 0=7 is not possible here: at decision 0 there"),
        "{stopped}"
    );
    assert!(stopped.contains("the alternatives 0 to 1;"), "{stopped}");
}

#[test]
fn a_departure_that_is_not_reached_is_told() {
    let run = |mode: &str| {
        let (ranks, _memory) = both(mode.parse().unwrap(), &adds, 2);
        let ran = ran(ranks.finish(), true);
        (ran.decisions.len(), ran.unreached.map(|unreached| unreached.to_string()))
    };
    let (decisions, unreached) = run("checked,schedule=departures:0=1");
    assert_eq!(unreached, None);
    let last = decisions - 1;
    assert_eq!(run(&format!("checked,schedule=departures:0=1+{last}=1")).1, None);
    let text = format!(
        "the departure {decisions}=1 was not reached: the run has the decisions 0 to {last}"
    );
    let (_, unreached) = run(&format!("checked,schedule=departures:0=1+{decisions}=1+99=2"));
    assert_eq!(unreached, Some(text));
    assert_eq!(run("checked,seed=1").1, None);
}

#[test]
fn a_report_tells_who_ran_when() {
    let outcome = made(&exploration(Check::Checked, 2), |mode| {
        let (ranks, _memory) = both(mode, &unordered, 4);
        ran(ranks.finish(), true)
    });
    let finding = outcome.found.unwrap().finding.unwrap();
    assert_eq!(finding.kind, FindingKind::Race);
    let steps = &finding.steps;
    assert_eq!(steps.len(), 7, "{finding}");
    assert!(steps[0].starts_with("device 0 block 0 lane 0 makes 5 accesses, from "), "{finding}");
    // What the sender did comes before what the receiver did, each in a row.
    let devices: Vec<&str> = steps.iter().map(|step| &step[..8]).collect();
    assert!(devices.is_sorted(), "{finding}");
    assert!(steps.last().unwrap().starts_with("device 1 block 0 lane "), "{finding}");
}

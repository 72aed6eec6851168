//! Waits that nothing ends.

use std::time::Duration;

use mscclrs_device::{Global, Guard, WaitKind, WaitRecord, kernel_args, kernels, poll};
use mscclrs_sim::{Check, DeviceConfig, FindingKind, Mode, Schedule, TestMemory};

use crate::common::MODULE;
use crate::world::Ranks;

kernel_args! {
    pub struct WaitArgs {
        pub guard: Guard,
        pub word: Global<u64>,
    }
}

kernels! {
    module = MODULE;
    pub fn wait<>(args: WaitArgs) threads 256 for { "" = <> } {
        poll(&args.guard, args.word, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
        Ok(())
    }
}

#[test]
fn lanes_that_wait_in_vain_are_a_deadlock_however_often_they_look() {
    // All these lanes look a million times before so long has passed.
    let deadlock = Some(Duration::from_millis(500));
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        let config = DeviceConfig { deadlock, ..Default::default() };
        let ranks = Ranks::with(Mode::new(check, 1), 1, config);
        let memory = TestMemory::new(16);
        let word = Global::from_address(memory.address());
        let args = WaitArgs { guard: ranks.guard(), word };
        crate::common::launch(&ranks.queues[0], &wait, (4, 256, 0), &args);
        let finding = ranks.finish().unwrap();
        assert_eq!(finding.kind, FindingKind::Deadlock, "{finding}");
        let steps = finding.steps.join("\n");
        // As accesses are told, and the same in every run: no address.
        let text =
            "256 lanes (first 0) wait for a semaphore: the word at byte 0x0 of memory 0 holds";
        assert!(steps.contains(text), "{steps}");
    }
}

#[test]
fn a_wait_ends_at_its_time_limit_if_that_comes_before_a_deadlock_is_told() {
    let deadlock = Some(Duration::from_secs(20));
    let departures = Some(Schedule::Departures(Default::default()));
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        for schedule in [None, departures.clone()] {
            let config = DeviceConfig { deadlock, ..Default::default() };
            let ranks = Ranks::with(Mode { check, seed: 1, schedule }, 1, config);
            let memory = TestMemory::new(16);
            let word = Global::from_address(memory.address());
            let guard = Guard { timeout_ns: 50_000_000, ..ranks.guard() };
            crate::common::launch(&ranks.queues[0], &wait, (2, 64, 0), &WaitArgs { guard, word });
            assert_eq!(ranks.finish(), None, "{check:?}");
            let WaitRecord { valid, cause, expected, .. } = ranks.record();
            assert_eq!((valid, cause, expected), (1, 2, 1), "{check:?}: not its time limit");
        }
    }
}

#[test]
fn a_deadlock_is_told_before_a_longer_time_limit() {
    let config = DeviceConfig { deadlock: Some(Duration::from_millis(100)), ..Default::default() };
    let ranks = Ranks::with(Mode::new(Check::Checked, 1), 1, config);
    let memory = TestMemory::new(16);
    let word = Global::from_address(memory.address());
    let guard = Guard { timeout_ns: 3_600_000_000_000, ..ranks.guard() };
    crate::common::launch(&ranks.queues[0], &wait, (1, 32, 0), &WaitArgs { guard, word });
    assert_eq!(ranks.finish().map(|finding| finding.kind), Some(FindingKind::Deadlock));
}

//! Kernels with one fault each, beside the same kernel without it.
//!
//! Each fault is found within some seeds and within few departures, by the check that is meant for it, and
//! told with its place; the right kernel is no finding and right in every run.

mod co_residency;
mod divergent_barrier;
mod earlier_lap;
mod early_exit;
mod epoch_on_the_host;
mod lane_mask;
mod missing_abort_check;
pub(crate) mod missing_acquire;
mod missing_barrier;
mod missing_release;
mod missing_wait;
mod narrow_scope;
mod off_by_one;
mod outside_put;
pub(crate) mod pair;
mod parity_for_credits;
mod shared_race;
mod slot_reuse;
mod torn_pair;
mod use_after_unmapping;

use std::convert::Infallible;

use mscclrs_sim::{Check, Exploration, Finding, FindingKind, LateLoad, Mode, Site, explore};

/// Seeds within which a fault is found.
const SEEDS: u64 = 100;
/// Seeds in which a right kernel is right.
const RIGHT_SEEDS: u64 = 50;
/// Departures within which a fault is found, in at most so many runs.
const DEPARTURES: u32 = 2;
const RUNS: u64 = 500;
/// Runs within these departures in which a right kernel is right: all that there are of the small ones.
const RIGHT_RUNS: u64 = 100;

/// Which of two kernels it is; every planted kernel has an instance `_right` and one `_wrong`.
pub(crate) trait Form {
    const RIGHT: bool;
}
pub(crate) struct Right;
pub(crate) struct Wrong;
impl Form for Right {
    const RIGHT: bool = true;
}
impl Form for Wrong {
    const RIGHT: bool = false;
}

/// What a run came to.
pub(crate) struct Outcome {
    pub(crate) finding: Option<Finding>,
    /// Whether the results are those of a right kernel; nothing after a finding.
    pub(crate) right: bool,
}

/// Runs within few departures, until one is found that counts.
fn explored(
    check: Check,
    runs: u64,
    run: impl Fn(Mode) -> Outcome,
    counts: impl Fn(&Outcome) -> bool,
) -> mscclrs_sim::Outcome {
    let exploration = Exploration { check, departures: DEPARTURES, runs };
    let explored = explore(&exploration, |mode| {
        let outcome = run(mode);
        let right = !counts(&outcome);
        Ok::<_, Infallible>(crate::world::ran(outcome.finding, right))
    });
    let explored = explored.unwrap();
    println!("{check:?}: {explored}");
    explored
}

/// The first thing that this check finds.
pub(crate) fn finding(check: Check, run: impl Fn(Mode, &str) -> Outcome) -> Finding {
    let exhausted = explored(check, RUNS, |mode| run(mode, "_wrong"), |_| false);
    let exhausted = exhausted.found.expect("a finding within few departures");
    let mut findings = (0..SEEDS).filter_map(|seed| run(Mode::new(check, seed), "_wrong").finding);
    let finding = findings.next().expect("a finding");
    println!("{finding}");
    assert_eq!(exhausted.kind(), Some(finding.kind), "{exhausted}");
    let again = run(exhausted.mode.clone(), "_wrong").finding;
    assert_eq!(again.map(|finding| finding.kind), exhausted.kind(), "{}", exhausted.mode);
    finding
}

/// Some run with few departures gives wrong results, in which nothing is found otherwise, and so does one
/// of some seed.
pub(crate) fn gives_wrong_results(check: Check, run: impl Fn(Mode, &str) -> Outcome) {
    let wrong = |outcome: &Outcome| outcome.finding.is_none() && !outcome.right;
    let exhausted = explored(check, RUNS, |mode| run(mode, "_wrong"), wrong);
    let found = exhausted.found.expect("wrong results within few departures");
    assert_eq!(found.kind(), None, "{found}");
    gives_wrong_results_with_a_seed(check, run);
}

/// As `gives_wrong_results`, of a kernel that is too large to be run in every order.
pub(crate) fn gives_wrong_results_with_a_seed(check: Check, run: impl Fn(Mode, &str) -> Outcome) {
    let wrong = (0..SEEDS).find(|&seed| {
        let outcome = run(Mode::new(check, seed), "_wrong");
        outcome.finding.is_none() && !outcome.right
    });
    assert!(wrong.is_some(), "the results are right in all seeds");
}

/// The kernel without the fault is right, whatever is looked for.
pub(crate) fn stays_right(run: impl Fn(Mode, &str) -> Outcome) {
    for check in [Check::Checked, Check::Weak] {
        let wrong = |outcome: &Outcome| !outcome.right;
        let exhausted = explored(check, RIGHT_RUNS, |mode| run(mode, "_right"), wrong);
        assert_eq!(exhausted.found.map(|found| found.to_string()), None);
    }
    for seed in 0..RIGHT_SEEDS {
        for check in [Check::Checked, Check::Weak] {
            let mode = Mode::new(check, seed);
            let outcome = run(mode.clone(), "_right");
            assert_eq!(outcome.finding.map(|finding| finding.to_string()), None);
            assert!(outcome.right, "wrong results with {mode}");
            // An order is missing where a plain one is late.
            let late = crate::world::late_loads();
            assert!(late.iter().all(|late| !late.is_plain), "{}", LateLoad::told(&late, true));
        }
    }
}

/// A race between two devices, seen in this file; `missing` begins what it lacks.
pub(crate) fn is_race_between_ranks(finding: &Finding, file: &str, missing: &str) {
    assert_eq!(finding.kind, FindingKind::Race, "{finding}");
    let (here, other) = (here(finding), other(finding));
    assert!(here.line.contains(file) && other.line.contains(file), "{finding}");
    let mut devices = [here.device, other.device];
    devices.sort_unstable();
    assert_eq!(devices, [0, 1], "{finding}");
    assert!(finding.missing.as_ref().is_some_and(|text| text.starts_with(missing)), "{finding}");
}

pub(crate) fn here(finding: &Finding) -> &Site {
    finding.here.as_ref().expect("a place")
}

pub(crate) fn other(finding: &Finding) -> &Site {
    finding.other.as_ref().expect("a second place")
}

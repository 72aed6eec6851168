//! Kernels with one fault each, beside the same kernel without it.
//!
//! Each fault is found within some seeds, by the check that is meant for it, and told with its place; the
//! right kernel is no finding and right in every seed.

mod co_residency;
mod divergent_barrier;
mod earlier_lap;
mod early_exit;
mod epoch_on_the_host;
mod lane_mask;
mod missing_abort_check;
mod missing_acquire;
mod missing_barrier;
mod missing_release;
mod missing_wait;
mod narrow_scope;
mod off_by_one;
mod outside_put;
mod pair;
mod parity_for_credits;
mod shared_race;
mod slot_reuse;
mod torn_pair;
mod use_after_unmapping;

use mscclrs_sim::{Check, Finding, FindingKind, Mode, Site};

/// Seeds within which a fault is found.
const SEEDS: u64 = 100;
/// Seeds in which a right kernel is right.
const RIGHT_SEEDS: u64 = 50;

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

fn xx(check: Check, form: &str, run: &impl Fn(Mode, &str) -> Outcome) {
    for (departures, runs) in [(1, 200), (2, 1000)] {
    let start = std::time::Instant::now();
    let exploration = mscclrs_sim::Exploration { check, departures, runs };
    let outcome = mscclrs_sim::explore(&exploration, |mode| {
        let Outcome { finding, right } = run(mode, form);
        Ok::<_, std::convert::Infallible>(crate::world::ran(finding, right))
    });
    println!("XX {:?} {check:?} {form} {departures}: {} {:?}", std::thread::current().name(), match outcome { Ok(outcome) => outcome.to_string() + &outcome.found.map_or(String::new(), |f| format!(" {:?}", f.kind())), Err(e) => e.to_string() }, start.elapsed());
    }
}

/// The first thing that this check finds.
pub(crate) fn finding(check: Check, run: impl Fn(Mode, &str) -> Outcome) -> Finding {
    xx(check, "_wrong", &run);
    let mut findings = (0..SEEDS).filter_map(|seed| run(Mode::new(check, seed), "_wrong").finding);
    let finding = findings.next().expect("a finding");
    println!("{finding}");
    finding
}

/// Some run gives wrong results, in which nothing is found otherwise.
pub(crate) fn gives_wrong_results(check: Check, run: impl Fn(Mode, &str) -> Outcome) {
    xx(check, "_wrong", &run);
    let wrong = (0..SEEDS).find(|&seed| {
        let outcome = run(Mode::new(check, seed), "_wrong");
        outcome.finding.is_none() && !outcome.right
    });
    assert!(wrong.is_some(), "the results are right in all seeds");
}

/// The kernel without the fault is right, whatever is looked for.
pub(crate) fn stays_right(run: impl Fn(Mode, &str) -> Outcome) {
    for check in [Check::Checked, Check::Weak] { xx(check, "_right", &run); }
    for seed in 0..RIGHT_SEEDS {
        for check in [Check::Checked, Check::Weak] {
            let mode = Mode::new(check, seed);
            let outcome = run(mode.clone(), "_right");
            assert_eq!(outcome.finding.map(|finding| finding.to_string()), None);
            assert!(outcome.right, "wrong results with {mode}");
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

//! All runs of a program that few departures make, those with fewer first.
//!
//! Invariant: every run is made once at most, and when the runs with so many departures begin, all with
//! fewer have been made. Where a run comes into a state that an earlier one was in (see `decisions`), what
//! can follow has been made, or will be, from there, with as many departures or fewer: nothing departs
//! from it after that.

use std::collections::{HashSet, VecDeque};
use std::fmt;

use super::decisions::{self, Decision, Unreached};
use super::departures::{Departure, Departures};
use super::finding::{Finding, FindingKind};
use super::late::LateLoad;
use super::mode::{Check, Mode, Schedule};

/// How often a run is made that does not begin as the one did that it departs from.
const TRIES: u32 = 3;

/// Which runs are made, and what they look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exploration {
    /// What is looked for.
    pub check: Check,
    /// Most departures of a run.
    pub departures: u32,
    /// Most runs.
    pub runs: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// The decisions that it met.
    pub decisions: Vec<Decision>,
    /// What the engine found.
    pub finding: Option<Finding>,
    /// What the program itself found wrong: results, an error that it got.
    pub wrong: Option<String>,
    /// In weak mode: loads that saw old values, plain ones first.
    pub late: Vec<LateLoad>,
    /// The first departure of its mode that it did not come to: the run is not the one that the mode is of,
    /// or a finding ended it before.
    pub unreached: Option<Unreached>,
}

/// What a run came to, where somebody else says what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried<F> {
    /// The decisions that it met.
    pub decisions: Vec<Decision>,
    /// What is looked for, if it has it.
    pub found: Option<F>,
}

/// A run that is not right. Its text is a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// How it is had again.
    pub mode: Mode,
    /// What the engine found.
    pub finding: Option<Finding>,
    /// What the program itself found wrong.
    pub wrong: Option<String>,
    /// In weak mode: loads that saw old values, plain ones first.
    pub late: Vec<LateLoad>,
}

impl Found {
    /// What a run with this mode found, if anything.
    pub fn of(mode: &Mode, ran: Ran) -> Option<Found> {
        let Ran { finding, wrong, late, .. } = ran;
        let mode = mode.clone();
        (finding.is_some() || wrong.is_some()).then_some(Found { mode, finding, wrong, late })
    }

    /// What kind of fault the engine found; `None` where only results are wrong.
    pub fn kind(&self) -> Option<FindingKind> {
        self.finding.as_ref().map(|finding| finding.kind)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.finding, &self.wrong) {
            (Some(finding), _) => finding.fmt(f),
            (None, Some(wrong)) => {
                write!(f, "wrong: {wrong}")?;
                if self.mode.check == Check::Weak {
                    write!(f, "\n{}", LateLoad::told(&self.late, true))?;
                }
                write!(f, "\n  to see it again: MSCCLRS_SIM={}", self.mode)
            }
            (None, None) => f.write_str("nothing"),
        }
    }
}

/// How far an exploration came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<F = Found> {
    /// Runs that were made.
    pub runs: u64,
    /// The runs with at most so many departures were all made; `None` if not even the one with none was.
    pub within: Option<u32>,
    /// There are no runs with more departures: all that the program can do was seen.
    pub exhausted: bool,
    /// The first run that is not right, of those with the fewest departures; it ended the exploration.
    pub found: Option<F>,
}

impl<F> fmt::Display for Outcome<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let departures = |count: u32| match count {
            0 => "no departure".to_owned(),
            1 => "1 departure".to_owned(),
            _ => format!("{count} departures"),
        };
        let runs = if self.runs == 1 { "run" } else { "runs" };
        write!(f, "{} {runs}", self.runs)?;
        match (self.within, &self.found) {
            (within, Some(_)) => {
                let count = within.map_or(0, |fewer| fewer + 1);
                write!(f, ", the last with {} and a fault", departures(count))
            }
            (_, None) if self.exhausted => f.write_str(": all that there are"),
            (Some(count), None) => write!(f, ": all with at most {}", departures(count)),
            (None, None) => f.write_str(": none of the program's runs is complete"),
        }
    }
}

/// An exploration cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExploreError<E> {
    /// A run could not be made.
    #[error("{0}")]
    Run(E),
    /// A run does not begin as the one did that it departs from.
    #[error(
        "the program does not repeat: the run `{mode}` does not come to decision {decision} as the run \
         did from which it departs there ({before}, now {now}); what the program does between two waits \
         may not depend on time, on chance, or on what an earlier run left"
    )]
    NotRepeated {
        /// The run.
        mode: Mode,
        /// Where it departs last.
        decision: u64,
        /// What was met there before.
        before: String,
        /// What is met there now.
        now: String,
    },
}

/// A run that is to be made.
struct Pending {
    departures: Departures,
    /// What the run it departs from met there.
    at: Option<Decision>,
}

/// Makes runs until one is not right, all within the departures are made, or as many as are allowed.
/// `run` makes the run with a mode; what it gives ends with the last decision of [`World::decisions`].
///
/// [`World::decisions`]: super::World::decisions
pub fn explore<E>(
    exploration: &Exploration,
    run: impl FnMut(Mode) -> Result<Ran, E>,
) -> Result<Outcome, ExploreError<E>> {
    explore_for(exploration, |_| true, run)
}

fn explore_for<E>(
    exploration: &Exploration,
    wanted: impl Fn(&Found) -> bool,
    mut run: impl FnMut(Mode) -> Result<Ran, E>,
) -> Result<Outcome, ExploreError<E>> {
    search(exploration, |mode| {
        let mut ran = run(mode.clone())?;
        let decisions = std::mem::take(&mut ran.decisions);
        Ok(Tried { decisions, found: Found::of(mode, ran).filter(&wanted) })
    })
}

/// Looks for a run with the same kind of fault and the fewest departures; gives what was found before if
/// no run of the exploration has it, or none with fewer departures.
pub fn shorten<E>(
    found: Found,
    exploration: &Exploration,
    run: impl FnMut(Mode) -> Result<Ran, E>,
) -> Result<Found, ExploreError<E>> {
    let mut exploration = Exploration { check: found.mode.check, ..exploration.clone() };
    if let Some(Schedule::Departures(list)) = &found.mode.schedule {
        match (list.list().len() as u32).checked_sub(1) {
            Some(fewer) => exploration.departures = exploration.departures.min(fewer),
            None => return Ok(found),
        }
    }
    let same = |other: &Found| other.kind() == found.kind();
    let outcome = explore_for(&exploration, same, run)?;
    Ok(outcome.found.unwrap_or(found))
}

/// As [`explore`], where the caller says of each run whether it has what is looked for.
pub fn search<F, E>(
    exploration: &Exploration,
    mut run: impl FnMut(&Mode) -> Result<Tried<F>, E>,
) -> Result<Outcome<F>, ExploreError<E>> {
    let mut pending = VecDeque::new();
    let mut seen = HashSet::new();
    let mut outcome = Outcome { runs: 0, within: None, exhausted: true, found: None };
    // Departures of the shortest run that is left out, if any is.
    let mut left_out: Option<u32> = None;
    if exploration.runs > 0 {
        pending.push_back(Pending { departures: Departures::default(), at: None });
    } else {
        left_out = Some(0);
    }
    while let Some(next) = pending.pop_front() {
        let mode = Mode::departing(exploration.check, next.departures.clone());
        let (Tried { decisions, found }, from) = repeat(&next, &mode, &mut run)?;
        outcome.runs += 1;
        let count = next.departures.list().len() as u32;
        if found.is_some() {
            return Ok(Outcome {
                within: count.checked_sub(1),
                exhausted: false,
                found,
                ..outcome
            });
        }
        // What else there was is not known.
        if decisions.len() >= decisions::MOST {
            left_out.get_or_insert(count + 1);
        }
        for (decision, met) in (from..).zip(&decisions[from.min(decisions.len())..]) {
            if count == exploration.departures {
                if !seen.contains(&met.state) {
                    left_out.get_or_insert(count + 1);
                    break;
                }
                continue;
            }
            if !seen.insert(met.state) {
                break;
            }
            for alternative in 1..met.alternatives {
                if outcome.runs + pending.len() as u64 >= exploration.runs {
                    left_out.get_or_insert(count + 1);
                    break;
                }
                let departure = Departure { decision: decision as u64, alternative };
                let departures = next.departures.and(departure);
                pending.extend(departures.map(|departures| Pending { departures, at: Some(*met) }));
            }
        }
    }
    outcome.exhausted = left_out.is_none();
    outcome.within = match left_out {
        None => Some(exploration.departures),
        Some(first) => first.checked_sub(1),
    };
    Ok(outcome)
}

/// Makes a run, again if it begins otherwise than it should: what the host does may have come late once.
/// Gives it, and the first decision that it may depart at.
fn repeat<F, E>(
    next: &Pending,
    mode: &Mode,
    run: &mut impl FnMut(&Mode) -> Result<Tried<F>, E>,
) -> Result<(Tried<F>, usize), ExploreError<E>> {
    let (Some(last), Some(before)) = (next.departures.list().last(), next.at) else {
        return run(mode).map(|ran| (ran, 0)).map_err(ExploreError::Run);
    };
    let at = last.decision as usize;
    let mut now = None;
    for _ in 0..TRIES {
        let ran = run(mode).map_err(ExploreError::Run)?;
        now = ran.decisions.get(at).copied();
        if now == Some(before) {
            return Ok((ran, at + 1));
        }
    }
    let told = |decision: &Decision| {
        format!("{} alternatives in state {:x}", decision.alternatives, decision.state)
    };
    Err(ExploreError::NotRepeated {
        mode: mode.clone(),
        decision: last.decision,
        before: told(&before),
        now: now.as_ref().map_or("the run ends before".into(), told),
    })
}

//! Runs that are named by their departures: the shortest that shows what a seed found, and all that few
//! departures make.

use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use mscclrs_gpu::simulation::{
    Check, Exploration, ExploreError, Mode, Outcome, ReportedFinding, Schedule, Tried, search,
};
use serde::Serialize;

use super::findings::{Found, Shortest};
use crate::output::told;
use crate::usage::usage;

/// Most departures of a run that shortens another: with more, nobody follows it either.
const SHORT: u32 = 3;
/// Most runs that shorten one, so that what is to be run next does not fill the memory.
const RUNS: u64 = 100_000;

/// A run, with what is looked for if it has it.
pub(super) type Try = Tried<ReportedFinding>;

/// Why no more runs are made.
#[derive(Debug)]
pub(super) enum Halt {
    /// A run could not be made, or says nothing.
    Failed(anyhow::Error),
    /// The check ends with this status, and all is said.
    Said(ExitCode),
    /// It has taken as long as it may.
    Over,
}

impl Halt {
    /// What the check ends with.
    pub(super) fn end(self) -> Result<ExitCode> {
        match self {
            Halt::Said(status) => Ok(status),
            halt => Err(halt.error()),
        }
    }

    pub(super) fn error(self) -> anyhow::Error {
        match self {
            Halt::Failed(error) => error,
            halt => anyhow!("{halt}"),
        }
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Halt::Failed(error) => f.write_str(&told(error)),
            Halt::Over => f.write_str("the runs took too long"),
            Halt::Said(_) => f.write_str("the check has ended"),
        }
    }
}

/// A run without a finding that departures were given for, and that did not come to one of them.
pub(super) fn not_reached(unreached: &str) -> anyhow::Error {
    usage!("--schedule: {unreached}; allowed are the departures of a run of what is checked")
}

/// Runs that departures make.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Orders {
    /// Most departures that were asked for.
    departures: u32,
    /// Runs that were made.
    runs: u64,
    /// All with at most so many departures were made; nothing if not even the one without any was.
    within: Option<u32>,
    /// Whether all that were asked for were made.
    complete: bool,
    /// Whether there are no more, with however many departures.
    exhausted: bool,
}

/// Looks for the shortest run with the same kind of fault, for at most `limit`, and notes it with what was
/// found. `again` gives what a shell runs to see a mode's run again; `run` is told how much time is left.
pub(super) fn shorten(
    found: &mut Found,
    mode: &Mode,
    limit: Duration,
    again: impl Fn(&Mode) -> String,
    mut run: impl FnMut(&Mode, Duration) -> Result<Try, Halt>,
) -> Result<(), Halt> {
    if limit.is_zero() || matches!(mode.schedule, Some(Schedule::Departures(_))) {
        return Ok(());
    }
    let exploration = Exploration { check: mode.check, departures: SHORT, runs: RUNS };
    let (since, mut runs) = (Instant::now(), 0);
    let outcome = search(&exploration, |mode| {
        let left = limit.checked_sub(since.elapsed()).filter(|left| !left.is_zero());
        let Tried { decisions, found: other } = run(mode, left.ok_or(Halt::Over)?)?;
        runs += 1;
        let same = other.filter(|other| other.kind == found.first.kind);
        Ok(Tried { decisions, found: same.map(|finding| (mode.clone(), finding)) })
    });
    let made = if runs == 1 { "1 run was".to_owned() } else { format!("{runs} runs were") };
    let told = match outcome {
        Ok(Outcome { found: Some((mode, finding)), .. }) => {
            let (again, text) = (again(&mode), finding.text);
            found.shortest = Some(Shortest { mode: mode.to_string(), again, text });
            format!(
                "told is the run with this kind of fault that has the fewest departures; {made} made for it"
            )
        }
        Ok(outcome) => format!("no shorter run is known: {outcome}, have no fault of this kind"),
        Err(ExploreError::Run(Halt::Over)) => {
            let seconds = limit.as_secs_f64();
            format!(
                "no shorter run is known: {made} made within {seconds} s, without a fault of this kind"
            )
        }
        Err(ExploreError::Run(halt @ Halt::Said(_))) => return Err(halt),
        Err(error) => format!("it was not shortened: {error}"),
    };
    found.shortening = Some(told);
    Ok(())
}

/// Makes every run with at most so many departures, up to `runs`, or until one is not right; gives that one
/// too.
pub(super) fn explore(
    (check, departures, runs): (Check, u32, u64),
    mut run: impl FnMut(&Mode) -> Result<Try, Halt>,
) -> Result<(Orders, Option<(Mode, ReportedFinding)>), Halt> {
    let exploration = Exploration { check, departures, runs };
    let outcome = search(&exploration, |mode| {
        let Tried { decisions, found } = run(mode)?;
        Ok(Tried { decisions, found: found.map(|finding| (mode.clone(), finding)) })
    });
    let Outcome { runs, within, exhausted, found } = outcome.map_err(|error| match error {
        ExploreError::Run(halt) => halt,
        error => Halt::Failed(anyhow!("{error}")),
    })?;
    let complete = found.is_none() && (exhausted || within == Some(departures));
    Ok((Orders { departures, runs, within, complete, exhausted }, found))
}

impl Orders {
    pub(super) fn runs(&self) -> u64 {
        self.runs
    }

    /// For people: how far it came.
    pub(super) fn told(&self, has_finding: bool) -> String {
        let runs = if self.runs == 1 { "1 run".to_owned() } else { format!("{} runs", self.runs) };
        let up_to = |count: u32| match count {
            0 => "the default order".to_owned(),
            _ => format!("every order with up to {}", departures(count)),
        };
        match (self.within, has_finding) {
            (Some(count), true) => {
                format!("ended by a finding after {runs}; {} had none", up_to(count))
            }
            (None, true) => format!("ended by a finding in the default order, after {runs}"),
            _ if self.exhausted => format!("complete: every order that there is, {runs}"),
            _ if self.complete => format!("complete: {}, {runs}", up_to(self.departures)),
            (Some(count), _) => {
                format!("stopped after {runs} (--max-runs); {} was run", up_to(count))
            }
            (None, _) => format!("stopped after {runs} (--max-runs)"),
        }
    }
}

/// For people: so many departures.
fn departures(count: u32) -> String {
    match count {
        0 => "no departure".to_owned(),
        1 => "1 departure".to_owned(),
        _ => format!("{count} departures"),
    }
}

#[cfg(test)]
mod tests {
    use mscclrs_gpu::simulation::Decision;

    use super::*;

    fn finding(kind: &str) -> ReportedFinding {
        ReportedFinding { kind: kind.into(), text: format!("{kind}!"), sites: Vec::new() }
    }

    fn found(kind: &str) -> Found {
        Found::new(finding(kind), &Mode::new(Check::Checked, 3), String::new())
    }

    /// A program of four decisions between two, which has another fault with each departure, and with none.
    fn run(mode: &Mode) -> Try {
        let Some(Schedule::Departures(list)) = &mode.schedule else { panic!("{mode}") };
        let state = |n: u64| {
            let before = list.list().iter().filter(|departure| departure.decision < n);
            before.fold(n, |state, departure| state * 64 + departure.decision + 1)
        };
        let decisions = (0..4).map(|n| Decision { alternatives: 2, state: state(n) }).collect();
        let found = match list.list() {
            [] => Some(finding("none")),
            [one] => Some(finding(&format!("one at {}", one.decision))),
            _ => None,
        };
        Tried { decisions, found }
    }

    fn shortened(kind: &str, limit: Duration) -> Found {
        let mut found = found(kind);
        let again = |mode: &Mode| format!("run {mode}");
        let mode = Mode::new(Check::Checked, 3);
        shorten(&mut found, &mode, limit, again, |mode, _| Ok(run(mode))).expect("goes on");
        found
    }

    #[test]
    fn the_first_run_with_the_same_kind_of_fault_is_the_shortest() {
        let long = Duration::from_secs(60);
        let found = shortened("one at 2", long);
        let shortest = found.shortest.expect("a shorter one");
        assert_eq!(shortest.again, "run checked,schedule=departures:2=1");
        assert_eq!(shortest.text, "one at 2!");
        let told = found.shortening.expect("told");
        assert!(told.contains("the fewest departures; 4 runs were made"), "{told}");
        let found = shortened("none", long);
        let told = found.shortening.expect("told");
        assert!(told.contains("the fewest departures; 1 run was made"), "{told}");
    }

    #[test]
    fn what_was_looked_through_in_vain_is_told() {
        let found = shortened("other", Duration::from_secs(60));
        assert!(found.shortest.is_none());
        let told = found.shortening.expect("told");
        assert!(
            told.ends_with("15 runs: all with at most 3 departures, have no fault of this kind"),
            "{told}"
        );
        let told = shortened("other", Duration::from_nanos(1)).shortening.expect("told");
        assert!(told.contains("0 runs were made within 0.000000001 s, without a fault"), "{told}");
        assert!(shortened("none", Duration::ZERO).shortening.is_none());
    }

    #[test]
    fn a_run_that_cannot_be_made_ends_the_search_and_not_the_check() {
        let mut found = found("race");
        let mode = Mode::new(Check::Checked, 3);
        let long = Duration::from_secs(60);
        let fails = |_: &Mode, _| Err(Halt::Failed(anyhow!("no memory")));
        shorten(&mut found, &mode, long, |_| String::new(), fails).expect("goes on");
        assert_eq!(found.shortening.as_deref(), Some("it was not shortened: no memory"));
        let interrupted = |_: &Mode, _| Err(Halt::Said(ExitCode::from(130)));
        let halt = shorten(&mut found, &mode, long, |_| String::new(), interrupted);
        assert!(matches!(halt, Err(Halt::Said(_))));
    }

    #[test]
    fn how_complete_an_exploration_is_is_told() {
        let right = |mode: &Mode| Ok(Tried { found: None, ..run(mode) });
        let told = |departures, runs| {
            let (orders, _) = explore((Check::Checked, departures, runs), right).expect("made");
            (orders.complete, orders.told(false))
        };
        assert_eq!(told(9, 100), (true, "complete: every order that there is, 16 runs".into()));
        let two = "complete: every order with up to 2 departures, 11 runs";
        assert_eq!(told(2, 100), (true, two.into()));
        let some = "stopped after 7 runs (--max-runs); every order with up to 1 departure was run";
        assert_eq!(told(2, 7), (false, some.into()));
        let one = "stopped after 1 run (--max-runs); the default order was run";
        assert_eq!(told(2, 1), (false, one.into()));
        let (orders, found) = explore((Check::Checked, 2, 9), |mode| Ok(run(mode))).expect("made");
        assert_eq!(found.map(|(_, finding)| finding.kind).as_deref(), Some("none"));
        assert_eq!(orders.told(true), "ended by a finding in the default order, after 1 run");
        assert!(!orders.complete);
    }
}

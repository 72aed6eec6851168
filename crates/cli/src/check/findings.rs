//! Findings, equal ones once.

use mscclrs_gpu::simulation::{Mode, ReportedFinding};
use serde::Serialize;

/// Findings of the same kind at the same lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Found {
    /// The first of them.
    #[serde(flatten)]
    pub(super) first: ReportedFinding,
    /// In how many runs.
    pub(super) runs: u64,
    /// The mode of the first, as `MSCCLRS_SIM` has it.
    pub(super) mode: String,
    /// What shows the first again, for a shell.
    pub(super) again: String,
    /// The shortest run with a fault of this kind, if one was found.
    pub(super) shortest: Option<Shortest>,
    /// What came of the search for it, for people; nothing if nobody searched.
    pub(super) shortening: Option<String>,
}

/// A run of few departures with a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shortest {
    /// Its mode, as `MSCCLRS_SIM` has it.
    pub(super) mode: String,
    /// What shows it again, for a shell.
    pub(super) again: String,
    /// What is found in it, for people.
    pub(super) text: String,
}

impl Found {
    /// What one run has found.
    pub(super) fn new(first: ReportedFinding, mode: &Mode, again: String) -> Found {
        let (mode, shortest, shortening) = (mode.to_string(), None, None);
        Found { first, runs: 1, mode, again, shortest, shortening }
    }

    /// Of the same kind at the same lines.
    fn is_same(&self, other: &Found) -> bool {
        let lines = |found: &Found| -> Vec<String> {
            found.first.sites.iter().map(|site| site.line.clone()).collect()
        };
        self.first.kind == other.first.kind && lines(self) == lines(other)
    }
}

/// Whether it is none that others have.
pub(super) fn is_new(all: &[Found], new: &Found) -> bool {
    !all.iter().any(|known| known.is_same(new))
}

/// Adds what was found by a run to what others found.
pub(super) fn add(all: &mut Vec<Found>, new: Found) {
    match all.iter_mut().find(|known| known.is_same(&new)) {
        Some(known) => known.runs += new.runs,
        None => all.push(new),
    }
}

#[cfg(test)]
mod tests {
    use mscclrs_gpu::simulation::{Check, ReportedSite};

    use super::*;

    fn found(kind: &str, lines: &[&str], seed: u64) -> Found {
        let site = |line: &&str| ReportedSite {
            what: "plain store".into(),
            kernel: "volley".into(),
            line: (*line).into(),
            device: seed as u32,
            block: 0,
            lane: 0,
            launch: 0,
        };
        let sites = lines.iter().map(site).collect();
        let first = ReportedFinding { kind: kind.into(), text: format!("{kind} {seed}"), sites };
        Found::new(first, &Mode::new(Check::Checked, seed), String::new())
    }

    #[test]
    fn the_same_kind_at_the_same_lines_is_one_finding_and_the_first_stays() {
        let mut all = Vec::new();
        for (new, expected) in [
            (found("race", &["a:1", "b:2"], 0), true),
            (found("race", &["a:1", "b:2"], 1), false),
            (found("race", &["b:2", "a:1"], 2), true),
            (found("deadlock", &[], 3), true),
            (found("deadlock", &[], 4), false),
        ] {
            assert_eq!(is_new(&all, &new), expected);
            add(&mut all, new);
        }
        let runs: Vec<_> = all.iter().map(|found| (found.runs, found.mode.as_str())).collect();
        assert_eq!(runs, [(2, "checked,seed=0"), (1, "checked,seed=2"), (2, "checked,seed=3")]);
    }
}

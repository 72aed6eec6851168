//! Findings, equal ones once.

use mscclrs_gpu::simulation::ReportedFinding;
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
}

/// Adds what was found by a run to what others found; true if it is new.
pub(super) fn add(all: &mut Vec<Found>, new: Found) -> bool {
    let is_same = |known: &&mut Found| {
        let lines = |found: &Found| -> Vec<String> {
            found.first.sites.iter().map(|site| site.line.clone()).collect()
        };
        known.first.kind == new.first.kind && lines(known) == lines(&new)
    };
    match all.iter_mut().find(is_same) {
        Some(known) => {
            known.runs += new.runs;
            false
        }
        None => {
            all.push(new);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use mscclrs_gpu::simulation::ReportedSite;

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
        Found { first, runs: 1, mode: format!("checked,seed={seed}"), again: String::new() }
    }

    #[test]
    fn the_same_kind_at_the_same_lines_is_one_finding_and_the_first_stays() {
        let mut all = Vec::new();
        assert!(add(&mut all, found("race", &["a:1", "b:2"], 0)));
        assert!(!add(&mut all, found("race", &["a:1", "b:2"], 1)));
        assert!(add(&mut all, found("race", &["b:2", "a:1"], 2)));
        assert!(add(&mut all, found("deadlock", &[], 3)));
        assert!(!add(&mut all, found("deadlock", &[], 4)));
        let runs: Vec<_> = all.iter().map(|found| (found.runs, found.mode.as_str())).collect();
        assert_eq!(runs, [(2, "checked,seed=0"), (1, "checked,seed=2"), (2, "checked,seed=3")]);
    }
}

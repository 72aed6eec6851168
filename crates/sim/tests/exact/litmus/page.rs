//! The table of docs/src/memory-model.md: a row for each program, with and without scopes that hold its
//! lanes.

use std::collections::BTreeSet;

use super::program::{Kind, Operation, Order, Outcome};
use super::ptx;
use super::tests::{Litmus, TESTS};

const PAGE: &str = include_str!("../../../../../docs/src/memory-model.md");

/// Most outcomes that a row lists.
const MOST: usize = 6;

fn operation(operation: &Operation) -> String {
    let name = |at: u8| ["x", "y", "z"][at as usize];
    let (plain, order) = match operation.order {
        Order::Plain => (true, "plain"),
        Order::Relaxed => (false, "relaxed"),
        Order::Acquire => (false, "acquire"),
        Order::Release => (false, "release"),
        Order::AcqRel => (false, "acq_rel"),
    };
    let suffix = if plain { String::new() } else { format!(".{order}") };
    match operation.kind {
        Kind::Write(at, value) => format!("st{suffix} {} {value}", name(at)),
        Kind::Read(at) => format!("ld{suffix} {}", name(at)),
        Kind::Add(at, value) => format!("add{suffix} {} {value}", name(at)),
        Kind::Fence => format!("fence{suffix}"),
    }
}

fn digits(outcome: &[u64]) -> String {
    outcome.iter().map(u64::to_string).collect()
}

fn listed(outcomes: &BTreeSet<Outcome>, of: &BTreeSet<Outcome>) -> String {
    if outcomes == of {
        return "all".into();
    }
    let left_out: Vec<String> = of.difference(outcomes).map(|outcome| digits(outcome)).collect();
    if outcomes.len() > MOST && left_out.len() <= MOST {
        return format!("all but {}", left_out.join(" "));
    }
    if outcomes.len() > MOST {
        return format!("{} of {}", outcomes.len(), of.len());
    }
    outcomes.iter().map(|outcome| digits(outcome)).collect::<Vec<_>>().join(" ")
}

impl Litmus {
    fn row(&self, held: bool) -> String {
        let lanes: Vec<String> = self
            .lanes
            .iter()
            .map(|lane| lane.iter().map(operation).collect::<Vec<_>>().join("; "))
            .collect();
        let imaginable = ptx::imaginable(self.lanes);
        assert!(imaginable.contains(self.weak), "{} {}", self.name, self.form);
        let (allowed, made) = (ptx::allowed(self.lanes, held), ptx::made(self.lanes, held));
        let weak = match (allowed.contains(self.weak), made.contains(self.weak)) {
            (false, _) => "forbidden",
            (true, true) => "made",
            (true, false) => "never made",
        };
        format!(
            "| {} | {} | `{}` | {} | {} | {} | {} {weak} |",
            self.name,
            self.form,
            lanes.join(" / "),
            if held { "yes" } else { "no" },
            listed(&allowed, &imaginable),
            listed(&made, &imaginable),
            digits(self.weak),
        )
    }

    /// Whether PTX allows the weak outcome somewhere and weak mode does not make it.
    fn is_never_made(&self) -> bool {
        [true, false].into_iter().any(|held| self.row(held).ends_with("never made |"))
    }
}

#[test]
fn the_page_has_what_the_tests_assert() {
    let rows: Vec<String> =
        TESTS.iter().flat_map(|test| [true, false].map(|held| test.row(held))).collect();
    let there: Vec<&str> = PAGE
        .lines()
        .filter(|line| TESTS.iter().any(|test| line.starts_with(&format!("| {} |", test.name))))
        .collect();
    assert!(there == rows, "the table should be\n{}", rows.join("\n"));
}

#[test]
fn the_page_names_what_is_never_made() {
    let section = PAGE.split("## What the engine never makes").nth(1).unwrap();
    for test in TESTS.iter().filter(|test| test.is_never_made()) {
        assert!(section.contains(&format!("**{}**", test.name)), "{}", test.name);
    }
}

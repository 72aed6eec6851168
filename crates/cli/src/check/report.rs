//! What a check prints: a row for each mode and algorithm, and each finding once.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::findings::{Found, Shortest};
use super::orders::Orders;
use crate::bench::report::Report;

/// A row: the runs of one mode of what is checked.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// The collective, or the command as a shell reads it.
    pub(super) what: String,
    /// Of a collective.
    pub(super) algorithm: Option<String>,
    pub(super) mode: &'static str,
    /// Runs of a seed each, or of the departures that were given.
    pub(super) seeds: u64,
    /// Runs of every order that few departures make.
    pub(super) orders: Option<Orders>,
    /// Of a command: kernels that were begun.
    pub(super) kernels: Option<u64>,
    /// Accesses of lanes that were looked at.
    pub(super) accesses: u64,
    /// Runs in which something was found.
    pub(super) findings: u64,
    pub(super) found: Vec<Found>,
}

impl Row {
    pub(super) fn new(what: &str, algorithm: Option<String>, mode: &'static str) -> Row {
        Row {
            what: what.to_owned(),
            algorithm,
            mode,
            seeds: 0,
            orders: None,
            kernels: None,
            accesses: 0,
            findings: 0,
            found: Vec::new(),
        }
    }
}

/// The table, the findings, JSON and progress.
pub(super) struct Table {
    report: Report,
    /// What stands above the rows, until there is one: who made a mistake gets no table.
    head: Option<String>,
    findings: u64,
    widest: usize,
}

impl Table {
    /// `runs` is what there are so many of in each row. `algorithms` are all there will be; without any, what
    /// is checked is a command.
    pub(super) fn open(
        json: Option<&Path>,
        steps: u64,
        (title, runs): (&str, &str),
        algorithms: &[String],
    ) -> Table {
        let widest = algorithms.iter().map(String::len).max().unwrap_or(0);
        let mut head = String::from("# ");
        if widest > 0 {
            let _ = write!(head, " {:widest$}", "algorithm");
        }
        let _ = write!(head, " {:8} {:>6}", "mode", runs);
        if widest == 0 {
            let _ = write!(head, " {:>9}", "kernels");
        }
        let _ = write!(head, " {:>13} {:>9}", "accesses", "findings");
        let head = Some(format!("# {title}\n#\n{head}"));
        Table { report: Report::open(json, steps), head, findings: 0, widest }
    }

    fn print(&mut self, lines: &str) -> Result<()> {
        if let Some(head) = self.head.take() {
            self.report.print(&head)?;
        }
        self.report.print(lines)
    }

    /// What is run now, for a person at a terminal.
    pub(super) fn step(&self, what: String) {
        self.report.step(what);
    }

    /// What is run now beside the steps.
    pub(super) fn note(&self, what: String) {
        self.report.note(what);
    }

    /// A finding that was not told yet.
    pub(super) fn tell(&mut self, found: &Found) -> Result<()> {
        let Found { first, mode, again, shortest, shortening, .. } = found;
        let text = shortest.as_ref().map_or(&first.text, |shortest| &shortest.text);
        let mut lines = format!("\n{text}\n\n  found with {mode}; to see it again:\n    {again}\n");
        if let Some(told) = shortening {
            let _ = write!(lines, "  {told}");
        }
        if let Some(Shortest { again, .. }) = shortest {
            let _ = write!(lines, "; to see it again:\n    {again}");
        }
        if shortening.is_some() {
            lines.push('\n');
        }
        self.print(&lines)
    }

    /// A row, which is whole.
    pub(super) fn add(&mut self, row: &Row) -> Result<()> {
        let mut line = String::from("  ");
        if self.widest > 0 {
            let algorithm = row.algorithm.as_deref().unwrap_or_default();
            let _ = write!(line, " {algorithm:width$}", width = self.widest);
        }
        let runs = row.orders.as_ref().map_or(row.seeds, Orders::runs);
        let _ = write!(line, " {:8} {runs:>6}", row.mode);
        if let Some(kernels) = row.kernels {
            let _ = write!(line, " {kernels:>9}");
        }
        let _ = write!(line, " {:>13} {:>9}", row.accesses, row.findings);
        if let Some(orders) = &row.orders {
            let _ = write!(line, "\n#   {}", orders.told(row.findings > 0));
        }
        self.findings += row.findings;
        self.print(&line)?;
        self.report.write(row)
    }

    /// Tells findings that several runs had, and ends the table.
    pub(super) fn finish(&mut self, all: &[Found]) -> Result<()> {
        let mut lines = String::from("#");
        for found in all.iter().filter(|found| found.runs > 1) {
            let Found { first, runs, mode, .. } = found;
            let at: Vec<_> = first.sites.iter().map(|site| site.line.as_str()).collect();
            let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(", ")) };
            let _ = write!(lines, "\n# {}{at}: in {runs} runs, first with {mode}", first.kind);
        }
        let _ = match self.findings {
            0 => write!(lines, "\n# Nothing was found."),
            1 => write!(lines, "\n# One run with a finding."),
            n => write!(lines, "\n# {n} runs with findings."),
        };
        self.print(&lines)?;
        self.report.finish()
    }
}

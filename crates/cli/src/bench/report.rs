//! What the first rank prints and writes while it measures.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::usage::usage;

/// Table, JSON and progress of a run. Ranks other than the first have none.
pub(crate) struct Report {
    table: Box<dyn Write>,
    json: Option<Box<dyn Write>>,
    bar: ProgressBar,
}

impl Report {
    /// Opens the files; the table goes to standard error if JSON goes to standard output.
    pub(crate) fn open(json: Option<&Path>, steps: u64) -> Result<Report> {
        let to_stdout = json.is_some_and(is_stdout);
        let table: Box<dyn Write> = match to_stdout {
            true => Box::new(std::io::stderr()),
            false => Box::new(std::io::stdout()),
        };
        let json: Option<Box<dyn Write>> = match json {
            Some(_) if to_stdout => Some(Box::new(std::io::stdout())),
            Some(path) => Some(Box::new(
                File::create(path)
                    .with_context(|| format!("{} cannot be written", path.display()))?,
            )),
            None => None,
        };
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr_with_hz(5),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Ok(Report { table, json, bar })
    }

    /// What is being measured now, for a person at a terminal.
    pub(crate) fn step(&self, what: String) {
        self.bar.set_message(what);
        self.bar.inc(1);
    }

    /// Prints lines of the table.
    pub(crate) fn print(&mut self, lines: &str) -> Result<()> {
        let table = &mut self.table;
        self.bar
            .suspend(|| writeln!(table, "{lines}").and_then(|()| table.flush()))
            .context("the table cannot be written")
    }

    /// Writes an object of its own line.
    pub(crate) fn write(&mut self, row: &impl Serialize) -> Result<()> {
        let Some(json) = &mut self.json else { return Ok(()) };
        let line = serde_json::to_string(row)?;
        let bar = &self.bar;
        bar.suspend(|| writeln!(json, "{line}").and_then(|()| json.flush()))
            .context("the JSON cannot be written")
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// An error if a file that results go to cannot be written, before any rank starts.
pub(crate) fn require_writable(option: &str, path: Option<&PathBuf>) -> Result<()> {
    let Some(path) = path.filter(|path| !is_stdout(path)) else { return Ok(()) };
    match File::options().append(true).create(true).open(path) {
        Ok(_) => Ok(()),
        Err(why) => Err(usage!(
            "{option}: '{}' cannot be written ({why}); allowed is a file in a folder that exists and \
             that you may write to",
            path.display()
        )),
    }
}

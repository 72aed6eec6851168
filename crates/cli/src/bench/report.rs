//! What the first rank prints and writes while it measures.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

use crate::bench::files;
use crate::output::written;
use crate::stats;

/// Table, JSON and progress of a run. Ranks other than the first have none.
pub(crate) struct Report {
    table: Box<dyn Write>,
    json: Json,
    bar: ProgressBar,
}

/// Where rows go.
enum Json {
    /// To a file, when the run is whole.
    File {
        path: PathBuf,
        rows: String,
    },
    Nowhere,
    /// At once.
    Stdout,
}

impl Report {
    /// The table goes to standard error if JSON goes to standard output.
    pub(crate) fn open(json: Option<&Path>, steps: u64) -> Report {
        let json = match json {
            Some(path) if is_stdout(path) => Json::Stdout,
            Some(path) => Json::File { path: path.to_owned(), rows: String::new() },
            None => Json::Nowhere,
        };
        let table: Box<dyn Write> = match json {
            Json::Stdout => Box::new(io::stderr()),
            _ => Box::new(io::stdout()),
        };
        let target = match io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr_with_hz(5),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Report { table, json, bar }
    }

    /// What is being measured now, for a person at a terminal.
    pub(crate) fn step(&self, what: String) {
        self.bar.set_message(what);
        self.bar.inc(1);
    }

    /// What is done now beside what is measured.
    pub(crate) fn note(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Prints lines of the table.
    pub(crate) fn print(&mut self, lines: &str) -> Result<()> {
        let table = &mut self.table;
        let print = || writeln!(table, "{lines}").and_then(|()| table.flush());
        written(self.bar.suspend(print), "the table")
    }

    /// Adds an object of its own line.
    pub(crate) fn write(&mut self, row: &impl Serialize) -> Result<()> {
        match &mut self.json {
            Json::File { rows, .. } => {
                rows.push_str(&line(row)?);
                rows.push('\n');
                Ok(())
            }
            Json::Nowhere => Ok(()),
            Json::Stdout => {
                let line = line(row)?;
                let mut stdout = io::stdout();
                let print = || writeln!(stdout, "{line}").and_then(|()| stdout.flush());
                written(self.bar.suspend(print), "the JSON")
            }
        }
    }

    /// The run is whole: writes the file. Without it the file stays as it was.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match &self.json {
            Json::File { path, rows } => files::write(path, rows),
            Json::Nowhere | Json::Stdout => Ok(()),
        }
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

/// An error if rows cannot be written, before any rank starts.
pub(crate) fn require_writable(json: Option<&Path>) -> Result<()> {
    match json {
        Some(path) if !is_stdout(path) => files::require_writable("--json", path),
        _ => Ok(()),
    }
}

/// A row as JSON.
fn line(row: &impl Serialize) -> Result<String> {
    let mut line = Vec::new();
    row.serialize(&mut Serializer::with_formatter(&mut line, Figures))?;
    Ok(String::from_utf8(line)?)
}

/// Writes every float with the digits that a measurement has.
struct Figures;

impl Formatter for Figures {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        CompactFormatter.write_f64(writer, stats::figure(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_six_digits() {
        #[derive(Serialize)]
        struct Row {
            time_us: f64,
            #[serde(flatten)]
            more: More,
        }
        #[derive(Serialize)]
        struct More {
            spread_us: f64,
            ratio: Option<f64>,
            bytes: u64,
        }
        let more = More { spread_us: 0.000193643569, ratio: Some(1.0 / 3.0), bytes: 123456789 };
        let text = line(&Row { time_us: 2.2016000002622604, more }).expect("written");
        assert_eq!(
            text,
            r#"{"time_us":2.2016,"spread_us":0.000193644,"ratio":0.333333,"bytes":123456789}"#
        );
    }

    #[test]
    fn a_file_is_written_when_the_run_is_whole() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("rows.json");
        std::fs::write(&path, "old").expect("written");
        let mut report = Report::open(Some(&path), 1);
        report.write(&[1]).expect("kept");
        drop(report);
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "old");
        let mut report = Report::open(Some(&path), 1);
        report.write(&[1]).expect("kept");
        report.write(&[2]).expect("kept");
        report.finish().expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "[1]\n[2]\n");
    }
}

//! What was measured, as a table and as JSON.

use std::fmt;

use serde::Serialize;

use crate::harness::Timing;
use crate::stats;

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    AllReduce,
    Bandwidth,
    Empty,
    Handle,
    Hop,
    Wait,
}

impl Kind {
    const fn title(self) -> &'static str {
        match self {
            Kind::AllReduce => {
                "bare allreduce, bf16 sum, out of place, 2 ranks (* best of its size)"
            }
            Kind::Bandwidth => "bandwidth, each direction",
            Kind::Empty => "empty kernel",
            Kind::Handle => "a pointer out of an array, a load and a store, by 32 lanes",
            Kind::Hop => "hop between the ranks",
            Kind::Wait => "hop between the ranks, by ways to signal and to wait",
        }
    }
}

/// Who copies at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    /// Both ranks.
    BothWays,
    /// Rank 0.
    OneWay,
}

impl Direction {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Direction::BothWays => "both ways",
            Direction::OneWay => "one way",
        }
    }
}

/// One figure. In JSON an object on a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) limit: Kind,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) direction: Option<Direction>,
    /// Blocks and lanes a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grid: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// Microseconds an operation.
    pub(crate) time_us: f64,
    pub(crate) spread_us: f64,
    /// Of one direction, in 10^9 bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth_gbps: Option<f64>,
    /// The fastest of its kind and size.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) best: bool,
}

impl Row {
    pub(crate) fn new(limit: Kind, name: impl Into<String>, timing: Timing) -> Row {
        Row {
            limit,
            name: name.into(),
            direction: None,
            grid: None,
            bytes: None,
            time_us: timing.time_us,
            spread_us: timing.spread_us,
            bandwidth_gbps: None,
            best: false,
        }
    }

    /// The operation moved so many bytes in a direction.
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.bytes = Some(bytes);
        self.bandwidth_gbps = Some(stats::bandwidth(bytes, self.time_us));
    }
}

/// All figures of a run; equal on every rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    device: String,
    notes: Vec<String>,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(device: String) -> Report {
        Report { device, notes: Vec::new(), rows: Vec::new() }
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The rows as JSON has them, an object each.
    pub(crate) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.rows.iter().map(|row| Line { op: "limits", row, device: &self.device })
    }
}

/// A row as JSON has it.
#[derive(Serialize)]
pub(crate) struct Line<'a> {
    op: &'static str,
    #[serde(flatten)]
    row: &'a Row,
    device: &'a str,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# what this machine allows: {}", self.device)?;
        for note in &self.notes {
            writeln!(f, "# {note}")?;
        }
        let name = self.rows.iter().map(|row| row.name.len()).max().unwrap_or_default();
        let mut before = None;
        for row in &self.rows {
            if before != Some((row.limit, row.direction)) {
                before = Some((row.limit, row.direction));
                let direction = row.direction.map(|d| format!(", {}", d.name()));
                writeln!(f, "#\n# {}{}", row.limit.title(), direction.unwrap_or_default())?;
                writeln!(
                    f,
                    "# {:<name$} {:>10} {:>11} {:>10} {:>9} {:>9}",
                    "what", "grid", "bytes", "time (us)", "spread", "GB/s"
                )?;
            }
            let grid = row.grid.map(|(blocks, threads)| format!("{blocks}x{threads}"));
            let bytes = row.bytes.map(|bytes| bytes.to_string());
            let bandwidth = row.bandwidth_gbps.map(|bandwidth| format!("{bandwidth:.1}"));
            writeln!(
                f,
                "{} {:<name$} {:>10} {:>11} {:>10.3} {:>9.3} {:>9}",
                if row.best { '*' } else { ' ' },
                row.name,
                grid.unwrap_or_default(),
                bytes.unwrap_or_default(),
                row.time_us,
                row.spread_us,
                bandwidth.unwrap_or_default(),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let timing = Timing { time_us: 2.0, spread_us: 0.1 };
        let mut report = Report::new("a device".into());
        report.note("a note".into());
        report.push(Row::new(Kind::Hop, "signal", timing));
        let mut row = Row::new(Kind::Bandwidth, "stores", timing);
        row.grid = Some((16, 1024));
        row.direction = Some(Direction::OneWay);
        row.moved(2_000_000);
        report.push(row);
        report
    }

    #[test]
    fn json_has_an_object_a_row() {
        let report = report();
        let lines: Vec<_> =
            report.lines().map(|line| serde_json::to_value(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["limit"], "hop");
        assert_eq!(lines[0]["device"], "a device");
        assert!(lines[0].get("bytes").is_none());
        assert_eq!(lines[1]["direction"], "one_way");
        assert_eq!(lines[1]["bandwidth_gbps"], 1000.0);
        assert_eq!(lines[1]["grid"], serde_json::json!([16, 1024]));
    }

    #[test]
    fn table_heads_each_kind_once_and_keeps_notes() {
        let table = report().to_string();
        assert_eq!(table.matches("hop between the ranks").count(), 1);
        assert!(table.contains("bandwidth, each direction, one way"));
        assert!(table.contains("# a note\n"));
        assert!(table.contains("1000.0"));
    }
}

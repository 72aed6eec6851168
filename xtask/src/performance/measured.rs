//! A measured file: a header on its first line, then the rows as `mscclrs bench --json` wrote them.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// What made the rows.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub(crate) title: String,
    pub(crate) command: String,
    pub(crate) machine: String,
    pub(crate) date: String,
    /// More that a reader has to know.
    #[serde(default)]
    pub(crate) note: String,
}

/// A row of `bench allreduce` or `bench allgather`; what no table shows is left out.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct CollectiveRow {
    pub(crate) op: String,
    pub(crate) bytes: u64,
    pub(crate) dtype: String,
    pub(crate) redop: String,
    pub(crate) in_place: bool,
    pub(crate) time_us: f64,
    pub(crate) busbw_gbps: f64,
    pub(crate) wrong: Option<u64>,
    pub(crate) implementation: String,
    pub(crate) algorithm: String,
    pub(crate) ranks: u32,
    pub(crate) device: String,
    pub(crate) graph: u64,
    pub(crate) buffers: String,
    #[serde(default)]
    pub(crate) bare_us: Option<f64>,
}

/// A row of `bench signal` or `bench packet`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct HopRow {
    pub(crate) op: String,
    pub(crate) bytes: u64,
    pub(crate) time_us: f64,
    pub(crate) spread_us: f64,
    pub(crate) round_trip_us: f64,
}

/// A row of `bench limits`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct LimitRow {
    pub(crate) limit: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) direction: Option<String>,
    #[serde(default)]
    pub(crate) grid: Option<(u32, u32)>,
    #[serde(default)]
    pub(crate) bytes: Option<u64>,
    pub(crate) time_us: f64,
    pub(crate) spread_us: f64,
    #[serde(default)]
    pub(crate) bandwidth_gbps: Option<f64>,
}

/// A file.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) header: Header,
    pub(crate) collectives: Vec<CollectiveRow>,
    pub(crate) hops: Vec<HopRow>,
    pub(crate) limits: Vec<LimitRow>,
}

impl Measured {
    /// Reads a file; an error names the line.
    pub(crate) fn parse(text: &str) -> Result<Measured> {
        let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        let (first, _) = lines.next().context("the file is empty")?;
        let header = serde_json::from_str(first).context(
            "line 1 has to be a header: {\"title\": .., \"command\": .., \"machine\": .., \
             \"date\": ..}",
        )?;
        let (collectives, hops, limits) = (Vec::new(), Vec::new(), Vec::new());
        let mut measured = Measured { header, collectives, hops, limits };
        for (line, number) in lines {
            measured.add(line).with_context(|| format!("line {number}"))?;
        }
        Ok(measured)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        #[derive(Deserialize)]
        struct Kind {
            op: String,
        }
        let Kind { op } = serde_json::from_str(line)?;
        match op.as_str() {
            "allgather" | "allreduce" => {
                let row: CollectiveRow = serde_json::from_str(line)?;
                if row.wrong.is_some_and(|wrong| wrong > 0) {
                    bail!("a row with wrong results is no measurement");
                }
                self.collectives.push(row);
            }
            "limits" => self.limits.push(serde_json::from_str(line)?),
            _ => self.hops.push(serde_json::from_str(line)?),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"title":"t","command":"c","machine":"m","date":"d"}"#;

    #[test]
    fn rows_are_told_apart_by_their_operation() {
        let text = [
            HEADER,
            r#"{"op":"signal","bytes":0,"time_us":1.5,"round_trip_us":3.0,"spread_us":0.1,"ranks":2}"#,
            r#"{"op":"limits","limit":"empty","name":"graph node","grid":[1,32],"time_us":0.7,"spread_us":0.1}"#,
            "",
        ];
        let measured = Measured::parse(&text.join("\n")).unwrap();
        assert_eq!((measured.hops.len(), measured.limits.len()), (1, 1));
        assert_eq!(measured.limits[0].grid, Some((1, 32)));
    }

    #[test]
    fn error_names_the_line() {
        let error = |rows: &str| format!("{:#}", Measured::parse(rows).unwrap_err());
        assert!(error("").contains("empty"));
        assert!(error(r#"{"op":"signal"}"#).contains("line 1 has to be a header"));
        let broken = format!("{HEADER}\n\n{{\"op\":\"signal\"}}");
        assert!(error(&broken).contains("line 3") && error(&broken).contains("bytes"));
    }
}

//! Markdown of a measured file. Every figure is computed here, from the times in the file.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use super::measured::{CollectiveRow, HopRow, LimitRow, Measured};

const OURS: &str = "mscclrs";
const PLAIN: &str = "nccl plain";
const SYMMETRIC: &str = "nccl symmetric";
/// Where nothing was measured.
const NOTHING: &str = "–";

/// What a file says.
pub(super) fn section(name: &str, file: &Measured) -> Result<String> {
    let header = &file.header;
    let mut text = format!(
        "## {}\n\n    {}\n\n{}, {}; the rows are in docs/performance/{name}.\n",
        header.title, header.command, header.machine, header.date
    );
    if !header.note.is_empty() {
        text.push_str(&format!("{}\n", header.note));
    }
    let mut groups: Vec<Vec<&CollectiveRow>> = Vec::new();
    for row in &file.collectives {
        match groups.iter_mut().find(|group| what(group[0]) == what(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    for group in groups {
        text.push_str(&format!("\n{}:\n\n{}", what(group[0]), collective(&group)?));
    }
    if !file.hops.is_empty() {
        text.push_str(&format!("\n{}", hops(&file.hops)));
    }
    if !file.limits.is_empty() {
        text.push_str(&format!("\n{}", limits(&file.limits)));
    }
    Ok(text)
}

/// What the rows of a table have in common.
fn what(row: &CollectiveRow) -> String {
    let reduction = if row.redop == "none" { String::new() } else { format!(" {}", row.redop) };
    let graph = match row.graph {
        0 => "launched one by one".to_owned(),
        graph => format!("graphs of {graph}"),
    };
    format!(
        "{} of {}{reduction}, {} ranks on {}, {} buffers, {graph}",
        row.op, row.dtype, row.ranks, row.device, row.buffers
    )
}

/// Times are in place, with ours out of place beside it; so are ratios.
fn collective(rows: &[&CollectiveRow]) -> Result<String> {
    let mut cells = BTreeMap::new();
    let mut sizes = BTreeSet::new();
    for row in rows {
        if ![OURS, PLAIN, SYMMETRIC].contains(&row.implementation.as_str()) {
            bail!("'{}' is not an implementation that the page knows", row.implementation);
        }
        sizes.insert(row.bytes);
        let key = (row.bytes, row.implementation.as_str(), row.in_place);
        if cells.insert(key, *row).is_some() {
            bail!("{} bytes of {} are there twice", row.bytes, row.implementation);
        }
    }
    let mut text = head(&[
        "bytes",
        "in place us",
        "out of place us",
        "busbw GB/s",
        "algorithm",
        "NCCL plain us",
        "NCCL symmetric us",
        "better NCCL / ours",
        "bare us",
        "over bare",
    ]);
    for bytes in sizes {
        let row = |implementation, in_place| cells.get(&(bytes, implementation, in_place)).copied();
        let time = |row: Option<&CollectiveRow>| row.map(|row| row.time_us);
        let (inside, outside) = (row(OURS, true), row(OURS, false));
        let ours = time(inside);
        let (plain, symmetric) = (time(row(PLAIN, true)), time(row(SYMMETRIC, true)));
        let better = [plain, symmetric].into_iter().flatten().min_by(f64::total_cmp);
        let bare = [inside, outside].into_iter().flatten().find_map(|row| row.bare_us);
        text.push_str(&line(&[
            size(bytes),
            figure(ours),
            figure(time(outside)),
            figure(inside.map(|row| row.busbw_gbps)),
            algorithms(inside, outside),
            figure(plain),
            figure(symmetric),
            cell(better.zip(ours).map(|(better, ours)| format!("{:.2}", better / ours))),
            figure(bare),
            cell(
                ours.zip(bare).map(|(ours, bare)| format!("{:+.1} %", 100.0 * (ours / bare - 1.0))),
            ),
        ]));
    }
    Ok(text)
}

fn algorithms(inside: Option<&CollectiveRow>, outside: Option<&CollectiveRow>) -> String {
    let mut names: Vec<&str> =
        [inside, outside].into_iter().flatten().map(|row| row.algorithm.as_str()).collect();
    names.dedup();
    names.join(", ")
}

fn hops(rows: &[HopRow]) -> String {
    let mut text = head(&["hop", "bytes", "us", "spread us", "round trip us"]);
    for row in rows {
        let bytes = row.bytes.to_string();
        let times =
            [row.time_us, row.spread_us, row.round_trip_us].map(|time| format!("{time:.3}"));
        text.push_str(&line(&[&[row.op.clone(), bytes][..], &times].concat()));
    }
    text
}

fn limits(rows: &[LimitRow]) -> String {
    let columns =
        ["limit", "what", "direction", "blocks x lanes", "bytes", "us", "spread us", "GB/s"];
    let mut text = head(&columns);
    for row in rows {
        text.push_str(&line(&[
            row.limit.clone(),
            row.name.clone(),
            cell(row.direction.as_ref().map(|direction| direction.replace('_', " "))),
            cell(row.grid.map(|(blocks, lanes)| format!("{blocks} x {lanes}"))),
            cell(row.bytes.map(size)),
            figure(Some(row.time_us)),
            format!("{:.3}", row.spread_us),
            figure(row.bandwidth_gbps),
        ]));
    }
    text
}

fn head(columns: &[&str]) -> String {
    let columns: Vec<_> = columns.iter().map(|&column| column.to_owned()).collect();
    format!("{}|{}\n", line(&columns), "---|".repeat(columns.len()))
}

fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn cell(text: Option<String>) -> String {
    text.unwrap_or_else(|| NOTHING.to_owned())
}

fn figure(value: Option<f64>) -> String {
    cell(value.map(|value| match value {
        value if value < 100.0 => format!("{value:.2}"),
        value if value < 10_000.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }))
}

/// Whole multiples of 1024 by their names.
fn size(bytes: u64) -> String {
    let names = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match names.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"title":"Two","command":"run it","machine":"2 GPUs","date":"today"}"#;

    fn row(implementation: &str, in_place: bool, time_us: f64, more: &str) -> String {
        format!(
            r#"{{"op":"allreduce","bytes":1024,"count":512,"dtype":"bfloat16","redop":"sum","in_place":{in_place},"time_us":{time_us},"spread_us":0.1,"algbw_gbps":1.0,"busbw_gbps":0.5,"wrong":0,"implementation":"{implementation}","algorithm":"a","ranks":2,"device":"G","graph":20,"buffers":"symmetric"{more}}}"#
        )
    }

    fn section_of(rows: &[String]) -> Result<String> {
        let text = format!("{HEADER}\n{}\n", rows.join("\n"));
        section("two.json", &Measured::parse(&text)?)
    }

    #[test]
    fn ratio_is_to_the_better_mode_and_both_compare_in_place() {
        let rows = [
            row(OURS, false, 2.2, r#","ratio":9.0,"bare_us":2.0"#),
            row(OURS, true, 2.1, r#","ratio":9.0,"bare_us":2.0"#),
            row(PLAIN, false, 1.0, ""),
            row(PLAIN, true, 8.4, ""),
            row(SYMMETRIC, true, 4.2, ""),
        ];
        let text = section_of(&rows).unwrap();
        let line = "| 1 KiB | 2.10 | 2.20 | 0.50 | a | 8.40 | 4.20 | 2.00 | 2.00 | +5.0 % |\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("allreduce of bfloat16 sum, 2 ranks on G, symmetric buffers"));
        assert!(text.contains("    run it\n") && text.contains("2 GPUs, today"), "{text}");
    }

    #[test]
    fn what_was_not_measured_stays_open() {
        let text = section_of(&[row(OURS, true, 2.1, "")]).unwrap();
        assert!(text.contains("| 1 KiB | 2.10 | – | 0.50 | a | – | – | – | – | – |\n"), "{text}");
    }

    #[test]
    fn doubtful_rows_are_refused() {
        let twice = [row(OURS, true, 2.1, ""), row(OURS, true, 2.2, "")];
        assert!(section_of(&twice).unwrap_err().to_string().contains("twice"));
        let error = section_of(&[row("mpi", true, 2.1, "")]).unwrap_err();
        assert!(error.to_string().contains("'mpi'"));
        let wrong = row(OURS, true, 2.1, "").replace(r#""wrong":0"#, r#""wrong":1"#);
        assert!(format!("{:#}", section_of(&[wrong]).unwrap_err()).contains("wrong results"));
    }

    #[test]
    fn sizes_have_names_where_they_are_whole() {
        assert_eq!(
            [8, 1024, 1536, 3 << 20, 1 << 33].map(size),
            ["8", "1 KiB", "1536", "3 MiB", "8 GiB"]
        );
    }
}

//! The table that people know from nccl-tests, with the spread and the algorithm at its right.

use std::fmt::Write;

use crate::bench::row::Row;

/// The three lines above the rows.
pub(crate) fn head() -> String {
    let group = |name: &str| format!("{name:^37}");
    let names = format!("{:>8} {:>8} {:>8} {:>6}", "time", "algbw", "busbw", "#wrong");
    let units = format!("{:>8} {:>8} {:>8} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
    let ends = format!("{:>8} {:>8}  algorithm", "spread", "spread");
    let lines = [
        format!("#{:>43}   {}{}{:>16}", "", group("out-of-place"), group("in-place"), ""),
        format!(
            "#{:>12} {:>13} {:>9} {:>6}   {names}   {names}   {ends}",
            "size", "count", "type", "redop"
        ),
        format!(
            "#{:>12} {:>13} {:>9} {:>6}   {units}   {units}   {:>8} {:>8}",
            "(B)", "(elements)", "", "", "out (us)", "in (us)"
        ),
    ];
    lines.map(|line| line.trim_end().to_owned()).join("\n")
}

/// A line of the same implementation out of place and in place.
pub(crate) fn line(out_of_place: &Row, in_place: &Row) -> String {
    let mut line = format!(
        "{:>13} {:>13} {:>9} {:>6}",
        out_of_place.bytes, out_of_place.count, out_of_place.dtype, out_of_place.redop
    );
    for row in [out_of_place, in_place] {
        let wrong = row.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string());
        let _ = write!(
            line,
            "   {:>8} {:>8} {:>8} {wrong:>6}",
            figure(row.time_us),
            figure(row.algbw_gbps),
            figure(row.busbw_gbps)
        );
    }
    let _ = write!(
        line,
        "   {:>8} {:>8}  {}",
        figure(out_of_place.spread_us),
        figure(in_place.spread_us),
        out_of_place.algorithm
    );
    if in_place.algorithm != out_of_place.algorithm {
        let _ = write!(line, " / {}", in_place.algorithm);
    }
    if let (Some(out), Some(inside)) = (out_of_place.ratio, in_place.ratio) {
        let _ = write!(line, "  {out:.2}x / {inside:.2}x");
    }
    if let (Some(out), Some(inside)) = (over_bare(out_of_place), over_bare(in_place)) {
        let _ = write!(line, "  over bare {out:+.1}% / {inside:+.1}%");
    }
    line
}

/// Percent by which a row's time is above the bare one's.
fn over_bare(row: &Row) -> Option<f64> {
    row.bare_us.map(|bare| 100.0 * (row.time_us / bare - 1.0))
}

/// Two digits after the point while they fit, as nccl-tests.
fn figure(value: f64) -> String {
    match value {
        value if value < 10_000.0 => format!("{value:.2}"),
        value if value < 100_000.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// What a whole run came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) rows: u64,
    pub(crate) checked: u64,
    pub(crate) wrong: u64,
    bus_sum: f64,
}

impl Summary {
    /// Counts a row of ours.
    pub(crate) fn add(&mut self, row: &Row) {
        self.rows += 1;
        self.checked += u64::from(row.wrong.is_some());
        self.wrong += row.wrong.unwrap_or(0);
        self.bus_sum += row.busbw_gbps;
    }

    /// The last lines of a run.
    pub(crate) fn lines(&self) -> String {
        let wrong = match (self.checked, self.wrong) {
            (0, _) => "nothing was checked (-c 0)".to_owned(),
            (_, 0) => "0 OK".to_owned(),
            (_, wrong) => format!("{wrong} FAILED"),
        };
        let average = self.bus_sum / self.rows.max(1) as f64;
        format!("# Out of bounds values : {wrong}\n# Avg bus bandwidth    : {average:.6}")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(bytes: u64, in_place: bool, time_us: f64) -> Row {
        Row {
            op: "allreduce".into(),
            bytes,
            count: bytes / 4,
            dtype: "float".into(),
            redop: "sum".into(),
            in_place,
            time_us,
            spread_us: time_us / 20.0,
            algbw_gbps: crate::stats::bandwidth(bytes, time_us),
            busbw_gbps: 1.75 * crate::stats::bandwidth(bytes, time_us),
            wrong: Some(0),
            implementation: crate::bench::row::OURS.into(),
            algorithm: "one_shot".into(),
            ranks: 8,
            device: "cpu".into(),
            graph: 0,
            buffers: "symmetric".into(),
            ratio: None,
            bare_us: None,
        }
    }

    #[test]
    fn columns_stand_below_their_names() {
        let head = head();
        let names = head.lines().nth(1).expect("names");
        let line = line(&row(65_536, false, 12.5), &row(65_536, true, 99_999.5));
        let ends = |text: &str| {
            let padded = format!("{text} ");
            let chars: Vec<char> = padded.chars().collect();
            (1..chars.len()).filter(|&i| chars[i] == ' ' && chars[i - 1] != ' ').collect::<Vec<_>>()
        };
        // The mark of a comment is no column.
        assert_eq!(ends(&names.replacen('#', " ", 1))[..14], ends(&line)[..14]);
    }

    #[test]
    fn words_are_those_of_nccl_tests_in_their_order() {
        let words: Vec<_> = line(&row(1024, false, 5.8), &row(1024, true, 5.79))
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        assert_eq!(
            words[..12],
            [
                "1024", "256", "float", "sum", "5.80", "0.18", "0.31", "0", "5.79", "0.18", "0.31",
                "0"
            ]
        );
    }

    #[test]
    fn unchecked_rows_say_so() {
        let unchecked = Row { wrong: None, ..row(8, false, 1.0) };
        assert!(line(&unchecked, &row(8, true, 1.0)).contains("N/A"));
        let mut summary = Summary::default();
        summary.add(&unchecked);
        assert!(summary.lines().contains("nothing was checked"));
    }

    #[test]
    fn time_over_bare_is_in_percent() {
        let bare = |in_place| Row { bare_us: Some(2.0), ..row(1024, in_place, 2.1) };
        assert!(line(&bare(false), &bare(true)).ends_with("over bare +5.0% / +5.0%"));
    }

    #[test]
    fn summary_counts_what_is_wrong() {
        let mut summary = Summary::default();
        summary.add(&row(8, false, 1.0));
        assert!(summary.lines().contains("0 OK"));
        summary.add(&Row { wrong: Some(3), ..row(8, true, 1.0) });
        assert!(summary.lines().contains("3 FAILED"));
    }
}

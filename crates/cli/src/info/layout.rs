//! Text in columns and paragraphs that fit a page's width.

/// Characters of a line. A word that is longer by itself, such as a path, is not broken.
pub(super) const WIDTH: usize = 100;

/// Adds a paragraph: `first` stands before its first line, and so many spaces before the others.
pub(super) fn paragraph(to: &mut String, first: &str, text: &str) {
    let indent = length(first);
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && length(&line) + 1 + length(word) > WIDTH {
            push_line(to, &line);
            line = " ".repeat(indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    push_line(to, &line);
}

/// Adds rows with their columns aligned, two spaces apart; the last column is broken into lines where it
/// does not fit. Rows may have fewer columns than others.
pub(super) fn table(to: &mut String, indent: usize, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells =
            rows.iter().filter(|row| row.len() > column + 1).map(|row| length(&row[column]));
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let Some((last, before)) = row.split_last() else { continue };
        let mut line = " ".repeat(indent);
        for (cell, width) in before.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width - length(cell) + GAP));
        }
        paragraph(to, &line, last);
    }
}

const GAP: usize = 2;

fn push_line(to: &mut String, line: &str) {
    to.push_str(line.trim_end());
    to.push('\n');
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Bytes for people: 23.5 GiB.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    scaled(bytes as f64, 1024.0, &UNITS)
}

/// Bits a second for people: 400 Gb/s.
pub(super) fn bits_per_second(rate: u64) -> String {
    scaled(rate as f64, 1000.0, &["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"])
}

/// Bytes a second for people: 26.6 GB/s.
pub(super) fn bytes_per_second(rate: u64) -> String {
    scaled(rate as f64, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut place = 0;
    while value >= step && place + 1 < units.len() {
        value /= step;
        place += 1;
    }
    let digits = format!("{value:.1}");
    format!("{} {}", digits.strip_suffix(".0").unwrap_or(&digits), units[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_hang_below_their_first_word() {
        let mut text = String::new();
        paragraph(&mut text, "  a: ", &"word ".repeat(30));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("  a: word") && lines[0].len() <= WIDTH);
        assert!(lines[1].starts_with("     word"));
        assert_eq!(text.matches("word").count(), 30);
    }

    #[test]
    fn a_word_that_is_too_long_stands_alone_and_whole() {
        let mut text = String::new();
        let long = "x".repeat(150);
        paragraph(&mut text, "- ", &format!("a {long} b"));
        assert_eq!(text, format!("- a\n  {long}\n  b\n"));
    }

    #[test]
    fn columns_are_aligned_by_their_longest_cell() {
        let mut text = String::new();
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        table(
            &mut text,
            1,
            &[row(&["a", "bb", "c"]), row(&["aaa", "", "d"]), row(&["only this one"])],
        );
        assert_eq!(text, " a    bb  c\n aaa      d\n only this one\n");
    }

    #[test]
    fn numbers_are_scaled() {
        assert_eq!(bytes(512), "512 bytes");
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(25_276_502_016), "23.5 GiB");
        assert_eq!(bits_per_second(400_000_000_000), "400 Gb/s");
        assert_eq!(bits_per_second(2_500_000_000), "2.5 Gb/s");
        assert_eq!(bytes_per_second(26_562_000_000), "26.6 GB/s");
        assert_eq!(bytes(u64::MAX), "16777216 TiB");
    }
}

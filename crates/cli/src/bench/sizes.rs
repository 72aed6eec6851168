//! Numbers of bytes as people write them, and the sizes that a run goes through.

/// Reads "8", "64K", "1G": digits and a power of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "'{text}' is not a size; allowed are whole bytes, with K, M, G or T for powers of 1024, \
             such as 8, 64K or 1G"
        )
    };
    let upper = text.trim().to_ascii_uppercase();
    let digits = upper.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &upper[digits.len()..] {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(wrong()),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|&bytes| bytes <= LARGEST)
        .ok_or_else(|| format!("'{text}' is too large a size; allowed are at most 64T"))
}

/// No device has more, and sums of a few sizes stay far from the end of u64.
const LARGEST: u64 = 64 << 40;

/// Writes a size as `parse_size` reads it, in the largest unit that divides it.
pub(crate) fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// How a sweep goes from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Adds bytes, at least 1.
    Add(u64),
    /// Multiplies, at least by 2.
    Multiply(u64),
}

/// The sizes of a run, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) step: Step,
}

/// The smallest size that is not 0 of a run, unless it is told another.
pub(crate) const SMALLEST: u64 = 8;

impl Sweep {
    /// Every size once, in rising order. From 0 a factor leads nowhere, so it goes on where a run
    /// begins that is not told a smallest size.
    pub(crate) fn sizes(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.begin), move |&size| match self.step {
            Step::Add(bytes) => size.checked_add(bytes.max(1)),
            Step::Multiply(_) if size == 0 => Some(SMALLEST.min(self.end)).filter(|&next| next > 0),
            Step::Multiply(factor) => size.checked_mul(factor).filter(|&next| next > size),
        })
        .take_while(move |&size| size <= self.end)
    }

    /// How many sizes there are, without going through them.
    pub(crate) fn count(self) -> u64 {
        match self.step {
            Step::Add(bytes) => match self.end.checked_sub(self.begin) {
                Some(way) => (way / bytes.max(1)).saturating_add(1),
                None => 0,
            },
            // At most one for each bit.
            Step::Multiply(_) => self.sizes().count() as u64,
        }
    }
}

/// Sizes in words: "8, 16 and 24", of many the first and the last.
pub(crate) fn in_words(sizes: &[u64]) -> String {
    match sizes {
        [] => String::new(),
        [one] => one.to_string(),
        [first, .., last] if sizes.len() > 6 => {
            format!("{} sizes from {first} to {last}", sizes.len())
        }
        [all @ .., last] => {
            let all: Vec<String> = all.iter().map(u64::to_string).collect();
            format!("{} and {last}", all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_powers_of_1024() {
        for (text, bytes) in [("0", 0), ("8", 8), ("64K", 65536), ("64k", 65536), ("1G", 1 << 30)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("3MiB"), Ok(3 << 20));
    }

    #[test]
    fn wrong_sizes_are_named_with_what_is_allowed() {
        for text in ["", "K", "8X", "-8", "1.5K", "1e3", "8 K8", "65T", "99999999999999999999", "é"]
        {
            let why = parse_size(text).expect_err(text);
            assert!(why.contains(text) && why.contains("allowed are"), "{why}");
        }
    }

    #[test]
    fn written_sizes_read_back() {
        for bytes in [0, 8, 1000, 1024, 1536, 1 << 20, 3 << 30] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(64 << 10), "64K");
    }

    #[test]
    fn sweeps_end_at_or_before_the_last_size() {
        let sizes = |begin, end, step| Sweep { begin, end, step }.sizes().collect::<Vec<_>>();
        assert_eq!(sizes(8, 64, Step::Multiply(2)), [8, 16, 32, 64]);
        assert_eq!(sizes(8, 63, Step::Multiply(4)), [8, 32]);
        assert_eq!(sizes(8, 30, Step::Add(8)), [8, 16, 24]);
        assert_eq!(sizes(0, 64, Step::Multiply(2)), [0, 8, 16, 32, 64]);
        assert_eq!(sizes(0, 600, Step::Multiply(8)), [0, 8, 64, 512]);
        assert_eq!(sizes(0, 4, Step::Multiply(2)), [0, 4]);
        assert_eq!(sizes(0, 0, Step::Multiply(2)), [0]);
        assert_eq!(sizes(0, 16, Step::Add(8)), [0, 8, 16]);
        assert_eq!(sizes(5, 5, Step::Add(1)), [5]);
        let near_the_end = Sweep { begin: 1 << 63, end: u64::MAX, step: Step::Multiply(2) };
        assert_eq!(near_the_end.sizes().count(), 1);
    }

    #[test]
    fn sizes_are_counted_without_going_through_them() {
        for (begin, end) in [(0, 0), (0, 7), (1, 64), (8, 100), (9, 8)] {
            for step in [Step::Add(1), Step::Add(7), Step::Multiply(2), Step::Multiply(3)] {
                let sweep = Sweep { begin, end, step };
                assert_eq!(sweep.count(), sweep.sizes().count() as u64, "{sweep:?}");
            }
        }
        let endless = Sweep { begin: 0, end: u64::MAX, step: Step::Add(1) };
        assert_eq!(endless.count(), u64::MAX);
    }

    #[test]
    fn sizes_are_put_in_words() {
        let words = |sizes: &[u64]| in_words(sizes);
        assert_eq!(words(&[8]), "8");
        assert_eq!(words(&[8, 16]), "8 and 16");
        assert_eq!(words(&[1, 2, 3]), "1, 2 and 3");
        assert_eq!(words(&[1, 2, 3, 4, 5, 6, 7]), "7 sizes from 1 to 7");
    }
}

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

impl Sweep {
    /// Every size once, in rising order.
    pub(crate) fn sizes(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.begin), move |&size| match self.step {
            Step::Add(bytes) => size.checked_add(bytes.max(1)),
            // From 0 there is no way on by a factor.
            Step::Multiply(factor) => size.checked_mul(factor).filter(|&next| next > size),
        })
        .take_while(move |&size| size <= self.end)
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
        assert_eq!(sizes(0, 64, Step::Multiply(2)), [0]);
        assert_eq!(sizes(5, 5, Step::Add(1)), [5]);
        let near_the_end = Sweep { begin: 1 << 63, end: u64::MAX, step: Step::Multiply(2) };
        assert_eq!(near_the_end.sizes().count(), 1);
    }
}

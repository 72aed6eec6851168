//! What somebody may have meant who wrote a word that is not allowed.

/// The words that `given` is most likely meant for: those that it begins, or else the nearest one if it
/// is near enough.
pub(crate) fn similar<'a>(given: &str, words: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let given = given.to_ascii_lowercase();
    let words: Vec<&str> = words.into_iter().collect();
    if given.len() >= MEANINGFUL {
        let begun: Vec<&str> =
            words.iter().copied().filter(|word| word.starts_with(&given)).collect();
        if !begun.is_empty() {
            return begun;
        }
    }
    let near = words.iter().map(|word| (distance(&given, &word.to_ascii_lowercase()), *word));
    let nearest = near.filter(|(distance, _)| *distance <= (given.len() / 3).max(1)).min();
    nearest.map(|(_, word)| word).into_iter().collect()
}

/// `similar` as a remark to put behind what was wrong; empty if there is nothing to say.
pub(crate) fn did_you_mean<'a>(given: &str, words: impl IntoIterator<Item = &'a str>) -> String {
    remark(&similar(given, words))
}

/// As [`did_you_mean`], of words that are known already.
pub(crate) fn remark(words: &[&str]) -> String {
    if words.is_empty() {
        return String::new();
    }
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    format!(" (did you mean {}?)", words.join(" or "))
}

/// Shorter beginnings fit too much.
const MEANINGFUL: usize = 3;

/// How many letters were mistyped.
fn distance(given: &str, word: &str) -> usize {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    // With few letters another one makes another word: gpu is not a mistyped cpu.
    if given.len() <= MEANINGFUL && given.len() == word.len() && sorted(given) != sorted(word) {
        return usize::MAX;
    }
    strsim::damerau_levenshtein(given, word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 7] = ["allreduce", "allgather", "signal", "cpu", "sum", "max", "bench"];

    #[test]
    fn mistyped_words_are_recognised() {
        for (given, meant) in [
            ("alreduce", "allreduce"),
            ("AllReduce", "allreduce"),
            ("all_gather", "allgather"),
            ("allgahter", "allgather"),
            ("singal", "signal"),
            ("benhc", "bench"),
            ("sm", "sum"),
            ("mxa", "max"),
            ("sig", "signal"),
        ] {
            assert_eq!(similar(given, WORDS), [meant], "{given}");
        }
    }

    #[test]
    fn other_words_are_not_taken_for_mistyped_ones() {
        for given in ["gpu", "avg", "min", "reduce", "dance", "", "x", "packet", "beet"] {
            assert_eq!(similar(given, WORDS), [""; 0], "{given}");
        }
    }

    #[test]
    fn a_beginning_stands_for_all_that_begin_so() {
        assert_eq!(similar("all", WORDS), ["allreduce", "allgather"]);
        assert_eq!(did_you_mean("all", WORDS), " (did you mean 'allreduce' or 'allgather'?)");
        assert_eq!(did_you_mean("gpu", WORDS), "");
    }
}

//! How much is shown.

use std::fmt;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;

/// The least urgent events that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Off,
    /// What is lost.
    Error,
    /// What a user should look at, too.
    Warn,
    /// Choices and steps of set-up, too.
    Info,
    /// What these were made of, too.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    pub(crate) const fn filter(self) -> LevelFilter {
        match self {
            Level::Off => LevelFilter::OFF,
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        }
    }
}

/// Each word, and what it means: first ours, then those that only MSCCL++ and NCCL have. There VERSION
/// shows the version alone, and ABORT lies between INFO and TRACE.
const WORDS: &[(&str, Level)] = &[
    ("off", Level::Off),
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
    ("trace", Level::Trace),
    ("none", Level::Off),
    ("version", Level::Error),
    ("abort", Level::Info),
];

/// A word that is no level.
#[derive(Debug, PartialEq, Eq)]
pub struct NotALevel(String);

impl FromStr for Level {
    type Err = NotALevel;

    /// In any case.
    fn from_str(text: &str) -> Result<Level, NotALevel> {
        let text = text.trim();
        let found = WORDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        found.map(|&(_, level)| level).ok_or_else(|| NotALevel(text.to_owned()))
    }
}

impl fmt::Display for NotALevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a level; allowed is off, error, warn, info, debug or trace, or a word of \
             MSCCL++ (none, version, abort)",
            self.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_our_words_and_those_of_other_libraries() {
        for (word, level) in [
            ("warn", Level::Warn),
            ("WARN", Level::Warn),
            (" Info ", Level::Info),
            ("TRACE", Level::Trace),
            ("VERSION", Level::Error),
            ("ABORT", Level::Info),
            ("NONE", Level::Off),
        ] {
            assert_eq!(word.parse(), Ok(level), "{word}");
        }
        let error = "loud".parse::<Level>().unwrap_err().to_string();
        assert!(error.starts_with("'loud' is not a level; allowed is off, error, warn"), "{error}");
    }
}

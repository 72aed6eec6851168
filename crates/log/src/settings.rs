//! What a log shows, and where.

use std::fmt;
use std::str::FromStr;

use crate::{FilePattern, Level, Subsystems};

/// The form of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `host:pid [rank] LEVEL SUBSYSTEM message key=value`.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A word that is no form of lines.
#[derive(Debug, PartialEq, Eq)]
pub struct NotAFormat(String);

impl FromStr for Format {
    type Err = NotAFormat;

    /// In any case.
    fn from_str(text: &str) -> Result<Format, NotAFormat> {
        match text.trim() {
            word if word.eq_ignore_ascii_case("text") => Ok(Format::Text),
            word if word.eq_ignore_ascii_case("json") => Ok(Format::Json),
            word => Err(NotAFormat(word.to_owned())),
        }
    }
}

impl fmt::Display for NotAFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not a form of lines; allowed is text or json", self.0)
    }
}

/// What a log shows, and where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The least urgent events that are shown.
    pub level: Level,
    /// Those of these subsystems.
    pub subsystems: Subsystems,
    /// The file that lines are added to; standard error otherwise.
    pub file: Option<FilePattern>,
    /// The form of lines.
    pub format: Format,
    /// The rank that this process is, where it is one: that of events which name none.
    pub rank: Option<u32>,
    /// Whether warnings are told on standard error too, as plain sentences. Errors are not: calls
    /// return them.
    pub plain_warnings: bool,
}

impl Default for Settings {
    /// Warnings of all subsystems, as text on standard error.
    fn default() -> Self {
        Settings {
            level: Level::Warn,
            subsystems: Subsystems::ALL,
            file: None,
            format: Format::Text,
            rank: None,
            plain_warnings: false,
        }
    }
}

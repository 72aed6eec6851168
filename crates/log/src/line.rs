//! An event as one line.
//!
//! Invariant: a line has no line break but its last byte, whatever the event says.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value as Json};

use crate::values::{Value, Values};
use crate::{Format, Subsystem};

/// Who speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaker<'a> {
    pub(crate) host: &'a str,
    pub(crate) process: u32,
    pub(crate) rank: Option<u64>,
}

/// Begins each line of JSON; the order of the fields is ours, so that lines can be told.
const JSON_START: &str = "{\"time\":";

pub(crate) fn line(
    format: Format,
    speaker: Speaker<'_>,
    level: tracing::Level,
    subsystem: Subsystem,
    values: &Values,
) -> String {
    match format {
        Format::Json => json(speaker, level, subsystem, values, SystemTime::now()),
        Format::Text => text(speaker, level, subsystem, values),
    }
}

/// Whether a line is one of a log, in either form. For those who pass on what a process says and mark
/// whose it is: these lines say it themselves.
pub fn is_line(line: &str) -> bool {
    if line.starts_with(JSON_START) {
        return true;
    }
    // host:pid [rank] LEVEL SUBSYSTEM ...
    let mut words = line.split(' ');
    let (Some(who), Some(rank), Some(level), Some(subsystem)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return false;
    };
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let process = who.rsplit_once(':').is_some_and(|(_, process)| number(process));
    let rank = rank.strip_prefix('[').and_then(|rank| rank.strip_suffix(']'));
    process
        && rank.is_some_and(|rank| rank == "-" || number(rank))
        && level.parse::<tracing::Level>().is_ok()
        && Subsystem::ALL.iter().any(|known| known.name() == subsystem)
}

fn text(
    speaker: Speaker<'_>,
    level: tracing::Level,
    subsystem: Subsystem,
    values: &Values,
) -> String {
    let Speaker { host, process, rank } = speaker;
    let rank = rank.map_or("-".into(), |rank| rank.to_string());
    let mut line = format!("{host}:{process} [{rank}] {level} {} ", subsystem.name());
    push_printable(&mut line, &values.message);
    for (name, value) in &values.fields {
        let _ = match value {
            Value::Bool(value) => write!(line, " {name}={value}"),
            Value::Float(value) => write!(line, " {name}={value}"),
            Value::Signed(value) => write!(line, " {name}={value}"),
            Value::Unsigned(value) => write!(line, " {name}={value}"),
            Value::Text(value) if is_word(value) => write!(line, " {name}={value}"),
            Value::Text(value) => write!(line, " {name}={value:?}"),
        };
    }
    line.push('\n');
    line
}

/// Whether a value can stand without quotation marks.
fn is_word(text: &str) -> bool {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=';
    !text.is_empty() && text.chars().all(plain)
}

fn push_printable(line: &mut String, text: &str) {
    for c in text.chars() {
        // Other line breaks than \n are control characters, or these two.
        match c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
}

fn json(
    speaker: Speaker<'_>,
    level: tracing::Level,
    subsystem: Subsystem,
    values: &Values,
    now: SystemTime,
) -> String {
    // A clock before 1970 is as good as none.
    let time = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let fields: Map<String, Json> = values
        .fields
        .iter()
        .map(|(name, value)| {
            let value = match value {
                Value::Bool(value) => Json::from(*value),
                Value::Float(value) => Json::from(*value),
                Value::Signed(value) => Json::from(*value),
                Value::Text(value) => Json::from(value.as_str()),
                Value::Unsigned(value) => Json::from(*value),
            };
            ((*name).to_owned(), value)
        })
        .collect();
    format!(
        "{JSON_START}{}.{:06},\"host\":{},\"pid\":{},\"rank\":{},\"level\":\"{level}\",\
         \"subsystem\":\"{}\",\"message\":{},\"fields\":{}}}\n",
        time.as_secs(),
        time.subsec_micros(),
        Json::from(speaker.host),
        speaker.process,
        Json::from(speaker.rank),
        subsystem.name(),
        Json::from(values.message.as_str()),
        Json::from(fields)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEAKER: Speaker<'static> = Speaker { host: "gpu7", process: 12, rank: Some(3) };

    fn values() -> Values {
        Values {
            message: "two\nlines\u{2028}".into(),
            rank: Some(3),
            fields: vec![
                ("peer", Value::Unsigned(1)),
                ("why", Value::Text("a \"b\"\r\nc".into())),
                ("empty", Value::Text(String::new())),
                ("device", Value::Text("cuda:0".into())),
                ("nan", Value::Float(f64::NAN)),
            ],
        }
    }

    #[test]
    fn a_line_of_text_says_who_how_urgent_and_what() {
        let line = line(Format::Text, SPEAKER, tracing::Level::INFO, Subsystem::Conn, &values());
        assert_eq!(
            line,
            "gpu7:12 [3] INFO CONN two\\nlines\\u{2028} peer=1 why=\"a \\\"b\\\"\\r\\nc\" empty=\"\" \
             device=cuda:0 nan=NaN\n"
        );
        assert!(is_line(&line));
        let nobody = Speaker { rank: None, ..SPEAKER };
        let line = super::line(
            Format::Text,
            nobody,
            tracing::Level::ERROR,
            Subsystem::Liveness,
            &Values::default(),
        );
        assert_eq!(line, "gpu7:12 [-] ERROR LIVENESS \n");
        assert!(is_line(&line));
    }

    #[test]
    fn a_line_of_json_is_one_object() {
        let line = line(Format::Json, SPEAKER, tracing::Level::WARN, Subsystem::Init, &values());
        assert_eq!(line.find('\n'), Some(line.len() - 1));
        assert!(is_line(&line));
        let json: Json = serde_json::from_str(&line).unwrap();
        assert!(json["time"].as_f64().unwrap() > 1.7e9);
        assert_eq!(json["host"], "gpu7");
        assert_eq!(json["pid"], 12);
        assert_eq!(json["rank"], 3);
        assert_eq!(json["level"], "WARN");
        assert_eq!(json["subsystem"], "INIT");
        assert_eq!(json["message"], "two\nlines\u{2028}");
        assert_eq!(json["fields"]["peer"], 1);
        assert_eq!(json["fields"]["why"], "a \"b\"\r\nc");
        assert_eq!(json["fields"]["nan"], Json::Null);
    }

    #[test]
    fn what_others_say_is_no_line_of_a_log() {
        for other in [
            "",
            "error: no such file",
            "rank 1: failed to do it",
            "gpu7:12 [3] INFO",
            "gpu7:12 [3] LOUD CONN x",
            "gpu7:12 [3] INFO WHAT x",
            "gpu7:12 [x] INFO CONN x",
            "gpu7 [3] INFO CONN x",
            "{\"size\":8}",
        ] {
            assert!(!is_line(other), "{other}");
        }
    }
}

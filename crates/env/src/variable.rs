//! One variable: its names, what values it has, and how they are read.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Error, Result, Source};

/// The longest time that a variable can give.
const DAY: f64 = 86400.0;

/// One environment variable.
#[derive(Debug)]
#[non_exhaustive]
pub struct Variable {
    /// The name that is documented.
    pub name: &'static str,
    /// The name of the same variable in MSCCL++.
    pub alias: Option<&'static str>,
    /// What values there are.
    pub kind: Kind,
    /// What holds when it is unset, for people.
    pub default: &'static str,
    /// What it does.
    pub text: &'static str,
}

/// What values a variable has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of these words, in any case.
    Choice(&'static [&'static str]),
    /// A whole number.
    Number {
        /// The least.
        from: u64,
        /// The largest.
        to: u64,
        /// It is a multiple of this.
        step: u64,
    },
    /// A file or folder.
    Path,
    /// A text that is never shown.
    Secret {
        /// Its length at least, in bytes.
        least: usize,
    },
    /// A time, more than 0 and at most a day.
    Seconds {
        /// What 0 means; empty where it is not allowed.
        zero: &'static str,
    },
    /// A text, and what is allowed, for people; who reads it parses it.
    Text(&'static str),
}

impl Variable {
    /// What values are allowed, for people.
    pub fn allowed(&self) -> String {
        match self.kind {
            Kind::Choice([all @ .., last]) if !all.is_empty() => {
                format!("{} or {last}", all.join(", "))
            }
            Kind::Choice(words) => words.join(""),
            Kind::Number { from, to, step: 1 } if to >= u64::from(u32::MAX) - 1 => {
                format!("a whole number, at least {from}")
            }
            Kind::Number { from, to, step: 1 } => format!("a whole number from {from} to {to}"),
            Kind::Number { from, to, step } => format!("a multiple of {step} from {from} to {to}"),
            Kind::Path => "a path".into(),
            Kind::Secret { least: 1 } => "a text".into(),
            Kind::Secret { least } => format!("a text of at least {least} bytes"),
            Kind::Seconds { zero } => {
                let zero = if zero.is_empty() { "" } else { &format!(", or 0 for {zero}") };
                format!("seconds, more than 0 and at most {DAY}{zero}; fractions are allowed")
            }
            Kind::Text(allowed) => allowed.into(),
        }
    }

    /// Whether its value must not be shown.
    pub fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Secret { .. })
    }

    /// A value as it may be shown to people: of a secret only how long it is.
    pub fn shown(&self, value: &str) -> String {
        if self.is_secret() {
            {
                let bytes = value.len();
                format!("set, {bytes} byte{}", if bytes == 1 { "" } else { "s" })
            }
        } else {
            value.into()
        }
    }

    /// The name that is set, and the value; none if it is empty.
    pub fn find(&self, source: Source<'_>) -> Option<(&'static str, String)> {
        let names = [Some(self.name), self.alias];
        names.into_iter().flatten().find_map(|name| source.value(name).map(|value| (name, value)))
    }

    /// The alias, where it is set too, to something else than what holds.
    pub fn shadowed(&self, source: Source<'_>) -> Option<&'static str> {
        let alias = self.alias?;
        let (name, value) = self.find(source)?;
        let other = source.value(alias).filter(|other| name != alias && *other != value);
        other.map(|_| alias)
    }

    /// The value, if there is one that is not empty.
    pub fn value(&self, source: Source<'_>) -> Option<String> {
        self.find(source).map(|(_, value)| value)
    }

    /// The value in this process, if there is one that is not empty.
    pub fn text(&self) -> Option<String> {
        self.value(Source::PROCESS)
    }

    /// The value in this process as the system has it, if there is one that is not empty.
    pub fn raw(&self) -> Option<OsString> {
        let names = [Some(self.name), self.alias];
        let values = names.into_iter().flatten().filter_map(std::env::var_os);
        values.into_iter().find(|value| !value.is_empty())
    }

    /// As [`raw`](Self::raw), as a path.
    pub fn path(&self) -> Option<PathBuf> {
        self.raw().map(PathBuf::from)
    }

    /// The value in this process as a whole number.
    pub fn number<T: TryFrom<u64>>(&self) -> Result<Option<T>> {
        self.number_in(Source::PROCESS)
    }

    /// The value as a whole number.
    pub fn number_in<T: TryFrom<u64>>(&self, source: Source<'_>) -> Result<Option<T>> {
        self.parse_in(source, |value| self.kind.number(value).and_then(|n| T::try_from(n).ok()))
    }

    /// The value in this process as a time.
    pub fn seconds(&self) -> Result<Option<Duration>> {
        self.parse_in(Source::PROCESS, |value| self.kind.seconds(value))
    }

    /// Which of its words the value in this process is.
    pub fn choice(&self) -> Result<Option<&'static str>> {
        self.choice_in(Source::PROCESS)
    }

    /// Which of its words the value is.
    pub fn choice_in(&self, source: Source<'_>) -> Result<Option<&'static str>> {
        self.parse_in(source, |value| self.kind.word(value))
    }

    /// The value in this process as a secret: an error if it is too short.
    pub fn secret(&self) -> Result<Option<String>> {
        self.check(Source::PROCESS).map(|()| self.text())
    }

    /// An error if the value is not allowed, as far as the kind says so: texts are parsed by who
    /// reads them.
    pub fn check(&self, source: Source<'_>) -> Result<()> {
        let allows = |value: &str| match self.kind {
            Kind::Choice(_) => self.kind.word(value).is_some(),
            Kind::Number { .. } => self.kind.number(value).is_some(),
            Kind::Secret { least } => value.len() >= least,
            Kind::Seconds { .. } => self.kind.seconds(value).is_some(),
            Kind::Path | Kind::Text(_) => true,
        };
        self.parse_in(source, |value| allows(value).then_some(())).map(|_| ())
    }

    /// What `read` makes of the value; an error where it makes nothing of it.
    pub fn parse_in<T>(
        &self,
        source: Source<'_>,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some((name, value)) = self.find(source) else { return Ok(None) };
        match read(value.trim()) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(Error { name, value: self.shown(&value), allowed: self.allowed() }),
        }
    }
}

impl Kind {
    fn word(self, value: &str) -> Option<&'static str> {
        let Kind::Choice(words) = self else { return None };
        words.iter().find(|word| word.eq_ignore_ascii_case(value)).copied()
    }

    fn number(self, value: &str) -> Option<u64> {
        let Kind::Number { from, to, step } = self else { return None };
        let number: u64 = value.parse().ok()?;
        ((from..=to).contains(&number) && number.is_multiple_of(step)).then_some(number)
    }

    fn seconds(self, value: &str) -> Option<Duration> {
        let Kind::Seconds { zero } = self else { return None };
        let seconds: f64 = value.parse().ok()?;
        if !(0.0..=DAY).contains(&seconds) {
            return None;
        }
        let time = Duration::from_secs_f64(seconds);
        // What is too short to be counted is not 0, and no time either.
        let is_zero = seconds == 0.0 && !zero.is_empty();
        (is_zero || !time.is_zero()).then_some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CPU_THREADS, DEVICE, HOSTID, SECRET, SOCKET_FAMILY, TIMEOUT};

    #[test]
    fn our_spelling_wins_and_the_alias_is_named_in_errors() {
        let both = |name: &str| Some(if name == HOSTID.name { "ours" } else { "theirs" }.into());
        assert_eq!(HOSTID.find(Source::new(&both)), Some(("MSCCLRS_HOSTID", "ours".into())));
        let alias = |name: &str| (name == "MSCCLPP_SOCKET_FAMILY").then(|| "AF_UNIX".to_owned());
        let error = SOCKET_FAMILY.choice_in(Source::new(&alias)).unwrap_err().to_string();
        assert_eq!(error, "MSCCLPP_SOCKET_FAMILY=AF_UNIX: allowed is AF_INET or AF_INET6");
    }

    /// What a reader and `check` say of a value; they have to agree.
    fn fits(variable: &Variable, value: &str) -> bool {
        let values = |_: &str| Some(value.to_owned());
        let source = Source::new(&values);
        let read = match variable.kind {
            Kind::Choice(_) => variable.choice_in(source).is_ok(),
            Kind::Number { .. } => variable.number_in::<u64>(source).is_ok(),
            _ => return variable.check(source).is_ok(),
        };
        assert_eq!(read, variable.check(source).is_ok(), "{}={value}", variable.name);
        read
    }

    #[test]
    fn values_are_held_to_their_kind() {
        let table: [(&Variable, &[&str], &[&str]); 5] = [
            (&DEVICE, &["auto", "CUDA", " cpu ", "", "  "], &["gpu", "auto,cpu"]),
            (&CPU_THREADS, &["32", "1024", ""], &["0", "33", "2048", "-32", "many", "32.0"]),
            (&SECRET, &["12345678", ""], &["1234567"]),
            (&TIMEOUT, &["0", "0.5", "86400", "1e3"], &["-1", "86401", "NaN", "inf", "1e-30", "s"]),
            (&crate::BOOTSTRAP_TIMEOUT, &["1"], &["0", "-0"]),
        ];
        for (variable, good, bad) in table {
            for value in good {
                assert!(fits(variable, value), "{}={value}", variable.name);
            }
            for value in bad {
                assert!(!fits(variable, value), "{}={value}", variable.name);
            }
        }
    }

    #[test]
    fn a_number_that_its_type_cannot_hold_is_refused() {
        let large = |_: &str| Some("1024".to_owned());
        assert_eq!(CPU_THREADS.number_in::<u32>(Source::new(&large)), Ok(Some(1024)));
        assert!(CPU_THREADS.number_in::<u8>(Source::new(&large)).is_err());
    }

    #[test]
    fn a_secret_is_never_shown() {
        let short = |_: &str| Some("hunter2".to_owned());
        let error = SECRET.check(Source::new(&short)).unwrap_err().to_string();
        assert_eq!(error, "MSCCLRS_SECRET=set, 7 bytes: allowed is a text of at least 8 bytes");
    }

    #[test]
    fn what_is_allowed_is_said_in_words() {
        assert_eq!(DEVICE.allowed(), "auto, cpu or cuda");
        assert_eq!(CPU_THREADS.allowed(), "a multiple of 32 from 32 to 1024");
        assert_eq!(crate::RANK.allowed(), "a whole number, at least 0");
        assert!(TIMEOUT.allowed().contains("at most 86400, or 0 for no limit;"));
    }
}

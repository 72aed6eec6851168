//! Every environment variable, in one table.
//!
//! A variable is read through its entry here and nowhere else, so that the table is the whole
//! truth. An empty value is as good as none. Where MSCCL++ has the variable its spelling works too;
//! ours wins.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{Error, Result};

/// One environment variable.
#[derive(Debug)]
pub struct Variable {
    /// The name that is documented.
    pub name: &'static str,
    /// The name of the same variable in MSCCL++.
    pub alias: Option<&'static str>,
    /// What values there are.
    pub kind: Kind,
    /// What values are allowed, for people.
    pub allowed: &'static str,
    /// What holds when it is unset, for people.
    pub default: &'static str,
    /// What it does.
    pub text: &'static str,
}

/// What values a variable has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of a few words.
    Choice,
    /// Yes or no.
    Flag,
    /// A whole number.
    Number,
    /// A time.
    Seconds,
    /// Anything.
    Text,
}

macro_rules! table {
    ($($constant:ident = $name:literal, $alias:expr, $kind:ident, $allowed:literal, $default:literal, $text:literal;)*) => {
        $(
            #[doc = $text]
            pub static $constant: Variable = Variable {
                name: $name,
                alias: $alias,
                kind: Kind::$kind,
                allowed: $allowed,
                default: $default,
                text: $text,
            };
        )*

        /// All variables, by name.
        pub static TABLE: &[&Variable] = &[$(&$constant),*];
    };
}

table! {
    ADDRESS = "MSCCLRS_ADDRESS", None, Text,
        "host:port, [ipv6%scope]:port, or either behind interface:", "none",
        "Where rank 0 serves the rendezvous.";
    BOOTSTRAP_TIMEOUT = "MSCCLRS_BOOTSTRAP_TIMEOUT", None, Seconds,
        "seconds, more than 0 and at most 86400; fractions are allowed", "30",
        "How long ranks wait for each other during set-up.";
    CPU_MULTIPROCESSORS = "MSCCLRS_CPU_MULTIPROCESSORS", None, Number,
        "a whole number, at least 1", "4",
        "Multiprocessors of a CPU device.";
    CPU_THREADS = "MSCCLRS_CPU_THREADS", None, Number,
        "a whole number, at least 1", "256",
        "Resident lanes of each multiprocessor of a CPU device.";
    DEVICE = "MSCCLRS_DEVICE", None, Choice,
        "auto, cuda or cpu", "auto",
        "Which devices are used.";
    HOSTID = "MSCCLRS_HOSTID", Some("MSCCLPP_HOSTID"), Text,
        "any text", "host name and boot id",
        "Ranks with equal values count as on one host.";
    LOCAL_RANK = "MSCCLRS_LOCAL_RANK", None, Number,
        "a whole number below MSCCLRS_LOCAL_WORLD_SIZE", "none",
        "This rank's number on its host.";
    LOCAL_WORLD_SIZE = "MSCCLRS_LOCAL_WORLD_SIZE", None, Number,
        "a whole number from 1 to MSCCLRS_WORLD_SIZE", "none",
        "Number of ranks on this host.";
    RANK = "MSCCLRS_RANK", None, Number,
        "a whole number below MSCCLRS_WORLD_SIZE", "none",
        "This rank.";
    SECRET = "MSCCLRS_SECRET", None, Text,
        "a text of at least 8 bytes", "made from the launcher's job id",
        "What ranks prove to each other; the same on every rank.";
    SOCKET_FAMILY = "MSCCLRS_SOCKET_FAMILY", Some("MSCCLPP_SOCKET_FAMILY"), Choice,
        "AF_INET or AF_INET6", "both",
        "Which version of the internet protocol set-up uses.";
    SOCKET_IFNAME = "MSCCLRS_SOCKET_IFNAME", Some("MSCCLPP_SOCKET_IFNAME"), Text,
        "interface names with commas: eth means names that start so, =eth0 exactly this one, ^ in front all others",
        "any but containers' and loopback",
        "Which network interfaces set-up uses.";
    TIMEOUT = "MSCCLRS_TIMEOUT", None, Seconds,
        "seconds, more than 0 and at most 86400; fractions are allowed", "none",
        "How long a kernel waits for other ranks.";
    WORLD_SIZE = "MSCCLRS_WORLD_SIZE", None, Number,
        "a whole number, at least 1", "none",
        "Number of ranks.";
}

impl Variable {
    /// The value, if there is one that is not empty.
    pub fn text(&self) -> Option<String> {
        self.find(&from_process).map(|(_, value)| value)
    }

    /// The value as a whole number within `range`.
    pub fn number<T: FromStr + PartialOrd + fmt::Display>(
        &self,
        range: std::ops::RangeInclusive<T>,
    ) -> Result<Option<T>> {
        self.parse(&from_process, |value| {
            value.parse().ok().filter(|number| range.contains(number))
        })
    }

    /// The value as a time.
    pub fn seconds(&self) -> Result<Option<Duration>> {
        self.parse(&from_process, |value| {
            let seconds: f64 = value.parse().ok()?;
            let fits = seconds > 0.0 && seconds <= 86400.0;
            fits.then(|| Duration::from_secs_f64(seconds)).filter(|time| !time.is_zero())
        })
    }

    /// Which of `words` the value is, in any case.
    pub fn choice(&self, words: &[&str]) -> Result<Option<usize>> {
        self.parse(&from_process, |value| {
            words.iter().position(|word| word.eq_ignore_ascii_case(value))
        })
    }

    /// The value as yes or no.
    pub fn flag(&self) -> Result<Option<bool>> {
        self.parse(&from_process, |value| match value.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Some(true),
            "0" | "false" | "no" | "off" => Some(false),
            _ => None,
        })
    }

    /// The name that is set, and the value.
    pub(crate) fn find(&self, source: Source<'_>) -> Option<(&'static str, String)> {
        let names = [Some(self.name), self.alias];
        names.into_iter().flatten().find_map(|name| source(name).map(|value| (name, value)))
    }

    fn parse<T>(
        &self,
        source: Source<'_>,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some((name, value)) = self.find(source) else { return Ok(None) };
        match read(value.trim()) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(Error::Environment {
                name: name.into(),
                value,
                allowed: format!("allowed is {}", self.allowed),
            }),
        }
    }
}

/// Where values come from; gives no empty ones.
pub(crate) type Source<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of this process.
pub(crate) fn from_process(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.to_string_lossy().into_owned();
    (!value.trim().is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_complete() {
        for pair in TABLE.windows(2) {
            assert!(pair[0].name < pair[1].name, "{} {}", pair[0].name, pair[1].name);
        }
        for variable in TABLE {
            assert!(variable.name.starts_with("MSCCLRS_"));
            assert!(variable.alias.is_none_or(|alias| alias.starts_with("MSCCLPP_")));
            assert!(!variable.allowed.is_empty() && !variable.text.is_empty());
        }
    }

    #[test]
    fn our_spelling_wins_and_the_alias_is_named_in_errors() {
        let both = |name: &str| Some(if name == HOSTID.name { "ours" } else { "theirs" }.into());
        assert_eq!(HOSTID.find(&both), Some(("MSCCLRS_HOSTID", "ours".into())));
        let alias = |name: &str| (name == "MSCCLPP_SOCKET_FAMILY").then(|| "AF_UNIX".to_owned());
        let error = SOCKET_FAMILY.parse(&alias, |_| None::<()>).unwrap_err().to_string();
        assert!(error.contains("MSCCLPP_SOCKET_FAMILY=AF_UNIX: allowed is AF_INET"), "{error}");
    }
}

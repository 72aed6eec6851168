//! What ranks find in their environment.

use std::ffi::OsString;

use mscclrs_core::env;

use super::place::Rendezvous;
use crate::usage::usage;

/// What PyTorch and its relatives look for.
const TORCH: [&str; 6] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

/// Which ranks a host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ranks {
    pub(super) first: u32,
    /// On this host.
    pub(super) count: u32,
    /// On all hosts.
    pub(super) world_size: u32,
}

impl Ranks {
    /// Whether they are all there are.
    pub(super) fn is_whole(self) -> bool {
        self.count == self.world_size
    }
}

/// The variables of one rank: ours, and those that PyTorch looks for.
pub(super) fn of_rank(
    ranks: Ranks,
    local_rank: u32,
    meeting: &Rendezvous,
    secret: &str,
) -> [(&'static str, String); 12] {
    let rank = (ranks.first + local_rank).to_string();
    let world_size = ranks.world_size.to_string();
    let (local_rank, count) = (local_rank.to_string(), ranks.count.to_string());
    [
        (env::RANK.name, rank.clone()),
        (env::WORLD_SIZE.name, world_size.clone()),
        (env::LOCAL_RANK.name, local_rank.clone()),
        (env::LOCAL_WORLD_SIZE.name, count.clone()),
        (env::ADDRESS.name, meeting.to_string()),
        (env::SECRET.name, secret.to_owned()),
        ("RANK", rank),
        ("WORLD_SIZE", world_size),
        ("LOCAL_RANK", local_rank),
        ("LOCAL_WORLD_SIZE", count),
        ("MASTER_ADDR", meeting.master_address()),
        ("MASTER_PORT", meeting.master_port().to_string()),
    ]
}

/// One of `-x`: a variable that ranks get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(super) name: String,
    /// Otherwise the value that it has here.
    value: Option<String>,
}

impl Setting {
    pub(super) fn parse(text: &str) -> Result<Setting, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if name.is_empty() || !name.bytes().all(fits) || name.as_bytes()[0].is_ascii_digit() {
            return Err(format!(
                "'{name}' is not the name of a variable; allowed are letters, digits and _"
            ));
        }
        if is_ours(name) {
            return Err(format!("{name} is set by launch itself; allowed are other variables"));
        }
        Ok(Setting { name: name.to_owned(), value })
    }

    /// The value, which may be that of this process.
    pub(super) fn value(&self) -> anyhow::Result<OsString> {
        match &self.value {
            Some(value) => Ok(value.into()),
            None => env::inherited(&self.name).ok_or_else(|| {
                usage!(
                    "-x: {0} is not set here; allowed are variables that are, and {0}=VALUE",
                    self.name
                )
            }),
        }
    }
}

/// The variables of this process that hold for ranks on other hosts too: those of this project that say
/// nothing about one host or rank.
pub(super) fn for_other_hosts() -> Vec<(String, OsString)> {
    let of_one_host = |name: &str| is_ours(name) || is_variable(name, &env::HOSTID);
    let ours = ["MSCCLPP_", "MSCCLRS_"].into_iter().flat_map(env::names);
    let ours = ours.filter(|name| !of_one_host(name));
    ours.filter_map(|name| env::inherited(&name).map(|value| (name, value))).collect()
}

/// Whether every rank is given this variable.
fn is_ours(name: &str) -> bool {
    let given = [
        &env::RANK,
        &env::WORLD_SIZE,
        &env::LOCAL_RANK,
        &env::LOCAL_WORLD_SIZE,
        &env::ADDRESS,
        &env::SECRET,
    ];
    TORCH.contains(&name) || given.into_iter().any(|variable| is_variable(name, variable))
}

fn is_variable(name: &str, variable: &env::Variable) -> bool {
    name == variable.name || variable.alias == Some(name)
}

#[cfg(test)]
mod tests {
    use super::super::place::Place;
    use super::*;

    #[test]
    fn a_rank_of_the_second_host_knows_both_of_its_numbers() {
        let ranks = Ranks { first: 4, count: 2, world_size: 6 };
        let meeting = "head".parse::<Place>().unwrap().at(29401);
        let found = of_rank(ranks, 1, &meeting, "secret");
        for (name, value) in [
            ("MSCCLRS_RANK", "5"),
            ("MSCCLRS_WORLD_SIZE", "6"),
            ("MSCCLRS_LOCAL_RANK", "1"),
            ("MSCCLRS_LOCAL_WORLD_SIZE", "2"),
            ("MSCCLRS_ADDRESS", "head:29401"),
            ("MSCCLRS_SECRET", "secret"),
            ("RANK", "5"),
            ("WORLD_SIZE", "6"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "head"),
            ("MASTER_PORT", "29400"),
        ] {
            assert!(found.contains(&(name, value.to_owned())), "{name}");
        }
        assert!(found.iter().all(|(name, _)| is_ours(name)));
    }

    #[test]
    fn settings_are_names_with_or_without_a_value() {
        let with = Setting::parse("A_1=b=c").unwrap();
        assert_eq!((with.name.as_str(), with.value().unwrap()), ("A_1", "b=c".into()));
        assert_eq!(Setting::parse("A=").unwrap().value().unwrap(), "");
        let unset = Setting::parse("MSCCLRS_TEST_NOT_SET").unwrap().value().unwrap_err();
        assert!(unset.to_string().contains("MSCCLRS_TEST_NOT_SET is not set here"));
        for wrong in ["", "=", "=a", "1A=b", "A B=c", "RANK=1", "MSCCLRS_SECRET"] {
            assert!(Setting::parse(wrong).unwrap_err().contains("allowed are"), "{wrong}");
        }
    }
}

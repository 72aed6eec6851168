//! The list of hosts, and which ranks each has.

use anyhow::Result;
use mscclrs_core::bootstrap::{Address, Host};

use super::super::environment::Ranks;
use super::super::place::Place;
use crate::options::number;
use crate::usage::usage;

const ALLOWED: &str = "allowed are HOST, HOST:N and USER@HOST:N with commas between them";

/// Hosts as the user lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostList(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    host: RemoteHost,
    ranks: Option<u32>,
}

/// A host as ssh is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteHost {
    user: Option<String>,
    host: Host,
}

impl RemoteHost {
    /// For ssh's command line.
    pub(super) fn destination(&self) -> String {
        let host = self.name();
        match &self.user {
            Some(user) => format!("{user}@{host}"),
            None => host,
        }
    }

    /// For people.
    pub(super) fn name(&self) -> String {
        match &self.host {
            Host::V4(ip) => ip.to_string(),
            Host::V6 { ip, scope: None } => ip.to_string(),
            Host::V6 { ip, scope: Some(scope) } => format!("{ip}%{scope}"),
            Host::Name(name) => name.clone(),
        }
    }
}

/// The hosts of a launch with the ranks of each, and where the ranks meet.
pub(crate) struct Span {
    pub(super) parts: Vec<(RemoteHost, Ranks)>,
    pub(super) place: Place,
}

impl HostList {
    pub(in super::super) fn parse(text: &str) -> Result<HostList, String> {
        let mut entries = Vec::<Entry>::new();
        for part in text.split(',') {
            let entry = Entry::parse(part.trim())?;
            if entries.iter().any(|other| other.host == entry.host) {
                return Err(format!(
                    "'{0}' is named twice; allowed is once, as {0}:N for N ranks",
                    entry.host.destination()
                ));
            }
            entries.push(entry);
        }
        Ok(HostList(entries))
    }
}

impl Entry {
    fn parse(text: &str) -> Result<Entry, String> {
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, text),
        };
        let (name, ranks) = match rest.rsplit_once(':') {
            // A colon inside of brackets belongs to the address.
            Some((name, ranks)) if !ranks.ends_with(']') => {
                let ranks = number(ranks, "a number of ranks of one host", 1, 1024)
                    .map_err(|why| format!("'{text}': {why}"))?;
                (name, Some(ranks as u32))
            }
            _ => (rest, None),
        };
        let host = host(name).ok_or_else(|| format!("'{text}' is not a host; {ALLOWED}"))?;
        if user.is_some_and(|user| !is_user(user)) {
            return Err(format!("'{text}' does not begin with the name of a user; {ALLOWED}"));
        }
        Ok(Entry { host: RemoteHost { user: user.map(str::to_owned), host }, ranks })
    }
}

impl Span {
    /// Numbers the ranks; `usual` is the number on hosts that say none.
    pub(in super::super) fn new(
        hosts: &HostList,
        usual: Option<u32>,
        place: Option<Place>,
    ) -> Result<Span> {
        let mut counts = Vec::with_capacity(hosts.0.len());
        for entry in &hosts.0 {
            counts.push(entry.ranks.or(usual).ok_or_else(|| {
                usage!(
                    "--hosts: '{0}' says no number of ranks; allowed are {0}:N, and -n N for all \
                     hosts that say none",
                    entry.host.destination()
                )
            })?);
        }
        // A list holds fewer hosts than would bring this to overflow: each has at most 1024.
        let world_size = counts.iter().fold(0u32, |sum, count| sum.saturating_add(*count));
        let mut first = 0;
        let parts: Vec<_> = hosts
            .0
            .iter()
            .zip(counts)
            .map(|(entry, count)| {
                let ranks = Ranks { first, count, world_size };
                first = first.saturating_add(count);
                (entry.host.clone(), ranks)
            })
            .collect();
        let place = match place {
            Some(place) => place,
            // The list has at least one entry: that is how it was read.
            None => parts
                .first()
                .map_or_else(Place::loopback, |(head, _)| Place::host(head.host.clone())),
        };
        Ok(Span { parts, place })
    }

    /// Ranks on all hosts.
    pub(in super::super) fn world_size(&self) -> u32 {
        self.parts.first().map_or(0, |(_, ranks)| ranks.world_size)
    }
}

/// What an address may have for a host.
fn host(name: &str) -> Option<Host> {
    let address: Address = format!("{name}:1").parse().ok()?;
    address.interface.is_none().then_some(address.host)
}

/// A user's name cannot be taken for an option.
fn is_user(name: &str) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'\\');
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(hosts: &str, usual: Option<u32>) -> Result<Span> {
        Span::new(&HostList::parse(hosts).unwrap(), usual, None)
    }

    #[test]
    fn ranks_are_numbered_host_by_host() {
        let span = span("a,me@b:4,[fe80::1%eth0]", Some(2)).unwrap();
        let found: Vec<_> = span
            .parts
            .iter()
            .map(|(host, ranks)| (host.destination(), ranks.first, ranks.count, ranks.world_size))
            .collect();
        let expected = [
            ("a".to_owned(), 0, 2, 8),
            ("me@b".to_owned(), 2, 4, 8),
            ("fe80::1%eth0".to_owned(), 6, 2, 8),
        ];
        assert_eq!(found, expected);
        assert_eq!(span.world_size(), 8);
        assert_eq!(span.place.at(7).to_string(), "a:7");
    }

    #[test]
    fn ranks_meet_at_the_first_host_without_its_user() {
        assert_eq!(span("me@[::1]:1", None).unwrap().place.at(7).to_string(), "[::1]:7");
        assert_eq!(span("10.0.0.1:1,b:1", None).unwrap().place.at(7).to_string(), "10.0.0.1:7");
    }

    #[test]
    fn hosts_without_a_number_need_one_for_all() {
        let error = span("a:2,me@b", None).err().unwrap().to_string();
        assert!(error.contains("'me@b' says no number") && error.contains("-n N"), "{error}");
    }

    #[test]
    fn what_is_no_list_of_hosts_is_explained() {
        for (text, why) in [
            ("", "'' is not a host"),
            ("a,,b", "'' is not a host"),
            ("a,", "'' is not a host"),
            ("a b", "'a b' is not a host"),
            ("a;reboot", "'a;reboot' is not a host"),
            ("-oProxyCommand=x", "is not a host"),
            ("-l@a", "name of a user"),
            ("@a", "name of a user"),
            ("a:0", "'a:0': '0' is not a number of ranks"),
            ("a:x", "1 to 1024"),
            ("a:2000", "1 to 1024"),
            ("a:", "1 to 1024"),
            ("a,b,a:2", "'a' is named twice"),
            ("eth0:a:2", "is not a host"),
            ("::1", "is not a host"),
        ] {
            let error = HostList::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("allowed"), "{text}: {error}");
        }
    }
}

//! The network interfaces of this host, and which of them to use.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use crate::env::{self, Source};
use crate::{Error, Result};

/// The longest name of an interface, in bytes.
const MAX_NAME: usize = 15;

/// One address of one interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// With port 0.
    pub address: SocketAddr,
}

/// Which network interfaces may be used.
///
/// A list of names with commas: `eth` means names that start so, `=eth0` exactly this name; `^` in
/// front of the list means all others. An empty list means any, wired ones before containers' and
/// loopback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    except: bool,
    /// Name, and whether all of it must fit.
    names: Vec<(String, bool)>,
    family: Option<Family>,
}

/// Which version of the internet protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Version 4.
    V4,
    /// Version 6.
    V6,
}

impl InterfaceFilter {
    /// What MSCCLRS_SOCKET_IFNAME and MSCCLRS_SOCKET_FAMILY say.
    pub fn from_environment() -> Result<InterfaceFilter> {
        let mut filter = match env::SOCKET_IFNAME.find(Source::PROCESS) {
            Some((name, text)) => InterfaceFilter::parse(name, &text)?,
            None => InterfaceFilter::default(),
        };
        filter.family = match env::SOCKET_FAMILY.choice()? {
            Some("AF_INET") => Some(Family::V4),
            Some(_) => Some(Family::V6),
            None => None,
        };
        Ok(filter)
    }

    /// The same, for one version of the internet protocol only.
    pub fn with_family(self, family: Family) -> InterfaceFilter {
        InterfaceFilter { family: Some(family), ..self }
    }

    pub(super) fn is_any(&self) -> bool {
        self.names.is_empty()
    }

    fn fits(&self, name: &str) -> bool {
        let named = self
            .names
            .iter()
            .any(|(given, whole)| if *whole { given == name } else { name.starts_with(given) });
        named != self.except
    }

    /// The addresses to use, best first; an error if none of `all` fits.
    pub fn choose(&self, all: &[Interface]) -> Result<Vec<SocketAddr>> {
        let fits_family = |interface: &&Interface| match self.family {
            None => true,
            Some(Family::V4) => interface.address.is_ipv4(),
            Some(Family::V6) => interface.address.is_ipv6(),
        };
        let mut fit: Vec<&Interface> = all
            .iter()
            .filter(fits_family)
            .filter(|interface| self.is_any() || self.fits(&interface.name))
            .collect();
        if self.is_any() {
            let best = fit.iter().map(|interface| rank(interface)).min();
            fit.retain(|interface| Some(rank(interface)) == best);
        }
        // An address that needs a scope means nothing to other hosts.
        if fit.iter().any(|interface| !is_link_local(&interface.address)) {
            fit.retain(|interface| !is_link_local(&interface.address));
        }
        if fit.is_empty() {
            let found = all.iter().map(|i| format!("{} ({})", i.name, i.address.ip())).collect();
            return Err(Error::NoInterface { filter: self.to_string(), found });
        }
        self.tell(all, &fit);
        Ok(fit.into_iter().map(|interface| interface.address).collect())
    }
}

impl InterfaceFilter {
    /// Which interfaces were chosen, and why the others were not.
    fn tell(&self, all: &[Interface], chosen: &[&Interface]) {
        for Interface { name, address } in chosen {
            mscclrs_log::info!(
                BOOTSTRAP, interface = name, address = %address.ip(), filter = self.to_string().replace('"', ""),
                "an interface is chosen"
            );
        }
        for interface in all.iter().filter(|interface| !chosen.contains(interface)) {
            mscclrs_log::debug!(
                BOOTSTRAP,
                interface = interface.name,
                address = %interface.address.ip(),
                why = self.why_not(interface),
                "an interface is left out"
            );
        }
    }

    /// Why an interface that is up was not chosen.
    fn why_not(&self, interface: &Interface) -> &'static str {
        let other_family = match self.family {
            None => false,
            Some(Family::V4) => !interface.address.is_ipv4(),
            Some(Family::V6) => !interface.address.is_ipv6(),
        };
        if other_family {
            "its address is of the other version of the internet protocol"
        } else if !self.is_any() && !self.fits(&interface.name) {
            "MSCCLRS_SOCKET_IFNAME leaves it out"
        } else if is_link_local(&interface.address) {
            "its address is link-local, and there are others"
        } else {
            "there are better ones: InfiniBand's, then others, then containers', then loopback"
        }
    }
}

impl FromStr for InterfaceFilter {
    type Err = Error;

    fn from_str(text: &str) -> Result<InterfaceFilter> {
        InterfaceFilter::parse(env::SOCKET_IFNAME.name, text)
    }
}

impl InterfaceFilter {
    /// Reads what stands under a variable's name.
    fn parse(name: &str, text: &str) -> Result<InterfaceFilter> {
        let bad = || Error::Environment {
            name: name.into(),
            value: text.into(),
            allowed: format!("allowed is {}", env::SOCKET_IFNAME.allowed()),
        };
        // A blank in front changes nothing.
        let (except, list) = match text.trim().strip_prefix('^') {
            Some(rest) => (true, rest.trim_start()),
            None => (false, text.trim()),
        };
        // MSCCL++ and NCCL put one = before the whole list.
        let (all_whole, list) = match list.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, list),
        };
        let name = |item: &str| {
            let (name, whole) = match item.trim().strip_prefix('=') {
                Some(name) => (name.trim_start(), true),
                None => (item.trim(), all_whole),
            };
            // No interface has such a name, so it would never fit.
            let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '^' | '=' | '/');
            let wrong = name.is_empty() || name.len() > MAX_NAME || name.contains(odd);
            if wrong { Err(bad()) } else { Ok((name.to_owned(), whole)) }
        };
        let names = list.split(',').map(name).collect::<Result<_>>()?;
        Ok(InterfaceFilter { except, names, family: None })
    }
}

impl std::fmt::Display for InterfaceFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self
            .names
            .iter()
            .map(|(name, whole)| format!("{}{name}", if *whole { "=" } else { "" }))
            .collect();
        let any = if self.is_any() { "any" } else { "" };
        write!(f, "\"{}{}{any}\"", if self.except { "^" } else { "" }, names.join(","))?;
        match self.family {
            None => Ok(()),
            Some(Family::V4) => write!(f, " with IPv4"),
            Some(Family::V6) => write!(f, " with IPv6"),
        }
    }
}

/// InfiniBand first, then what is neither a container's bridge nor loopback.
fn rank(interface: &Interface) -> u32 {
    let name = &interface.name;
    if interface.address.ip().is_loopback() {
        3
    } else if name.starts_with("docker") || name.starts_with("veth") || name.starts_with("virbr") {
        2
    } else {
        u32::from(!name.starts_with("ib"))
    }
}

fn is_link_local(address: &SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// All addresses of this host's network interfaces that are up. Does not block.
pub fn list() -> Result<Vec<Interface>> {
    let mut head = std::ptr::null_mut();
    // SAFETY: getifaddrs stores a list at `head`, or fails and stores nothing.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(Error::io("cannot list network interfaces", io::Error::last_os_error()));
    }
    let mut found = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list, which is freed only below.
        let element = unsafe { &*next };
        next = element.ifa_next;
        let is_up = element.ifa_flags & libc::IFF_UP as libc::c_uint != 0;
        // SAFETY: ifa_addr is null or points to an address of the family it names.
        let address = unsafe { read_address(element.ifa_addr) };
        if let (true, Some(address)) = (is_up, address) {
            // SAFETY: ifa_name is a C string of the list.
            let name = unsafe { CStr::from_ptr(element.ifa_name) };
            found.push(Interface { name: name.to_string_lossy().into_owned(), address });
        }
    }
    // SAFETY: `head` came from getifaddrs and nothing points into the list any more.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to a socket address of the family it names.
unsafe fn read_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so it is an address whose head is a `sockaddr`, by this function's contract.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family, so it is a `sockaddr_in`.
            let v4 = unsafe { &*address.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), 0))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, so it is a `sockaddr_in6`.
            let v6 = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, 0, 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The number of an interface.
pub(super) fn index_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a C string that lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        index => Some(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canned(list: &[(&str, &str)]) -> Vec<Interface> {
        let one = |(name, ip): &(&str, &str)| Interface {
            name: (*name).into(),
            address: SocketAddr::new(ip.parse().unwrap(), 0),
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn filters_choose_by_prefix_whole_name_and_exclusion() {
        let all = canned(&[
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "10.0.0.1"),
            ("eth0", "fe80::1"),
            ("eth01", "10.0.1.1"),
            ("ib0", "10.2.0.1"),
            ("ib0", "fd00::2"),
        ]);
        let table: [(&str, &[&str]); 10] = [
            ("eth", &["10.0.0.1", "10.0.1.1"]),
            ("=eth0", &["10.0.0.1"]),
            ("=eth0,eth01", &["10.0.0.1", "10.0.1.1"]),
            ("=eth0,=ib0", &["10.0.0.1", "10.2.0.1", "fd00::2"]),
            ("^docker,lo", &["10.0.0.1", "10.0.1.1", "10.2.0.1", "fd00::2"]),
            ("^=eth0,ib0,lo,docker0", &["10.0.1.1"]),
            ("lo", &["127.0.0.1"]),
            ("docker", &["172.17.0.1"]),
            ("ib", &["10.2.0.1", "fd00::2"]),
            ("nothing", &[]),
        ];
        for (text, expected) in table {
            let filter: InterfaceFilter = text.parse().unwrap();
            assert_eq!(filter.to_string().matches('=').count() > 0, text.contains('='), "{text}");
            let chosen = filter.choose(&all);
            if expected.is_empty() {
                let error = chosen.unwrap_err().to_string();
                assert!(error.contains("nothing") && error.contains("docker0 (172"), "{error}");
                continue;
            }
            let chosen: Vec<String> = chosen.unwrap().iter().map(|a| a.ip().to_string()).collect();
            assert_eq!(chosen, expected, "{text}");
        }
    }

    #[test]
    fn blanks_around_a_filter_and_its_names_change_nothing() {
        let table = [
            (" =eth0,ib0 ", "=eth0,ib0"),
            (" ^ =lo , eth ", "^=lo,eth"),
            ("\r=\r=\teth0", "=eth0"),
            ("eth0,= ib0", "eth0,=ib0"),
        ];
        for (blanks, plain) in table {
            let read = |text: &str| text.parse::<InterfaceFilter>().unwrap();
            assert_eq!(read(blanks), read(plain), "{blanks}");
            assert_eq!(read(read(blanks).to_string().trim_matches('"')), read(plain));
        }
        for text in ["e th0", "eth\r0", "=eth0\u{7}", "sixteen-letters-"] {
            assert!(text.parse::<InterfaceFilter>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn without_a_filter_the_best_class_is_used() {
        let any = InterfaceFilter::default();
        let ips = |list: &[(&str, &str)], filter: &InterfaceFilter| -> Vec<String> {
            let chosen = filter.choose(&canned(list)).unwrap();
            chosen.iter().map(|a| a.ip().to_string()).collect()
        };
        let lo = ("lo", "127.0.0.1");
        let docker = ("docker0", "172.17.0.1");
        let (eth, eth6) = (("eth0", "10.0.0.1"), ("eth0", "fd00::1"));
        assert_eq!(ips(&[lo, docker, eth, ("ib0", "10.2.0.1")], &any), ["10.2.0.1"]);
        assert_eq!(ips(&[lo, docker, eth], &any), ["10.0.0.1"]);
        assert_eq!(ips(&[lo, docker], &any), ["172.17.0.1"]);
        assert_eq!(ips(&[lo], &any), ["127.0.0.1"]);
        assert_eq!(ips(&[lo, ("eth0", "fe80::1")], &any), ["fe80::1"]);
        let (v4, v6) = (any.clone().with_family(Family::V4), any.with_family(Family::V6));
        assert_eq!(ips(&[lo, eth6, eth], &v4), ["10.0.0.1"]);
        assert_eq!(ips(&[lo, eth6, eth], &v6), ["fd00::1"]);
        assert!(v6.choose(&canned(&[lo, eth])).is_err());
    }

    #[test]
    fn bad_filters_are_refused() {
        for text in ["^", "=", "eth,", ",", "eth,^lo", "a b", "^^eth"] {
            let error = text.parse::<InterfaceFilter>().unwrap_err().to_string();
            assert!(error.contains("MSCCLRS_SOCKET_IFNAME"), "{text}: {error}");
        }
    }

    #[test]
    fn this_host_has_loopback() {
        assert!(list().unwrap().iter().any(|i| i.address.ip().is_loopback()));
        assert_eq!(index_of("lo"), Some(1));
        assert_eq!(index_of("no-such"), None);
    }
}

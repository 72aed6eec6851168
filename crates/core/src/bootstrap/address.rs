//! Addresses as people write them, and unique ids.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::Instant;

use crate::{Error, Result};

const ALLOWED: &str = "write host:port, [ipv6]:port or [ipv6%scope]:port, with interface: in front \
                       to choose a network interface";

/// Where rank 0 serves the rendezvous: `host:port`, `[v6%scope]:port`, or either of them behind the
/// name of a network interface and a colon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The network interface to use.
    pub interface: Option<String>,
    /// The host.
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

/// The host of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A number of version 4.
    V4(Ipv4Addr),
    /// A number of version 6.
    V6 {
        /// The number.
        ip: Ipv6Addr,
        /// The interface that a link-local address belongs to, by name or number.
        scope: Option<String>,
    },
    /// A name.
    Name(String),
}

impl Address {
    /// The address of a host that is given apart from its port, as launchers do.
    pub fn from_parts(host: &str, port: u16) -> Result<Address> {
        if host.contains(':') && !host.starts_with('[') {
            return format!("[{host}]:{port}").parse();
        }
        format!("{host}:{port}").parse()
    }

    /// Whether it means this host wherever it is read.
    pub(crate) fn is_loopback(&self) -> bool {
        match &self.host {
            Host::V4(ip) => ip.is_loopback(),
            Host::V6 { ip, .. } => ip.is_loopback(),
            Host::Name(name) => name == "localhost",
        }
    }

    /// The numbers that it stands for. Asks the resolver for a name, until the deadline.
    pub(super) fn resolve(&self, deadline: Instant) -> Result<Vec<SocketAddr>> {
        match &self.host {
            Host::V4(ip) => Ok(vec![SocketAddr::new((*ip).into(), self.port)]),
            Host::V6 { ip, scope } => {
                let scope = scope.as_deref().map_or(Ok(0), |scope| self.scope_number(scope))?;
                Ok(vec![SocketAddrV6::new(*ip, self.port, 0, scope).into()])
            }
            Host::Name(name) => self.look_up(name, deadline),
        }
    }

    fn scope_number(&self, scope: &str) -> Result<u32> {
        if let Ok(number) = scope.parse() {
            return Ok(number);
        }
        super::interfaces::index_of(scope)
            .ok_or_else(|| bad(&self.to_string(), format!("there is no interface {scope}")))
    }

    fn look_up(&self, name: &str, deadline: Instant) -> Result<Vec<SocketAddr>> {
        // The resolver knows no deadline; a thread that it keeps is left to it.
        let (sender, receiver) = mpsc::channel();
        let question = (name.to_owned(), self.port);
        std::thread::Builder::new()
            .name("mscclrs-resolver".into())
            .spawn(move || {
                let _ = sender.send(question.to_socket_addrs().map(Vec::from_iter));
            })
            .map_err(|error| Error::io("cannot start a thread", error))?;
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(found)) if !found.is_empty() => Ok(found),
            Ok(Ok(_)) => Err(self.unknown("the name has no address".into())),
            Ok(Err(error)) => Err(self.unknown(error.to_string())),
            Err(_) => Err(self.unknown("the resolver did not answer in time".into())),
        }
    }

    fn unknown(&self, why: String) -> Error {
        Error::UnknownHost { address: self.to_string(), why }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        let fail = |why: &str| bad(text, why.to_owned());
        let (interface, host, port) = match text.split_once('[') {
            Some((before, rest)) => {
                let interface = match before.strip_suffix(':') {
                    Some(name) => Some(name),
                    None if before.is_empty() => None,
                    None => return Err(fail("there must be a colon before [")),
                };
                let (inside, after) =
                    rest.split_once(']').ok_or_else(|| fail("the ] is missing"))?;
                let port =
                    after.strip_prefix(':').ok_or_else(|| fail("the port after ] is missing"))?;
                (interface, v6(inside).map_err(|why| fail(&why))?, port)
            }
            None => {
                let parts: Vec<&str> = text.split(':').collect();
                let (interface, host, port) = match parts[..] {
                    [_] => return Err(fail("the port is missing")),
                    [host, port] => (None, host, port),
                    [interface, host, port] => (Some(interface), host, port),
                    _ => return Err(fail("an IPv6 address must stand in brackets")),
                };
                (interface, name_or_v4(host).map_err(|why| fail(&why))?, port)
            }
        };
        if let Some(name) = interface
            && !is_interface_name(name)
        {
            return Err(fail(&format!("\"{name}\" is no name of a network interface")));
        }
        let port = match port.parse() {
            Ok(0) => return Err(fail("port 0 is no port to meet at")),
            Ok(port) if port_digits(text) => port,
            _ => return Err(fail("the port must be a number from 1 to 65535")),
        };
        Ok(Address { interface: interface.map(str::to_owned), host, port })
    }
}

/// Whether the port is digits only: `parse` would allow a sign.
fn port_digits(text: &str) -> bool {
    text.rsplit(':').next().is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

fn v6(inside: &str) -> std::result::Result<Host, String> {
    let (ip, scope) = match inside.split_once('%') {
        Some((ip, scope)) => (ip, Some(scope)),
        None => (inside, None),
    };
    if let Some(scope) = scope
        && !is_interface_name(scope)
    {
        return Err(format!("\"{scope}\" is no scope: it is the name or number of an interface"));
    }
    let ip = ip.parse().map_err(|_| format!("\"{ip}\" is no IPv6 address"))?;
    Ok(Host::V6 { ip, scope: scope.map(str::to_owned) })
}

fn name_or_v4(host: &str) -> std::result::Result<Host, String> {
    if host.is_empty() {
        return Err("the host is missing".into());
    }
    if let Ok(ip) = host.parse() {
        return Ok(Host::V4(ip));
    }
    if host.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(format!("\"{host}\" is no IPv4 address"));
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if host.len() > 253 || !host.bytes().all(fits) || host.starts_with(['-', '.']) {
        return Err(format!("\"{host}\" is no host name"));
    }
    Ok(Host::Name(host.to_owned()))
}

/// As the kernel has it: at most 15 bytes, no slash, no blank, no colon.
fn is_interface_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'[' | b']' | b'%');
    !name.is_empty() && name.len() <= 15 && name.bytes().all(fits)
}

fn bad(text: &str, why: String) -> Error {
    Error::Address { text: text.to_owned(), what: "address", why, allowed: ALLOWED }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(interface) = &self.interface {
            write!(f, "{interface}:")?;
        }
        match &self.host {
            Host::V4(ip) => write!(f, "{ip}")?,
            Host::V6 { ip, scope: None } => write!(f, "[{ip}]")?,
            Host::V6 { ip, scope: Some(scope) } => write!(f, "[{ip}%{scope}]")?,
            Host::Name(name) => write!(f, "{name}")?,
        }
        write!(f, ":{}", self.port)
    }
}

/// Whether only machines that are near can have this address.
pub(super) fn is_near(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(v4) => is_near(v4.into()),
            None => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_back() {
        let v6 = |ip: &str, scope: Option<&str>| Host::V6 {
            ip: ip.parse().unwrap(),
            scope: scope.map(str::to_owned),
        };
        let table = [
            ("10.0.0.1:80", None, Host::V4(Ipv4Addr::new(10, 0, 0, 1)), 80),
            ("node-7.cluster:65535", None, Host::Name("node-7.cluster".into()), 65535),
            ("localhost:1", None, Host::Name("localhost".into()), 1),
            ("[::1]:5000", None, v6("::1", None), 5000),
            ("[fe80::1%eth0]:5000", None, v6("fe80::1", Some("eth0")), 5000),
            ("[fe80::1%3]:5000", None, v6("fe80::1", Some("3")), 5000),
            ("eth0:10.0.0.1:80", Some("eth0"), Host::V4(Ipv4Addr::new(10, 0, 0, 1)), 80),
            ("eth0:[fe80::1]:5000", Some("eth0"), v6("fe80::1", None), 5000),
            ("eth0.7:[fe80::1%eth0.7]:5000", Some("eth0.7"), v6("fe80::1", Some("eth0.7")), 5000),
            ("ib0:head:7", Some("ib0"), Host::Name("head".into()), 7),
        ];
        for (text, interface, host, port) in table {
            let address: Address = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            let expected = Address { interface: interface.map(str::to_owned), host, port };
            assert_eq!(address, expected, "{text}");
            assert_eq!(address.to_string(), text);
        }
        assert_eq!(Address::from_parts("::1", 5).unwrap().to_string(), "[::1]:5");
        assert_eq!(Address::from_parts("head", 5).unwrap().to_string(), "head:5");
    }

    #[test]
    fn what_is_no_address_is_explained() {
        let table = [
            ("", "port is missing"),
            ("host", "port is missing"),
            (":80", "host is missing"),
            ("host:", "number from 1"),
            ("host:0", "port 0"),
            ("host:65536", "number from 1"),
            ("host:+80", "number from 1"),
            ("host:80x", "number from 1"),
            ("10.0.0.256:80", "no IPv4"),
            ("1.2.3:80", "no IPv4"),
            ("fe80::1:5000", "brackets"),
            ("::1:5000", "brackets"),
            ("[::1]", "port after ]"),
            ("[::1:5000", "] is missing"),
            ("[::1]x:80", "port after ]"),
            ("[::g]:80", "no IPv6"),
            ("[fe80::1%]:80", "no scope"),
            ("eth0[::1]:80", "colon before ["),
            ("much-too-long-interface:10.0.0.1:80", "network interface"),
            (":10.0.0.1:80", "network interface"),
            ("ho st:80", "no host name"),
            ("-host:80", "no host name"),
        ];
        for (text, why) in table {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("host:port"), "{error}");
        }
    }

    #[test]
    fn near_addresses_are_loopback_private_and_link_local() {
        for near in ["127.0.0.1", "10.1.1.1", "192.168.0.1", "172.31.0.1", "::1", "fd00::1"] {
            assert!(is_near(near.parse().unwrap()), "{near}");
        }
        for far in ["8.8.8.8", "172.32.0.1", "2001:db8::1", "0.0.0.0", "::"] {
            assert!(!is_near(far.parse().unwrap()), "{far}");
        }
    }
}

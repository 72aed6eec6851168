//! Where ranks meet, and the ports held for it.
//!
//! Invariant: from before a rank knows of a port until the launch ends, the system gives that port to
//! nobody who does not ask for exactly it. A socket that is bound and allows reuse, but does not
//! listen, is in the way of every automatic choice of a port and of no server that allows reuse, which
//! the rendezvous and PyTorch's store do. So rank 0 can listen whenever it likes, also again, and no
//! socket has to be handed through whatever starts it.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::str::FromStr;

use anyhow::{Context, Result};
use mscclrs_core::bootstrap::{Address, Host};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

use crate::usage::usage;

/// Ports for launches on several hosts lie below those that systems hand out.
const FIRST: u16 = 15_000;
const COUNT: u16 = 15_000;

/// How often a free pair of ports is looked for.
const TRIES: u32 = 200;

/// What `--address` says: where rank 0 serves the rendezvous, maybe without the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    address: Address,
    has_port: bool,
}

impl Place {
    /// This host, for this host only.
    pub(super) fn loopback() -> Place {
        Place::host(Host::V4(Ipv4Addr::LOCALHOST))
    }

    /// A host, at a port that the launcher chooses.
    pub(super) fn host(host: Host) -> Place {
        Place { address: Address { interface: None, host, port: FIRST }, has_port: false }
    }

    /// The port, where the user chose one.
    pub(super) fn port(&self) -> Option<u16> {
        self.has_port.then_some(self.address.port)
    }

    /// With the port that was chosen.
    pub(super) fn at(&self, port: u16) -> Rendezvous {
        Rendezvous(Address { port, ..self.address.clone() })
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        // Without a port, any port makes it an address.
        let bare = format!("{text}:{FIRST}").parse::<Address>();
        let (address, has_port) = match (text.parse::<Address>(), bare) {
            (Ok(address), _) => (address, true),
            (Err(_), Ok(address)) => (address, false),
            (Err(error), Err(bare)) => {
                let error = if text.contains(':') { error } else { bare };
                return Err(format!("{error}; the port may be left out"));
            }
        };
        if address.port < 2 {
            return Err(format!(
                "'{text}' has port 1; allowed are 2 to 65535, since MASTER_PORT is one less"
            ));
        }
        Ok(Place { address, has_port })
    }
}

/// Where ranks meet. PyTorch's own port is the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rendezvous(Address);

impl Rendezvous {
    pub(super) fn master_address(&self) -> String {
        match &self.0.host {
            Host::V4(ip) => ip.to_string(),
            Host::V6 { ip, scope: None } => ip.to_string(),
            Host::V6 { ip, scope: Some(scope) } => format!("{ip}%{scope}"),
            Host::Name(name) => name.clone(),
        }
    }

    pub(super) fn master_port(&self) -> u16 {
        self.0.port - 1
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A port for the rendezvous and the one before it for PyTorch's, held until this is dropped.
pub(super) struct HeldPorts {
    pub(super) port: u16,
    _sockets: Vec<OwnedFd>,
}

impl HeldPorts {
    /// Two free ports side by side.
    pub(super) fn any() -> Result<HeldPorts> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..TRIES {
            let pair = hold(0, false).and_then(|(first, port)| {
                let next = port.checked_add(1).ok_or(io::ErrorKind::AddrInUse)?;
                let (second, port) = hold(next, false)?;
                Ok(HeldPorts { port, _sockets: vec![first, second] })
            });
            match pair {
                Ok(pair) => return Ok(pair),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                Err(error) => return Err(error).context("no port can be had for the rendezvous"),
            }
        }
        Err(last).context("no two free ports side by side were found for the rendezvous")
    }

    /// The port that the user or another part of the launch chose.
    pub(super) fn at(port: u16) -> Result<HeldPorts> {
        // Connections of an earlier launch may linger there, which is no hindrance.
        let (own, _) = hold(port, true).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                usage!("--address: port {port} of this host is taken; allowed is a free one")
            }
            io::ErrorKind::PermissionDenied => {
                usage!("--address: port {port} is the system's; allowed are 1024 to 65535")
            }
            _ => anyhow::Error::from(error).context(format!("port {port} cannot be had")),
        })?;
        // Programs without PyTorch do not miss this one.
        let before = hold(port - 1, true).ok().map(|(socket, _)| socket);
        Ok(HeldPorts { port, _sockets: [Some(own), before].into_iter().flatten().collect() })
    }
}

/// A port that is likely to be free on a host that cannot be asked.
pub(super) fn likely_free_port() -> Result<u16> {
    let random = getrandom::u32().context("no random number for a port")?;
    Ok(FIRST + (random % u32::from(COUNT)) as u16)
}

/// A bound socket that does not listen, on all addresses; `reused`, where others hold it so too.
fn hold(port: u16, reused: bool) -> io::Result<(OwnedFd, u16)> {
    let hold = |at: SocketAddr| {
        let family = if at.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        sockopt::set_socket_reuseaddr(&socket, reused)?;
        bind(&socket, &at)?;
        // From here on servers may share it.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        let port = SocketAddr::try_from(getsockname(&socket)?)?.port();
        Ok((socket, port))
    };
    let both = hold(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
    match both {
        // A host without version 6.
        Err(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL) => {
            Ok(hold(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))?)
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn places_are_read_with_and_without_a_port() {
        for (text, port, whole) in [
            ("head", None, "head:7"),
            ("head:29400", Some(29400), "head:7"),
            ("10.0.0.1", None, "10.0.0.1:7"),
            ("ib0:10.0.0.1", None, "ib0:10.0.0.1:7"),
            ("ib0:head:29400", Some(29400), "ib0:head:7"),
            ("[fe80::1%eth0]", None, "[fe80::1%eth0]:7"),
            ("[::1]:29400", Some(29400), "[::1]:7"),
        ] {
            let place: Place = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(place.port(), port, "{text}");
            assert_eq!(place.at(7).to_string(), whole, "{text}");
        }
        for (text, why) in [
            ("", "host is missing"),
            ("a b", "host name"),
            ("head:70000", "port"),
            ("head:1", "2 to 65535"),
            ("::1", "[ipv6]"),
        ] {
            let error = text.parse::<Place>().unwrap_err();
            assert!(error.contains(why) && error.lines().count() == 1, "{text}: {error}");
        }
    }

    #[test]
    fn pytorch_gets_the_host_without_brackets_and_the_port_before() {
        let meeting = "eth0:[fe80::1%eth0]".parse::<Place>().unwrap().at(30001);
        assert_eq!(meeting.master_address(), "fe80::1%eth0");
        assert_eq!(meeting.master_port(), 30000);
    }

    #[test]
    fn held_ports_are_for_servers_that_ask_for_them_and_for_nobody_else() {
        let held = HeldPorts::any().unwrap();
        for port in [held.port - 1, held.port] {
            // Who does not allow reuse is refused, and so is every automatic choice.
            assert_eq!(hold(port, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            // Rank 0, on one address or on all; and once more after it has ended.
            for at in ["127.0.0.1", "0.0.0.0"] {
                let server = TcpListener::bind((at, port)).unwrap();
                let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
                drop((server.accept().unwrap(), client));
            }
        }
    }

    #[test]
    fn a_chosen_port_is_refused_where_somebody_listens() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let error = HeldPorts::at(port).err().unwrap().to_string();
        assert!(error.contains(&format!("port {port}")) && error.contains("taken"), "{error}");
        drop(server);
        assert_eq!(HeldPorts::at(port).unwrap().port, port);
    }

    #[test]
    fn launches_at_once_hold_different_ports() {
        let held: Vec<_> = (0..50).map(|_| HeldPorts::any().unwrap()).collect();
        let mut ports: Vec<u16> = held.iter().flat_map(|h| [h.port - 1, h.port]).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
    }
}

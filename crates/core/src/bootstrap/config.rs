//! What a rank needs to take part.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::address::{Address, Host, is_near};
use super::interfaces::{self, InterfaceFilter};
use super::secret::Secret;
use super::tcp::Meeting;
use super::unique_id::UniqueId;
use crate::env::{self, Source};
use crate::{Error, Result, launch};

/// What a rank needs to take part in a group over TCP.
#[derive(Clone, Debug)]
pub struct Config {
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Where ranks meet.
    pub rendezvous: Rendezvous,
    /// What ranks prove to each other where they meet at an address. Otherwise MSCCLRS_SECRET, or
    /// what the launcher's job id gives.
    pub secret: Option<Secret>,
    /// How long each call waits. Otherwise MSCCLRS_BOOTSTRAP_TIMEOUT, or 30 s.
    pub timeout: Option<Duration>,
    /// Which network interfaces are used. Otherwise MSCCLRS_SOCKET_IFNAME and
    /// MSCCLRS_SOCKET_FAMILY.
    pub interfaces: Option<InterfaceFilter>,
    /// What identifies this host. Otherwise MSCCLRS_HOSTID, or host name and boot id.
    pub host_id: Option<u64>,
    /// What must be equal on all ranks for messages and kernels to fit together.
    pub build: String,
}

/// Where ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// Served by rank 0.
    Address(Address),
    /// Served by the process that made the id.
    UniqueId(UniqueId),
}

impl From<Address> for Rendezvous {
    fn from(address: Address) -> Self {
        Rendezvous::Address(address)
    }
}

impl From<UniqueId> for Rendezvous {
    fn from(id: UniqueId) -> Self {
        Rendezvous::UniqueId(id)
    }
}

/// What is proved, and whom to let in.
pub(super) struct Trust {
    pub(super) secret: Secret,
    /// There is no secret worth the name: loopback and private addresses only.
    pub(super) near_only: bool,
}

impl Config {
    /// Everything else from the environment or as it is by default.
    pub fn new(rank: u32, world_size: u32, rendezvous: impl Into<Rendezvous>) -> Config {
        Config {
            rank,
            world_size,
            rendezvous: rendezvous.into(),
            secret: None,
            timeout: None,
            interfaces: None,
            host_id: None,
            build: super::build(),
        }
    }

    pub(super) fn timeout(&self) -> Result<Duration> {
        match self.timeout {
            // A day is as good as for ever, and cannot overflow a clock.
            Some(timeout) => Ok(timeout.min(Duration::from_secs(86_400))),
            None => Ok(env::BOOTSTRAP_TIMEOUT.seconds()?.unwrap_or(Duration::from_secs(30))),
        }
    }

    pub(super) fn interfaces(&self) -> Result<InterfaceFilter> {
        match &self.interfaces {
            Some(filter) => Ok(filter.clone()),
            None => InterfaceFilter::from_environment(),
        }
    }

    pub(super) fn trust(&self) -> Result<Trust> {
        let secret = match (&self.rendezvous, &self.secret) {
            (Rendezvous::UniqueId(id), _) => Some(id.secret()),
            (Rendezvous::Address(_), Some(secret)) => Some(secret.clone()),
            (Rendezvous::Address(_), None) => match env::SECRET.secret()? {
                Some(text) => Some(Secret::new(text)),
                None => launch::job_secret(Source::PROCESS),
            },
        };
        match secret {
            Some(secret) => Ok(Trust { secret, near_only: false }),
            None => {
                let here = matches!(&self.rendezvous, Rendezvous::Address(a) if a.is_loopback());
                // Once is enough.
                if self.rank == 0 && !here {
                    mscclrs_log::warn!(
                        BOOTSTRAP,
                        "there is no secret, so every process of this host and its private networks \
                         can take part; set MSCCLRS_SECRET to the same text on every rank"
                    );
                }
                Ok(Trust { secret: Secret::new("none"), near_only: true })
            }
        }
    }

    pub(super) fn meeting(
        &self,
        filter: &InterfaceFilter,
        trust: &Trust,
        deadline: Instant,
    ) -> Result<Meeting> {
        let address = match &self.rendezvous {
            Rendezvous::Address(address) => address,
            Rendezvous::UniqueId(id) => {
                return Ok(Meeting {
                    text: format!("{:?}", id.addresses()),
                    to: id.addresses().to_vec(),
                    from: Vec::new(),
                    listen: Vec::new(),
                    served_by: None,
                    loopback: id.addresses().iter().all(|a| a.ip().is_loopback()),
                });
            }
        };
        let from = match &address.interface {
            None => Vec::new(),
            Some(name) => {
                let exactly: InterfaceFilter = format!("={name}").parse()?;
                exactly.choose(&interfaces::list()?)?
            }
        };
        let mut meeting = Meeting {
            text: address.to_string(),
            to: Vec::new(),
            from,
            listen: Vec::new(),
            served_by: Some(0),
            loopback: address.is_loopback(),
        };
        if self.rank == 0 {
            self.serve_at(address, filter, deadline, &mut meeting)?;
        } else {
            meeting.to = address.resolve(deadline)?;
        }
        if let (true, Some(far)) =
            (trust.near_only, meeting.to.iter().find(|address| !is_near(address.ip())))
        {
            return Err(Error::Insecure { address: far.to_string() });
        }
        Ok(meeting)
    }

    /// Rank 0 listens at a number that it is given. A name may mean this host from elsewhere only
    /// (a service's address, say), so for a name it listens everywhere.
    fn serve_at(
        &self,
        address: &Address,
        filter: &InterfaceFilter,
        deadline: Instant,
        meeting: &mut Meeting,
    ) -> Result<()> {
        let port = address.port;
        if let (false, Host::Name(name)) = (meeting.loopback, &address.host) {
            // Nobody finds this rank by a name that means nothing. Its own means something to others.
            if *name != super::identity::host_name() {
                address.resolve(deadline)?;
            }
            meeting.to = vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)];
            let mut at = if !meeting.from.is_empty() {
                meeting.from.clone()
            } else if !filter.is_any() {
                filter.choose(&interfaces::list()?)?
            } else {
                vec![SocketAddr::new(any_address(), port)]
            };
            at.iter_mut().for_each(|address| address.set_port(port));
            if !at[0].ip().is_unspecified() {
                meeting.to.clone_from(&at);
            }
            meeting.listen = at;
        } else {
            meeting.to = address.resolve(deadline)?;
            // "localhost" may have two numbers, of which a host may lack one.
            meeting.to.sort_by_key(|address| address.is_ipv6());
            meeting.listen = meeting.to[..1].to_vec();
        }
        Ok(())
    }
}

/// All addresses, of both versions where the host has both.
fn any_address() -> std::net::IpAddr {
    let both = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    match super::socket::listen_at(both) {
        Ok(_) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

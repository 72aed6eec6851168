//! How ranks find each other and exchange small messages during set-up.

mod acceptor;
mod address;
mod admission;
mod collective;
mod config;
mod dial;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handshake;
mod identity;
mod interfaces;
mod join;
mod letter;
mod local;
mod mailbox;
mod notice;
mod office;
mod root;
mod secret;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
mod unique_id;
mod verdict;
mod wire;

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::{Error, Loss, Result};

pub use address::{Address, Host};
pub use config::{Config, Rendezvous};
pub use interfaces::{Family, Interface, InterfaceFilter, list as interfaces};
pub use local::LocalBootstrap;
pub use secret::Secret;
pub use tcp::TcpBootstrap;
pub use unique_id::UniqueId;
pub use verdict::RendezvousError;

pub(crate) use identity::random;
pub(crate) use wire::{Damaged, Reader, Writer};

/// The longest message that `send` and `all_gather` carry, in bytes.
pub const MAX_MESSAGE: usize = 256 << 20;

/// Small messages between the ranks of a communicator, for set-up only.
///
/// Messages between two ranks with one tag arrive in the order sent. Every call has a deadline and
/// ends with an error that names the rank it waited for, or the rank that was lost meanwhile, whichever
/// was waited for. Any thread may call.
pub trait Bootstrap: Send + Sync {
    /// This rank.
    fn rank(&self) -> u32;
    /// Number of ranks.
    fn world_size(&self) -> u32;
    /// Sends a message; does not wait for it to be received.
    fn send(&self, peer: u32, tag: u32, data: &[u8]) -> Result<()>;
    /// Waits for the next message of `peer` with `tag`.
    fn recv(&self, peer: u32, tag: u32) -> Result<Vec<u8>>;
    /// Every rank's `data`, by rank. Lengths may differ. All ranks call it.
    fn all_gather(&self, data: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Waits until every rank called it.
    fn barrier(&self) -> Result<()> {
        self.all_gather(&[]).map(|_| ())
    }

    /// The host that a rank runs on: equal for two ranks exactly if they share a running kernel
    /// and a host name.
    fn host_id(&self, rank: u32) -> u64;
    /// The process that a rank runs in: equal for two ranks exactly if they share a process. A
    /// number of our own, not the system's process id.
    fn process_id(&self, rank: u32) -> u64;
    /// The ranks on this rank's host in ascending order, this rank among them.
    fn peers_on_this_host(&self) -> Vec<u32> {
        let here = self.host_id(self.rank());
        (0..self.world_size()).filter(|&rank| self.host_id(rank) == here).collect()
    }
    /// A stream socket of the caller's own to `peer`, which calls this too, with the same `label`.
    /// The i-th call of one side with a label gets the other end of the i-th call of the other. Labels
    /// from 0xffff0000 up are the crate's own.
    fn stream(&self, peer: u32, label: u32) -> Result<OwnedFd> {
        let _ = label;
        Err(Error::Protocol {
            operation: "stream".into(),
            rank: self.rank(),
            peer,
            why: "cannot be reached by a socket: this bootstrap does not offer any".into(),
        })
    }
    /// The first rank that was lost, as far as this rank knows.
    fn lost(&self) -> Option<Loss> {
        None
    }
    /// This rank learned by other means that the process of a rank has ended: the calls of all ranks
    /// end with an error that names it, as when the bootstrap finds it by itself. Does not block. Does
    /// nothing unless a bootstrap can.
    fn report_loss(&self, loss: &Loss) {
        let _ = loss;
    }
    /// How long each call may wait.
    fn timeout(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// What must be equal on all ranks: the version, and that of what ranks say to each other.
fn build() -> String {
    concat!(env!("CARGO_PKG_VERSION"), " (protocol 2)").into()
}

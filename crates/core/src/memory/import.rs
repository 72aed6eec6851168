//! Peers' memory, mapped here.
//!
//! Invariant: an allocation of a peer is mapped at most once as long as somebody uses the mapping;
//! all ranges of it share that mapping. Allocation numbers are unique within the exporting process,
//! so a number never comes to mean other memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use mscclrs_gpu::{Device, ExportedHandle, HandleKind, Mapping};

use super::export::Offered;
use super::retired::{Held, Retired};
use crate::communicator::Peer;
use crate::{Error, FdTicket, Result};

/// How long a peer may take to hand over a descriptor that it offers.
const FETCH_LIMIT: Duration = Duration::from_secs(30);

/// A range of a peer's memory, mapped here as long as this lives.
#[derive(Clone)]
pub(crate) struct Import {
    mapping: Arc<Held<Mapping>>,
    offset: u64,
    bytes: u64,
}

impl Import {
    pub(crate) fn address(&self) -> u64 {
        self.mapping.address() + self.offset
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    peer: u32,
    kind: HandleKind,
    allocation: u64,
}

/// The mappings that are in use.
pub(crate) struct Imports {
    device: Device,
    retired: Arc<Retired>,
    cache: Mutex<HashMap<Key, Weak<Held<Mapping>>>>,
}

impl Imports {
    pub(crate) fn new(device: &Device, retired: &Arc<Retired>) -> Self {
        Imports { device: device.clone(), retired: retired.clone(), cache: Mutex::default() }
    }

    /// Maps what a peer offers. May wait for the device if the allocation is not mapped yet.
    pub(crate) fn import(&self, me: &Peer, peer: &Peer, offered: &Offered) -> Result<Import> {
        let handle = &offered.handle;
        let unreachable = |why: String| Error::Unreachable { rank: me.rank, peer: peer.rank, why };
        if handle.kind != HandleKind::Fabric && me.host != peer.host {
            return Err(unreachable(format!(
                "{:?} handles work on one host only and the ranks are on two",
                handle.kind
            )));
        }
        if me.host == peer.host && !self.device.can_reach(&handle.device_uuid) {
            return Err(unreachable(format!(
                "{:?} has no path to that device (peer access)",
                self.device
            )));
        }
        let key = Key { peer: peer.rank, kind: handle.kind, allocation: handle.allocation };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = cache.get(&key).and_then(Weak::upgrade);
        let mapping = match cached {
            Some(mapping) if mapping.bytes() >= handle.allocation_bytes => mapping,
            _ => {
                let deadline = Instant::now() + FETCH_LIMIT;
                let fetch = |ticket: &FdTicket| ticket.fetch(deadline);
                let fd = offered.ticket.as_ref().map(fetch).transpose()?;
                let whole =
                    ExportedHandle { offset: 0, bytes: handle.allocation_bytes, ..handle.clone() };
                let mapping = self.device.import(&whole, fd)?;
                mscclrs_log::debug!(
                    MEMORY,
                    peer = peer.rank,
                    handle = ?handle.kind,
                    bytes = mapping.bytes(),
                    address = format_args!("{:#x}", mapping.address()),
                    "a peer's memory is mapped"
                );
                let mapping = Arc::new(Held::new(&self.retired, mapping));
                cache.retain(|_, mapping| mapping.strong_count() > 0);
                cache.insert(key, Arc::downgrade(&mapping));
                mapping
            }
        };
        Ok(Import { mapping, offset: handle.offset, bytes: handle.bytes })
    }
}

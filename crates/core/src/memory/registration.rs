//! Memory registered on every rank.

use std::sync::{Arc, Weak};

use mscclrs_gpu::Buffer;

use super::import::Import;
use super::retired::Held;

/// Memory that was registered on every rank. Clones are the same registration.
///
/// The last clone's drop deregisters, locally and without waiting: this rank lets go of its own
/// buffer and of its mappings of the peers' once the communicator's kernels have ended. Peers may
/// still hold theirs; who frees memory that peers can map has to know, as in any collective program,
/// that they are done with it.
#[derive(Clone)]
pub struct Registration {
    inner: Arc<Registered>,
}

/// A registration that does not keep it: gone when the last [`Registration`] is dropped.
#[derive(Clone, Debug)]
pub struct WeakRegistration {
    inner: Weak<Registered>,
}

impl WeakRegistration {
    /// The registration, unless it is gone.
    pub fn upgrade(&self) -> Option<Registration> {
        self.inner.upgrade().map(|inner| Registration { inner })
    }
}

pub(crate) struct Registered {
    pub(crate) id: u64,
    pub(crate) memory: Held<Buffer>,
    /// By rank, none for this one; `None` where some rank could not map some other's.
    pub(crate) peers: Option<Vec<Option<Import>>>,
    /// Why it is not mapped, where this rank knows.
    pub(crate) why: Option<String>,
}

impl Registration {
    pub(crate) fn new(registered: Registered) -> Self {
        Registration { inner: Arc::new(registered) }
    }

    /// Names the registration without keeping it.
    pub fn downgrade(&self) -> WeakRegistration {
        WeakRegistration { inner: Arc::downgrade(&self.inner) }
    }

    /// Equal on every rank; counts registrations.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Whether every rank can map every rank's memory: zero copy is possible. Equal on every rank.
    pub fn is_mapped(&self) -> bool {
        self.inner.peers.is_some()
    }

    /// Why it is not mapped, for people.
    pub fn why_not_mapped(&self) -> Option<&str> {
        self.inner.why.as_deref()
    }

    /// This rank's memory.
    pub fn local(&self) -> u64 {
        self.inner.memory.address()
    }

    /// A rank's memory, mapped here; panics if not `is_mapped` or if there is no such rank.
    pub fn of(&self, rank: u32) -> u64 {
        let peers = self.inner.peers.as_ref();
        let peers = peers.expect("the registration is not mapped: ask is_mapped first");
        peers[rank as usize].as_ref().map_or_else(|| self.local(), Import::address)
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.memory.bytes()
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration")
            .field("id", &self.id())
            .field("bytes", &self.bytes())
            .field("mapped", &self.is_mapped())
            .finish()
    }
}

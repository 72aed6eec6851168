//! Registered memory, found by address.
//!
//! Invariant: a registration that is found is alive: its memory is mapped on every rank. Memory that was
//! registered stays so until it is deregistered. Memory that was allocated here is its owner's: the
//! registry only knows of it, and it is gone from here when its owner drops it, so that memory which is
//! allocated at the same address later is never taken for it.

use mscclrs_core::{Registration, WeakRegistration};

/// The registrations of a communicator, sorted by address.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Vec<Entry>,
}

struct Entry {
    id: u64,
    start: u64,
    bytes: u64,
    hold: Hold,
}

enum Hold {
    /// Until it is deregistered.
    Kept(Registration),
    /// As long as its owner has it.
    Known(WeakRegistration),
}

impl Entry {
    fn registration(&self) -> Option<Registration> {
        match &self.hold {
            Hold::Kept(registration) => Some(registration.clone()),
            Hold::Known(registration) => registration.upgrade(),
        }
    }
}

impl Registry {
    /// Keeps the registration until it is removed.
    pub(crate) fn keep(&mut self, registration: Registration) {
        let (id, start, bytes) = (registration.id(), registration.local(), registration.bytes());
        self.add(Entry { id, start, bytes, hold: Hold::Kept(registration) });
    }

    /// Knows of the registration as long as somebody else keeps it.
    pub(crate) fn know(&mut self, registration: &Registration) {
        let (id, start, bytes) = (registration.id(), registration.local(), registration.bytes());
        self.add(Entry { id, start, bytes, hold: Hold::Known(registration.downgrade()) });
    }

    fn add(&mut self, entry: Entry) {
        self.entries.retain(|entry| entry.registration().is_some());
        let at = self.entries.partition_point(|other| other.start < entry.start);
        self.entries.insert(at, entry);
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.entries.retain(|entry| entry.id != id);
    }

    /// The mapped registration that holds a range, and where in it the range begins.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Option<(Registration, u64)> {
        // Registrations may overlap: walk back from the last that begins at or before the address.
        let end = self.entries.partition_point(|entry| entry.start <= address);
        self.entries[..end].iter().rev().find_map(|entry| {
            let offset = address - entry.start;
            let fits = offset.checked_add(bytes).is_some_and(|end| end <= entry.bytes);
            let registration = if fits { entry.registration()? } else { return None };
            registration.is_mapped().then_some((registration, offset))
        })
    }
}

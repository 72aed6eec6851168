//! Registered memory, found by address.

use mscclrs_core::Registration;

/// The registrations of a communicator, sorted by address.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Vec<Registration>,
}

impl Registry {
    pub(crate) fn add(&mut self, registration: Registration) {
        let at = self.entries.partition_point(|r| r.local() < registration.local());
        self.entries.insert(at, registration);
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.entries.retain(|r| r.id() != id);
    }

    /// The mapped registration that holds a range, and where in it the range begins.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Option<(&Registration, u64)> {
        // Registrations may overlap: walk back from the last that begins at or before the address.
        let end = self.entries.partition_point(|r| r.local() <= address);
        self.entries[..end].iter().rev().find_map(|r| {
            let offset = address - r.local();
            let fits = offset.checked_add(bytes).is_some_and(|end| end <= r.bytes());
            (fits && r.is_mapped()).then_some((r, offset))
        })
    }
}

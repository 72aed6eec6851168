//! Memory of the same size on every rank.

use mscclrs_gpu::Buffer;

use super::registration::Registration;

/// A buffer of the same size on every rank, registered. It lies in memory that peers can map.
///
/// Dropping the last clone gives it back, as dropping a [`Registration`] does: on this rank, without
/// waiting and without asking the others. The memory is freed when the communicator's kernels have ended,
/// no graph that captured a call on it is left, and no clone of [`buffer`](Self::buffer) is either; a peer's
/// mapping of it lives until the peer drops its own. Getting it was collective, so giving it back has an
/// order too: every rank drops it at the same place among its calls, after the last one that uses it.
#[must_use = "the memory is given back when this is dropped"]
#[derive(Clone, Debug)]
pub struct SymmetricBuffer {
    buffer: Buffer,
    registration: Registration,
}

impl SymmetricBuffer {
    pub(crate) fn new(buffer: Buffer, registration: Registration) -> Self {
        SymmetricBuffer { buffer, registration }
    }

    /// This rank's memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Its registration.
    pub fn registration(&self) -> &Registration {
        &self.registration
    }
}

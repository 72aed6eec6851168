//! Memory of the same size on every rank.

use mscclrs_gpu::Buffer;

use super::registration::Registration;

/// A buffer of the same size on every rank, registered. It lies in memory that peers can map; freed
/// as its registration is.
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

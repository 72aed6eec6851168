//! Memory that ranks share.

use mscclrs_gpu::Buffer;

/// Scratch of one owner on every rank, with its own epochs.
#[derive(Clone)]
pub struct Region {}

#[allow(unused_variables, missing_docs)]
impl Region {
    /// This rank's scratch.
    pub fn local(&self) -> u64 {
        todo!()
    }
    /// A rank's scratch, mapped here; this rank's own for its own rank.
    pub fn of(&self, rank: u32) -> u64 {
        todo!()
    }
    pub fn bytes(&self) -> u64 {
        todo!()
    }
    /// This rank's epoch words, `MAX_BLOCKS` of 8 bytes, all `EPOCH_START` at first.
    pub fn epochs(&self) -> u64 {
        todo!()
    }
}

/// Memory that was registered on every rank.
#[derive(Clone)]
pub struct Registration {}

#[allow(unused_variables, missing_docs)]
impl Registration {
    /// Equal on every rank; counts registrations.
    pub fn id(&self) -> u64 {
        todo!()
    }
    /// Whether every rank can map every rank's memory: zero copy is possible.
    pub fn is_mapped(&self) -> bool {
        todo!()
    }
    pub fn local(&self) -> u64 {
        todo!()
    }
    /// A rank's memory, mapped here; panics if not `is_mapped`.
    pub fn of(&self, rank: u32) -> u64 {
        todo!()
    }
    pub fn bytes(&self) -> u64 {
        todo!()
    }
}

/// A buffer of the same size on every rank, registered.
pub struct SymmetricBuffer {}

#[allow(unused_variables, missing_docs)]
impl SymmetricBuffer {
    pub fn buffer(&self) -> &Buffer {
        todo!()
    }
    pub fn registration(&self) -> &Registration {
        todo!()
    }
}

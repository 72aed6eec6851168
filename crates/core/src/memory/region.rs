//! Scratch.
//!
//! Invariant: one allocation a call of `create_regions`, cut into regions that do not overlap; each
//! begins at a multiple of [`REGION_ALIGN`] and has [`MAX_BLOCKS`] epoch words of its own before its
//! scratch. The layout follows from the sizes alone, which are equal on all ranks, so a region lies
//! at the same offset everywhere.

use std::sync::Arc;

use mscclrs_device::MAX_BLOCKS;
use mscclrs_gpu::Buffer;

use super::import::Import;
use super::retired::Held;
use crate::{Error, Result};

/// Every region and its epochs begin at a multiple of this.
const REGION_ALIGN: u64 = 256;

/// Bytes of a region's epoch words.
const EPOCH_BYTES: u64 = MAX_BLOCKS as u64 * 8;

/// Where regions of these sizes begin (their epochs; the scratch follows), and the bytes of all.
pub(crate) fn layout(bytes: &[u64]) -> Result<(Vec<u64>, u64)> {
    let mut starts = Vec::with_capacity(bytes.len());
    let mut end = 0u64;
    for (index, &size) in bytes.iter().enumerate() {
        starts.push(end);
        end = size
            .checked_next_multiple_of(REGION_ALIGN)
            .and_then(|size| size.checked_add(EPOCH_BYTES))
            .and_then(|size| size.checked_add(end))
            .ok_or_else(|| Error::Invalid {
                what: "region sizes",
                value: format!("bytes[{index}] = {size}"),
                allowed: "all regions together have to fit in 64 bits".into(),
            })?;
    }
    Ok((starts, end))
}

/// The allocation that regions are cut from, and the peers' ones.
pub(crate) struct Arena {
    pub(crate) memory: Held<Buffer>,
    /// By rank; none for this rank.
    pub(crate) peers: Vec<Option<Import>>,
}

impl Arena {
    fn base(&self, rank: u32) -> u64 {
        match &self.peers[rank as usize] {
            Some(import) => import.address(),
            None => self.memory.address(),
        }
    }
}

/// Scratch of one owner on every rank, with its own epochs. Clones are the same region; the memory
/// is freed when all regions of the call that made it are dropped and the communicator's kernels
/// have ended. Dropping is local: peers may go on using their mappings.
#[derive(Clone)]
pub struct Region {
    arena: Arc<Arena>,
    start: u64,
    bytes: u64,
}

impl Region {
    pub(crate) fn new(arena: &Arc<Arena>, start: u64, bytes: u64) -> Self {
        Region { arena: arena.clone(), start, bytes }
    }

    /// This rank's scratch; a multiple of 256.
    pub fn local(&self) -> u64 {
        self.arena.memory.address() + self.start + EPOCH_BYTES
    }

    /// A rank's scratch, mapped here; this rank's own for its own rank. Panics if there is no such
    /// rank.
    pub fn of(&self, rank: u32) -> u64 {
        self.arena.base(rank) + self.start + EPOCH_BYTES
    }

    /// Bytes of scratch, as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// This rank's epoch words, `MAX_BLOCKS` of 8 bytes, all `EPOCH_START` at first.
    pub fn epochs(&self) -> u64 {
        self.arena.memory.address() + self.start
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({:#x}, {} bytes)", self.local(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap_and_begin_aligned() {
        let sizes = [0, 1, 255, 256, 257, 4096, 3];
        let (starts, end) = layout(&sizes).unwrap();
        for (i, &start) in starts.iter().enumerate() {
            assert_eq!(start % REGION_ALIGN, 0);
            let next = starts.get(i + 1).copied().unwrap_or(end);
            assert!(start + EPOCH_BYTES + sizes[i] <= next);
        }
    }

    #[test]
    fn sizes_beyond_64_bits_are_an_error() {
        for sizes in [&[u64::MAX][..], &[u64::MAX - 255], &[1 << 63, 1 << 63]] {
            assert!(matches!(layout(sizes), Err(Error::Invalid { .. })), "{sizes:?}");
        }
    }
}

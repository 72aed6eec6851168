//! What the ranks tell each other once, so that all choose alike ever after.

use std::hash::{DefaultHasher, Hash, Hasher};

use mscclrs_core::Communicator;
use mscclrs_gpu::BackendKind;

use crate::{Error, Result, Shape, Tuning};

/// What every rank can do: the least of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Blocks of any kernel that are resident at once, for each of the ranks that share a device.
    pub(crate) blocks: u32,
    /// Most lanes a block.
    pub(crate) threads: u32,
    /// Whether the ranks run on the CPU device.
    pub(crate) cpu: bool,
}

/// Collective. `resident`: blocks of any kernel that this rank's device holds at once.
pub(crate) fn agree(communicator: &Communicator, resident: u32) -> Result<Agreed> {
    let device = communicator.device();
    let limits = device.limits();
    let threads = limits.threads_per_block;
    let mut message = Vec::with_capacity(24);
    message.extend_from_slice(&resident.to_le_bytes());
    message.extend_from_slice(&threads.to_le_bytes());
    message.extend_from_slice(&device.uuid());
    let all = communicator.bootstrap().all_gather(&message)?;
    let word = |m: &[u8], at: usize| {
        m.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(1, u32::from_le_bytes)
    };
    let sharing = |m: &[u8]| all.iter().filter(|o| o.get(8..) == m.get(8..)).count() as u32;
    let blocks = all.iter().map(|m| word(m, 0) / sharing(m)).min().unwrap_or(1).max(1);
    let threads = all.iter().map(|m| word(m, 4)).min().unwrap_or(1).max(1);
    Ok(Agreed { blocks, threads, cpu: device.kind() == BackendKind::Cpu })
}

/// An error on every rank if the ranks' tables differ.
pub(crate) fn same_tuning(communicator: &Communicator, tuning: &Tuning) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    tuning.hash(&mut hasher);
    let all = communicator.bootstrap().all_gather(&hasher.finish().to_le_bytes())?;
    match all.iter().position(|hash| *hash != all[0]) {
        Some(rank) => Err(Error::TuningDiffers { rank: rank as u32 }),
        None => Ok(()),
    }
}

impl Agreed {
    /// A shape cut down to what every rank holds.
    pub(crate) fn fit(&self, shape: Shape) -> Shape {
        Shape {
            blocks: shape.blocks.min(self.blocks).clamp(1, mscclrs_device::MAX_BLOCKS),
            threads: shape.threads.min(self.threads).max(1),
        }
    }
}

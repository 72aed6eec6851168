//! What the ranks tell each other once, so that all choose alike ever after.

use std::hash::{DefaultHasher, Hash, Hasher};

use mscclrs_core::Communicator;
use mscclrs_gpu::BackendKind;

use crate::kernels::Kernels;
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

/// Collective: the ranks tell each other whether they could prepare and how many blocks of any
/// of them their devices hold. An error on every rank if one rank failed.
pub(crate) fn agree(
    communicator: &Communicator,
    kernels: Result<Kernels>,
) -> Result<(Kernels, Agreed)> {
    let device = communicator.device();
    let (resident, why) = match &kernels {
        Ok(kernels) => (kernels.resident, String::new()),
        Err(error) => (0, error.to_string()),
    };
    let threads = device.limits().threads_per_block;
    let mut message = Vec::with_capacity(24 + why.len());
    message.extend_from_slice(&resident.to_le_bytes());
    message.extend_from_slice(&threads.to_le_bytes());
    message.extend_from_slice(&device.uuid());
    message.extend_from_slice(why.as_bytes());
    let all = communicator.bootstrap().all_gather(&message)?;
    let kernels = kernels?;
    let word = |m: &[u8], at: usize| {
        m.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
    };
    let uuid = |m: &[u8]| m.get(8..24).map(<[u8]>::to_vec);
    let (mut blocks, mut threads) = (u32::MAX, u32::MAX);
    for (rank, message) in (0..).zip(&all) {
        if let Some(why) = message.get(24..).filter(|why| !why.is_empty()) {
            let why = String::from_utf8_lossy(why).into_owned();
            return Err(Error::Peer { rank, why });
        }
        let resident = word(message, 0);
        let sharing = all.iter().filter(|other| uuid(other) == uuid(message)).count() as u32;
        if resident / sharing == 0 {
            return Err(Error::Crowded { rank, resident, sharing });
        }
        blocks = blocks.min(resident / sharing);
        threads = threads.min(word(message, 4));
    }
    Ok((kernels, Agreed { blocks, threads, cpu: device.kind() == BackendKind::Cpu }))
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

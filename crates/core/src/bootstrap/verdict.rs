//! Why ranks could not be brought together.

use std::fmt;

use super::join::{MAX_BUILD, MAX_WHY};
use super::root::MAX_RANKS;
use super::wire::{Damaged, Reader, Writer};

/// Why the ranks could not be brought together. Every rank that reached the rendezvous gets the
/// same one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Two ranks run different builds, whose messages and kernels need not fit together.
    BuildMismatch {
        /// The rank that came later.
        rank: u32,
        /// Its build.
        build: String,
        /// The build of the rendezvous.
        expected: String,
    },
    /// Two processes claim one rank.
    DuplicateRank {
        /// The rank.
        rank: u32,
    },
    /// Ranks did not come before the deadline.
    MissingRanks {
        /// Those that did not come.
        ranks: Vec<u32>,
        /// Number of ranks.
        world_size: u32,
        /// Milliseconds that the rendezvous waited.
        waited_ms: u64,
        /// Connections that did not prove the secret.
        refused: u32,
    },
    /// A rank ended while the others were still awaited.
    RankLost {
        /// The rank.
        rank: u32,
    },
    /// A rank number that is not below the number of ranks.
    RankOutOfRange {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        world_size: u32,
    },
    /// Two ranks could not be connected.
    Unconnected {
        /// The rank that found it.
        rank: u32,
        /// The rank that it could not be connected with.
        peer: u32,
        /// What it met.
        why: String,
    },
    /// Ranks have different numbers of ranks.
    WorldSizeMismatch {
        /// The rank that differs.
        rank: u32,
        /// The number it was given.
        world_size: u32,
        /// The number of the rendezvous.
        expected: u32,
    },
}

impl RendezvousError {
    pub(super) fn encode(&self, writer: Writer) -> Writer {
        match self {
            RendezvousError::BuildMismatch { rank, build, expected } => {
                writer.u8(1).u32(*rank).text(build, MAX_BUILD).text(expected, MAX_BUILD)
            }
            RendezvousError::DuplicateRank { rank } => writer.u8(2).u32(*rank),
            RendezvousError::MissingRanks { ranks, world_size, waited_ms, refused } => {
                let head = writer.u8(3).u32(*world_size).u64(*waited_ms).u32(*refused);
                ranks.iter().fold(head.u32(ranks.len() as u32), |writer, rank| writer.u32(*rank))
            }
            RendezvousError::RankLost { rank } => writer.u8(4).u32(*rank),
            RendezvousError::RankOutOfRange { rank, world_size } => {
                writer.u8(5).u32(*rank).u32(*world_size)
            }
            RendezvousError::WorldSizeMismatch { rank, world_size, expected } => {
                writer.u8(6).u32(*rank).u32(*world_size).u32(*expected)
            }
            RendezvousError::Unconnected { rank, peer, why } => {
                writer.u8(7).u32(*rank).u32(*peer).text(why, MAX_WHY)
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<RendezvousError, Damaged> {
        Ok(match reader.u8()? {
            1 => RendezvousError::BuildMismatch {
                rank: reader.u32()?,
                build: reader.text(MAX_BUILD)?,
                expected: reader.text(MAX_BUILD)?,
            },
            2 => RendezvousError::DuplicateRank { rank: reader.u32()? },
            3 => {
                let (world_size, waited_ms, refused) =
                    (reader.u32()?, reader.u64()?, reader.u32()?);
                let count = reader.u32()?;
                if count > MAX_RANKS {
                    return Err(Damaged);
                }
                let ranks = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
                RendezvousError::MissingRanks { ranks, world_size, waited_ms, refused }
            }
            4 => RendezvousError::RankLost { rank: reader.u32()? },
            5 => RendezvousError::RankOutOfRange { rank: reader.u32()?, world_size: reader.u32()? },
            6 => RendezvousError::WorldSizeMismatch {
                rank: reader.u32()?,
                world_size: reader.u32()?,
                expected: reader.u32()?,
            },
            7 => RendezvousError::Unconnected {
                rank: reader.u32()?,
                peer: reader.u32()?,
                why: reader.text(MAX_WHY)?,
            },
            _ => return Err(Damaged),
        })
    }
}

impl std::error::Error for RendezvousError {}

/// The first of many ranks.
pub(super) fn listed(ranks: &[u32]) -> String {
    let shown: Vec<String> = ranks.iter().take(32).map(u32::to_string).collect();
    let more = if ranks.len() > 32 { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

impl fmt::Display for RendezvousError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RendezvousError::BuildMismatch { rank, build, expected } => write!(
                f,
                "rank {rank} runs mscclrs {build}, the rendezvous {expected}; run one build everywhere"
            ),
            RendezvousError::DuplicateRank { rank } => {
                write!(f, "two processes claim rank {rank}; give each its own")
            }
            RendezvousError::MissingRanks { ranks, world_size, waited_ms, refused } => {
                write!(
                    f,
                    "{} of {world_size} ranks did not come within {:.1} s: {}",
                    ranks.len(),
                    *waited_ms as f64 / 1e3,
                    listed(ranks)
                )?;
                if *refused > 0 {
                    write!(
                        f,
                        "; {refused} {} refused, whose secret differs: give every rank the same \
                         MSCCLRS_SECRET or unique id",
                        if *refused == 1 { "connection was" } else { "connections were" }
                    )?;
                }
                Ok(())
            }
            RendezvousError::RankLost { rank } => {
                write!(f, "rank {rank} ended before all ranks had come together")
            }
            RendezvousError::RankOutOfRange { rank, world_size } => write!(
                f,
                "there is no rank {rank} among {world_size} ranks (0 to {})",
                world_size.saturating_sub(1)
            ),
            RendezvousError::Unconnected { rank, peer, why } => write!(
                f,
                "rank {rank} cannot be connected with rank {peer}: {why}; can the two hosts reach each \
                 other at any port?"
            ),
            RendezvousError::WorldSizeMismatch { rank, world_size, expected } => write!(
                f,
                "rank {rank} was told that there are {world_size} ranks, the rendezvous {expected}; \
                 give every rank the same number"
            ),
        }
    }
}

//! Why ranks could not be brought together.

use std::fmt;

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

impl std::error::Error for RendezvousError {}

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
                let shown: Vec<String> = ranks.iter().take(32).map(u32::to_string).collect();
                let more = if ranks.len() > 32 { ", ..." } else { "" };
                write!(
                    f,
                    "{} of {world_size} ranks did not come within {:.1} s: {}{more}",
                    ranks.len(),
                    *waited_ms as f64 / 1e3,
                    shown.join(", ")
                )?;
                if *refused > 0 {
                    write!(f, " ({refused} connections did not prove the secret)")?;
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
            RendezvousError::WorldSizeMismatch { rank, world_size, expected } => write!(
                f,
                "rank {rank} was told that there are {world_size} ranks, the rendezvous {expected}; \
                 give every rank the same number"
            ),
        }
    }
}

//! What can go wrong between ranks.

use std::io;
use std::time::Duration;

use crate::bootstrap::RendezvousError;

/// The result of a call that involves other ranks.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A peer did not answer within the time limit of the bootstrap.
    #[error(
        "rank {rank} waited {:.1} s in {operation} for rank {peer}; is rank {peer} alive, and in the \
         same call?", waited.as_secs_f64()
    )]
    Deadline {
        /// The call that waited.
        operation: String,
        /// The rank that waited.
        rank: u32,
        /// The rank it waited for.
        peer: u32,
        /// How long it waited.
        waited: Duration,
    },
    /// A device call failed.
    #[error(transparent)]
    Gpu(#[from] mscclrs_gpu::Error),
    /// The system refused something.
    #[error("{operation}: {source}")]
    Io {
        /// What was tried.
        operation: String,
        /// What the system said.
        source: io::Error,
    },
    /// A rank number that the group does not have.
    #[error("{operation}: there is no rank {rank} among {world_size} ranks (0 to {})", world_size.saturating_sub(1))]
    NoSuchRank {
        /// The call.
        operation: String,
        /// The number given.
        rank: u32,
        /// Number of ranks.
        world_size: u32,
    },
    /// A peer left the group, or ended, while this rank waited for it.
    #[error("rank {rank}, in {operation}: rank {peer} is gone ({why})")]
    PeerGone {
        /// The call.
        operation: String,
        /// This rank.
        rank: u32,
        /// The rank that is gone.
        peer: u32,
        /// How that was seen.
        why: String,
    },
    /// A peer sent what this call cannot use: ranks disagree about what they do.
    #[error("rank {rank}, in {operation}: rank {peer} {why}")]
    Protocol {
        /// The call.
        operation: String,
        /// This rank.
        rank: u32,
        /// The peer.
        peer: u32,
        /// What is wrong, as a predicate of the peer.
        why: String,
    },
    /// The ranks could not be brought together; every rank has this same error.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}

impl Error {
    pub(crate) fn io(operation: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::Io { operation: operation.into(), source: source.into() }
    }
}

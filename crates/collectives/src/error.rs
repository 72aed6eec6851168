//! What can go wrong in a collective.

use mscclrs_device::DataType;

/// The result of a collective call.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in a collective.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address does not suit the element type.
    #[error(
        "{what} {address:#x} is not a multiple of {size}, the size of {}; elements must be aligned",
        data_type.name()
    )]
    Alignment {
        /// Input or output.
        what: &'static str,
        /// The address.
        address: u64,
        /// Bytes an element.
        size: u32,
        /// The type.
        data_type: DataType,
    },
    /// Another thread is in a call on the same communicator.
    #[error(
        "two threads are in a collective of one communicator at once; use it from one thread at a time"
    )]
    Busy,
    /// Set-up or another rank failed.
    #[error(transparent)]
    Core(#[from] mscclrs_core::Error),
    /// More ranks share a device than it can run blocks of.
    #[error(
        "rank {rank}: {sharing} ranks share a device that holds {resident} blocks of a collective at once; every rank needs at least one, so use fewer ranks a device"
    )]
    Crowded {
        /// A rank on that device.
        rank: u32,
        /// Blocks that the device holds.
        resident: u32,
        /// Ranks that share it.
        sharing: u32,
    },
    /// A device call failed.
    #[error(transparent)]
    Gpu(#[from] mscclrs_gpu::Error),
    /// Another rank could not prepare its collectives.
    #[error("rank {rank} could not prepare its collectives: {why}")]
    Peer {
        /// Which rank.
        rank: u32,
        /// Its error.
        why: String,
    },
    /// A buffer is too short for the call.
    #[error("the {what} has {have} bytes, but {need} are needed ({count} elements of {})", data_type.name())]
    Short {
        /// Input or output.
        what: &'static str,
        /// Bytes it has.
        have: u64,
        /// Bytes needed.
        need: u64,
        /// Elements.
        count: u64,
        /// The type.
        data_type: DataType,
    },
    /// More than one call can move.
    #[error("{bytes} bytes a rank are more than one call can move; at most {most}")]
    TooLong {
        /// Bytes asked for.
        bytes: u64,
        /// Most bytes.
        most: u64,
    },
    /// Ranks came with different tuning tables.
    #[error(
        "rank {rank} uses another tuning table than rank 0; all ranks need the same, since the table chooses the algorithm"
    )]
    TuningDiffers {
        /// The first rank that differs.
        rank: u32,
    },
    /// A rule of a tuning table cannot be followed.
    #[error("tuning table, rule {index} of {collective}: {why}")]
    TuningRule {
        /// allreduce or allgather.
        collective: &'static str,
        /// Which rule.
        index: usize,
        /// What is wrong.
        why: String,
    },
}

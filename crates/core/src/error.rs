//! What can go wrong between ranks.

use std::io;
use std::time::Duration;

use crate::Loss;
use crate::bootstrap::RendezvousError;
use crate::{EarlyWait, LostRank};

/// The result of a call that involves other ranks.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address or unique id that cannot be read.
    #[error("\"{text}\" is no {what}: {why}; {allowed}")]
    Address {
        /// What was given; never a secret.
        text: String,
        /// What it should have been.
        what: &'static str,
        /// What is wrong with it.
        why: String,
        /// What is allowed.
        allowed: &'static str,
    },
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
    /// An environment variable has a value that is not allowed.
    #[error("{name}={value}: {allowed}")]
    Environment {
        /// The variable, by the name it was found under.
        name: String,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// An environment variable is missing beside others that need it.
    #[error("{name} is not set, but {because} needs it; {allowed}")]
    EnvironmentMissing {
        /// The variable.
        name: String,
        /// The one that needs it.
        because: String,
        /// What is allowed.
        allowed: String,
    },
    /// A file descriptor could not be fetched from the process that offers it.
    #[error("cannot fetch a file descriptor: {why}")]
    Fetch {
        /// Why.
        why: String,
    },
    /// A device call failed.
    #[error(transparent)]
    Gpu(#[from] mscclrs_gpu::Error),
    /// The system refused something.
    #[error("{operation}: {source}{}", mscclrs_gpu::limit_hint(source))]
    Io {
        /// What was tried.
        operation: String,
        /// What the system said.
        source: io::Error,
    },
    /// Without a secret only loopback and private addresses are used.
    #[error(
        "{address} is a public address and there is no secret; set MSCCLRS_SECRET to the same text \
         on every rank, or use a unique id"
    )]
    Insecure {
        /// The address.
        address: String,
    },
    /// The file of the log that the environment asks for cannot be opened.
    #[error(transparent)]
    Log(#[from] mscclrs_log::OpenError),
    /// No network interface fits.
    #[error("no network interface with an address fits {filter}; there are: {}", found.join(", "))]
    NoInterface {
        /// What was asked for.
        filter: String,
        /// The interfaces that there are, with their addresses.
        found: Vec<String>,
    },
    /// Nobody served the rendezvous.
    #[error(
        "rank {rank} found no rendezvous at {address} within {:.1} s (last try: {last}); is rank 0 \
         running, and is the address right?", waited.as_secs_f64()
    )]
    NoRendezvous {
        /// This rank.
        rank: u32,
        /// Where it was looked for.
        address: String,
        /// How long.
        waited: Duration,
        /// What the last try met.
        last: String,
    },
    /// A rank of the communicator is lost, which is of no use any more.
    #[error("{0}")]
    Lost(Loss),
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
    /// The other side has another secret.
    #[error(
        "{address} refuses this rank: its secret differs; give every rank the same MSCCLRS_SECRET or unique id"
    )]
    SecretRefused {
        /// Who refused.
        address: String,
    },

    // Of the communicator.
    /// Another thread is using the communicator.
    #[error(
        "the communicator of rank {rank} is in use by another thread; one thread at a time may use it"
    )]
    Busy {
        /// This rank.
        rank: u32,
    },
    /// The ranks of a collective call gave different arguments.
    #[error("{call}: ranks have to agree on {what}, but {values}")]
    Disagreement {
        /// The call.
        call: &'static str,
        /// What differs.
        what: &'static str,
        /// Which ranks gave what.
        values: String,
    },
    /// An argument is outside what is allowed.
    #[error("{what}: {value} is not allowed; {allowed}")]
    Invalid {
        /// What it is.
        what: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A message of another rank, or serialized bytes, are not what they have to be.
    #[error("{what}: {field}: {why}")]
    Malformed {
        /// The message.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The host of the rendezvous is not known.
    #[error(
        "the host of {address}, where rank 0 serves the rendezvous, is not known: {why}; set \
         MASTER_ADDR or MSCCLRS_ADDRESS to a host that every rank can look up"
    )]
    UnknownHost {
        /// The address, with its port.
        address: String,
        /// What the resolver said.
        why: String,
    },
    /// This rank cannot map a peer's memory.
    #[error("rank {rank} cannot reach the memory of rank {peer}: {why}")]
    Unreachable {
        /// This rank.
        rank: u32,
        /// The other.
        peer: u32,
        /// Why, and what to do.
        why: String,
    },
    /// Earlier work cannot be ordered before this call.
    #[error("{what}")]
    Order {
        /// Why, and what to do.
        what: String,
    },
    /// A rank failed in a collective call; every rank gets this error.
    #[error("{call}: rank {rank} failed: {why}")]
    Peer {
        /// The call.
        call: &'static str,
        /// The rank that failed; the lowest, if several did.
        rank: u32,
        /// Its error.
        why: String,
    },
    /// A rank is gone, or it said that it failed; the communicator is of no use any more.
    #[error("{0}")]
    RankLost(Box<LostRank>),
    /// A kernel did not end although its waits were told to.
    #[error(
        "a stream of rank {rank} is still busy {} s after its kernels were told to end: {why}",
        waited.as_secs()
    )]
    Stuck {
        /// This rank.
        rank: u32,
        /// How long it was waited for.
        waited: Duration,
        /// Why the kernels had to end.
        why: String,
    },
    /// A wait of a kernel ended early; the communicator is of no use any more.
    #[error("rank {rank}: {wait}")]
    Wait {
        /// The rank whose kernel waited.
        rank: u32,
        /// The wait.
        wait: Box<EarlyWait>,
    },
}

impl Error {
    pub(crate) fn io(operation: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::Io { operation: operation.into(), source: source.into() }
    }
}

impl From<mscclrs_env::Error> for Error {
    fn from(error: mscclrs_env::Error) -> Self {
        let allowed = format!("allowed is {}", error.allowed);
        Error::Environment { name: error.name.into(), value: error.value, allowed }
    }
}

//! Collective algorithms and the choice between them.
//!
//! Ranks agree before they choose: the choice is one look-up in a table that is equal on every rank, by
//! what is equal on every rank (bytes, type, operation, registration). What one rank alone knows, such
//! as the alignment of its buffers, picks only an inner path of the same protocol.

mod agreement;
mod all_gather;
mod all_reduce;
mod collectives;
mod context;
mod error;
mod kernels;
mod near;
mod registry;
mod tuning;

pub use collectives::{Collectives, Pointer};
pub use error::{Error, Result};
pub use mscclrs_device::{DataType, ReduceOp};
pub use tuning::{AllGather, AllReduce, Rule, Shape, Tuning};

//! Collective algorithms and the choice between them.

mod collectives;
mod error;

pub use collectives::{Collectives, Pointer};
pub use error::{Error, Result};
pub use mscclrs_device::{DataType, ReduceOp};

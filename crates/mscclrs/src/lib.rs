//! GPU kernels that talk to other GPUs directly, and collectives on top.

pub use mscclrs_collectives::{Collectives, DataType, ReduceOp};
pub use mscclrs_core::{Bootstrap, Communicator};
pub use mscclrs_gpu as gpu;

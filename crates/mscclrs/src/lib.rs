//! GPU kernels that talk to other GPUs directly, and collectives on top.
//!
//! A [`Communicator`] joins ranks, each with a [`gpu::Device`]; [`Collectives`] moves and reduces
//! buffers over them; a [`MemoryChannel`] lets a kernel of one's own put, signal and wait. Kernels are
//! written with [`device`] and run on GPUs and on the CPU device.

pub use mscclrs_collectives::{
    AllGather, AllReduce, Collectives, DataType, ReduceOp, Rule, Shape, Tuning,
};
pub use mscclrs_core::*;
pub use mscclrs_device as device;
pub use mscclrs_gpu as gpu;

//! Channels: what kernels move data and signals over.

mod memory;

pub use memory::MemoryChannel;

//! What a device allows.

/// What a device allows; queried, never baked in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Compute capability as a number, e.g. 90; 0 on the CPU device.
    pub sm: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Lanes that are resident on one multiprocessor at once.
    pub threads_per_multiprocessor: u32,
    /// Most lanes a block.
    pub threads_per_block: u32,
    /// Lanes a warp.
    pub warp: u32,
    /// Shared memory a block can ask for, in bytes.
    pub shared_bytes_per_block: u32,
}

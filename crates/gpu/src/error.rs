//! What can go wrong with a device.

use std::io;

use crate::limit_hint;

/// The result of a call on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A native call failed.
    #[error("{call} failed: {code} ({name}){hint}")]
    Call {
        /// The call, e.g. `cuMemCreate`.
        call: &'static str,
        /// The library's code.
        code: i64,
        /// The library's name of the code.
        name: String,
        /// What to do, beginning with "; ", or empty.
        hint: String,
    },
    /// The kernel's code in the device module has other parameters than this program gives it.
    #[error(
        "kernel {kernel} in device module {module} was compiled with other parameters (layout {found:#x}, this program has {expected:#x}); rebuild the module with `cargo xtask ptx` (or `mscclrs kernel build` for a crate of your own)"
    )]
    KernelLayout {
        /// The kernel.
        kernel: &'static str,
        /// The module.
        module: &'static str,
        /// This program's hash.
        expected: u64,
        /// The module's hash.
        found: u64,
    },
    /// A launch would need more blocks at once than the device holds.
    #[error(
        "kernel {kernel}: {blocks} blocks of {threads} threads with {shared_bytes} bytes of shared memory have to be resident at once, but this device holds {resident}; use fewer blocks or threads"
    )]
    NotResident {
        /// The kernel.
        kernel: &'static str,
        /// Blocks asked for.
        blocks: u32,
        /// Threads a block.
        threads: u32,
        /// Shared memory a block.
        shared_bytes: u32,
        /// What fits.
        resident: u32,
    },
    /// An environment variable has a value that is not allowed.
    #[error(transparent)]
    Environment(#[from] mscclrs_env::Error),
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
    /// A device module could not be used.
    #[error("device module {module}: {why}")]
    Module {
        /// The module.
        module: &'static str,
        /// What is wrong and what to do.
        why: String,
    },
    /// No device of that kind.
    #[error("no {backend} device {ordinal}: {why}")]
    NoDevice {
        /// CUDA or CPU.
        backend: &'static str,
        /// The number asked for.
        ordinal: u32,
        /// Why, and what to do.
        why: String,
    },
    /// Memory ran out.
    #[error("{bytes} bytes of {kind} could not be allocated: {why}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// Kind of memory.
        kind: &'static str,
        /// The limit that was met.
        why: String,
    },
    /// The operating system said no.
    #[error("{call} failed: {source}{}", limit_hint(source))]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// Kernels of the CPU device wait for each other, or a lane panicked.
    #[error("the CPU device stopped: {report}")]
    Stopped {
        /// What each block waits for.
        report: String,
    },
    /// A simulation was asked while it was in the middle of work.
    #[error(transparent)]
    Unanswered(#[from] mscclrs_sim::Unanswered),
    /// The back end, device or memory cannot do this.
    #[error("{what} is not possible here: {why}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Why, and what to do instead.
        why: String,
    },
}

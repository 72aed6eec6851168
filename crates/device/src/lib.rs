//! What device code is made of. One source, two targets: PTX for GPUs and native code for the CPU
//! device.
//!
//! Everything above [`arch`] is plain Rust over it. Device memory is reached only through the typed
//! pointers of [`ptr`], never by references: the compiler may not cache what another GPU writes, and
//! the CPU device can watch each access.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(asm_experimental_arch, stdarch_nvptx, link_llvm_intrinsics),
    allow(internal_features)
)]

#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

pub mod arch;
pub mod atomic;
mod channel;
mod copy;
mod epoch;
mod kernel;
mod number;
mod packet;
pub mod ptr;
mod reduce;
mod semaphore;
mod sync;
mod unit;
mod wait;

pub use arch::{
    ballot, block_any, block_dim, block_idx, block_sync, fence, global_timer_ns, grid_dim, lane,
    shuffle_xor, thread_idx, warp_sync,
};
pub use atomic::{AcqRel, Acquire, Cta, Gpu, OrderKind, Relaxed, Release, ScopeKind, Sys};
pub use channel::MemoryChannel;
pub use copy::copy_bytes;
pub use epoch::{
    Begun, EPOCH_START, Epochs, MAX_BLOCKS, clean_lap, epoch_flag, epoch_next, flag_set, flag_wait,
};
#[cfg(not(target_arch = "nvptx64"))]
pub use kernel::{DeviceImage, DeviceModule, Family, ImageFormat, ImageSource, Kernel};
pub use kernel::{KernelArgs, ParamArray, Params, hash_layout};
pub use number::{DataType, ReduceOp};
pub use packet::{Ll8, Ll16, Packet};
pub use ptr::{Global, Word16};
pub use reduce::{Fold, Max, Min, Reduction, Sum, element};
pub use semaphore::Semaphore;
pub use sync::{DeviceSemaphore, DeviceSyncer};
pub use unit::{Access, Aligned, Any, Unit};
pub use wait::{
    Aborted, Control, DeviceResult, Guard, Polled, WaitKind, WaitRecord, Wanted, poll,
    poll_acquire, refuse, wait_until,
};

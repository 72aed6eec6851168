//! What a simulator does for the lane that runs, and what it is told of.

use core::panic::Location;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::atomic::{OrderKind, ScopeKind};

/// Where a lane is in its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coords {
    /// Index in the block.
    pub thread: u32,
    /// Index of the block.
    pub block: u32,
    /// Lanes a block.
    pub block_dim: u32,
    /// Blocks of the grid.
    pub grid_dim: u32,
}

/// The kind of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Atomic load.
    AtomicLoad,
    /// Atomic read-modify-write.
    AtomicRmw,
    /// Atomic store.
    AtomicStore,
    /// Plain load.
    Load,
    /// Plain store.
    Store,
}

/// The bytes that an access moves, from the lowest address on; those past its size are 0.
pub type Bits = [u64; 2];

/// One access to device memory, which goes through the engine when [`WATCHED`](super::WATCHED) is set.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// First byte; of shared memory, its offset in the block's.
    pub address: usize,
    /// Bytes: 1, 2, 4, 8 or 16.
    pub size: u32,
    /// What it does.
    pub op: Op,
    /// Its order; relaxed for plain accesses.
    pub order: OrderKind,
    /// Its scope; block for plain accesses.
    pub scope: ScopeKind,
    /// Source line.
    pub from: &'static Location<'static>,
}

/// One fruitless poll: the lane may sleep until the word at `at` no longer holds `seen`, or until
/// the word at `abort` is not 0, or for a while.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    /// The polled word.
    pub at: *const u64,
    /// What it held.
    pub seen: u64,
    /// The abort word.
    pub abort: *const u32,
    /// What is waited for, for a deadlock report.
    pub what: &'static str,
    /// Source line.
    pub from: &'static Location<'static>,
}

/// Reads memory as it is.
///
/// # Safety
/// The bytes are mapped, and the address is a multiple of the size: 1, 2, 4, 8 or 16.
pub unsafe fn read_raw(address: usize, size: u32) -> Bits {
    // SAFETY: the caller's promise. Volatile: another thread may write meanwhile, as on a GPU.
    unsafe {
        match size {
            1 => [(address as *const u8).read_volatile().into(), 0],
            2 => [(address as *const u16).read_volatile().into(), 0],
            4 => [AtomicU32::from_ptr(address as *mut u32).load(Ordering::Acquire).into(), 0],
            8 => [AtomicU64::from_ptr(address as *mut u64).load(Ordering::Acquire), 0],
            _ => {
                let word = |at| AtomicU64::from_ptr(at as *mut u64).load(Ordering::Acquire);
                [word(address), word(address + 8)]
            }
        }
    }
}

/// Writes memory as it is.
///
/// # Safety
/// As [`read_raw`].
pub unsafe fn write_raw(address: usize, size: u32, [first, second]: Bits) {
    // SAFETY: the caller's promise. Volatile: another thread may read meanwhile, as on a GPU.
    unsafe {
        match size {
            1 => (address as *mut u8).write_volatile(first as u8),
            2 => (address as *mut u16).write_volatile(first as u16),
            4 => AtomicU32::from_ptr(address as *mut u32).store(first as u32, Ordering::Release),
            8 => AtomicU64::from_ptr(address as *mut u64).store(first, Ordering::Release),
            _ => {
                AtomicU64::from_ptr(address as *mut u64).store(first, Ordering::Release);
                AtomicU64::from_ptr((address + 8) as *mut u64).store(second, Ordering::Release);
            }
        }
    }
}

/// What the simulator does for the lane that runs.
pub trait Engine {
    /// Where the lane is.
    fn coords(&self) -> Coords;
    /// Waits for all lanes of the block that have not exited; whether the predicate holds on any.
    fn block_any(&self, predicate: bool, from: &'static Location<'static>) -> bool;
    /// Exchanges `value` among the lanes of `mask` in this warp: gives the value of lane
    /// `lane ^ lane_mask`. All lanes of the mask meet here.
    fn warp_exchange(
        &self,
        mask: u32,
        value: u32,
        lane_mask: u32,
        from: &'static Location<'static>,
    ) -> u32;
    /// Bit i is lane i's predicate; all lanes of the mask meet here.
    fn warp_ballot(&self, mask: u32, predicate: bool, from: &'static Location<'static>) -> u32;
    /// The lanes of the mask meet here, and their memory accesses are ordered.
    fn warp_sync(&self, mask: u32, from: &'static Location<'static>);
    /// Suspends the lane after a fruitless poll; true asks it to look at the abort word and the
    /// clock before it polls again.
    fn spin(&self, spin: Spin) -> bool;
    /// Base of the block's shared memory.
    fn shared(&self) -> *mut u8;
    /// The lane's own clock, where it is not the machine's: nanoseconds.
    fn now(&self) -> Option<u64>;
    /// A wait of the lane ends early, or it learns that one of its rank has: from now on data is missing.
    fn wait_ended_early(&self);

    /// While [`WATCHED`](super::WATCHED): a load of device memory.
    fn load(&self, access: Access) -> Bits;
    /// While [`WATCHED`](super::WATCHED): a store to device memory.
    fn store(&self, access: Access, bits: Bits);
    /// While [`WATCHED`](super::WATCHED): a read-modify-write, which gives the value before. `change` gives the value
    /// to write; `None` writes nothing.
    fn modify(&self, access: Access, change: &dyn Fn(u64) -> Option<u64>) -> u64;
    /// While [`WATCHED`](super::WATCHED): a fence of acquire and release.
    fn fence(&self, scope: ScopeKind);
    /// While [`WATCHED`](super::WATCHED): told of an access to the block's shared memory, before it.
    fn shared_access(&self, access: Access);
}

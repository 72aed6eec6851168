//! Synchronisation inside one GPU.

use crate::arch::{block_any, block_sync, grid_dim, thread_idx};
use crate::atomic::{AcqRel, Acquire, Gpu, Release};
use crate::ptr::Global;
use crate::wait::{Aborted, DeviceResult, Guard, WaitKind, poll};

/// A barrier over the blocks of a grid that are all resident.
///
/// Invariant: the word holds (barriers passed << 32 | blocks arrived at the next). The last block to
/// arrive opens the barrier by counting it, so the word needs no reset between launches, grids or
/// graph replays. If the wait ends early, it does so for all lanes of the block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceSyncer {
    /// The word, in device memory, 0 at first.
    pub count: Global<u64>,
}

impl DeviceSyncer {
    /// Waits for all blocks of the grid; orders their accesses. Every lane calls it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn sync(&self, guard: &Guard) -> DeviceResult {
        block_sync();
        let mut ended = false;
        if thread_idx() == 0 {
            let before = self.count.fetch_add(AcqRel, Gpu, 1);
            let lap = before >> 32;
            if before as u32 + 1 == grid_dim() {
                // All have arrived and none goes on before this store: nobody else writes.
                self.count.store_atomic(Release, Gpu, (lap + 1) << 32);
            } else {
                let (at, kind) = (self.count, WaitKind::GridBarrier);
                let next = (lap + 1) << 32;
                ended = poll(guard, at, next, kind, u32::MAX, |v| v >> 32 != lap).is_err();
                self.count.load_atomic(Acquire, Gpu);
            }
        }
        if block_any(ended) { Err(Aborted) } else { Ok(()) }
    }
}

/// A counting semaphore between the blocks of one GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceSemaphore {
    /// Permits, in device memory.
    pub count: Global<u64>,
}

impl DeviceSemaphore {
    /// Adds a permit: what this lane did before is visible to who takes it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn release(&self) {
        self.count.reduce_add(Release, Gpu, 1);
    }

    /// Waits for a permit and takes it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn acquire(&self, guard: &Guard) -> DeviceResult {
        loop {
            let kind = WaitKind::DeviceSemaphore;
            let seen = poll(guard, self.count, 1, kind, u32::MAX, |seen| seen > 0)?;
            // Who loses the race has seen another block go on.
            if self.count.compare_exchange(Acquire, Gpu, seen, seen - 1) == seen {
                return Ok(());
            }
        }
    }
}

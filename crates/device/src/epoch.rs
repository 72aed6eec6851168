//! Epochs: what tells one call's packets and flags from another's in memory that is used again.
//!
//! Invariant: a region of scratch has [`MAX_BLOCKS`] epoch words in device memory. Every launch on
//! the region, whatever its grid, reads the word of its block and at its end moves *all* words on by
//! one step, each word written by one block only. So all words of all ranks are equal between
//! launches, no count lives on the host, and a captured graph can be replayed for ever.
//!
//! A packet's flag is the low half of the epoch. It is never 0 (fresh memory): [`epoch_next`] skips
//! the two epochs whose low half is 0 and 1, two so that the parity keeps alternating. Flags come
//! again after 2^32 epochs, so a slot that was not written for a whole lap would hold a flag that
//! looks right. Just before the lap ends the kernels therefore clean: see [`Epochs::cleans`].

use crate::arch::{block_dim, block_idx, block_sync, fence, grid_dim, thread_idx};
use crate::atomic::{Release, Sys};
use crate::ptr::Global;
use crate::wait::{DeviceResult, Guard, WaitKind, poll_acquire};

/// Most blocks a launch on a region may have.
pub const MAX_BLOCKS: u32 = 128;

/// The first epoch of a region.
pub const EPOCH_START: u64 = 2;

/// The epoch after `epoch`.
#[inline(always)]
pub const fn epoch_next(epoch: u64) -> u64 {
    if epoch as u32 == u32::MAX { epoch + 3 } else { epoch + 1 }
}

/// The flag of the packets of an epoch; never 0.
#[inline(always)]
pub const fn epoch_flag(epoch: u64) -> u32 {
    epoch as u32
}

/// The epoch words of one region.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Epochs(pub Global<u64>);

impl Epochs {
    /// The epoch of this launch; the same for all blocks and ranks.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn current(self) -> u64 {
        self.0.at(block_idx()).load()
    }

    /// Whether a launch of packets at `epoch` has to zero the *other* half of its own slots before it
    /// sends its first packet: at the last two epochs of a lap, once for each half.
    ///
    /// The other half is quiet then: what peers sent there for the call before was read by that call,
    /// and no peer can begin the next call before it got this call's packets. So one block (0, which
    /// sends in every call) zeroes it all and sends after a block barrier.
    #[inline(always)]
    pub const fn cleans(epoch: u64) -> bool {
        epoch as u32 >= u32::MAX - 1
    }

    /// Ends a launch of `rounds` epochs: all lanes of all blocks call it once, last.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn advance(self, next: u64) {
        // Every lane has read the block's word by now.
        block_sync();
        let step = block_dim() * grid_dim();
        let mut word = block_idx() + thread_idx() * grid_dim();
        while word < MAX_BLOCKS {
            self.0.at(word).store(next);
            word += step;
        }
    }
}

/// The cleaning step of a launch of packets: call it after the epoch is read and before the first
/// packet is sent, by all lanes. `local` is this rank's slots, of two halves of `half` words.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn clean_lap(epoch: u64, local: Global<u64>, half: u32) {
    if Epochs::cleans(epoch) && block_idx() == 0 {
        let other = local.at(((epoch & 1) as u32 ^ 1) * half);
        let mut i = thread_idx();
        while i < half {
            // As the packets themselves: peers write the same words by system-scope accesses.
            other.at(i).store_atomic(crate::Relaxed, Sys, 0);
            i += block_dim();
        }
        // A peer may write the same words once it has this call's packets, which are relaxed.
        fence::<Sys>();
        block_sync();
    }
}

/// Sets an epoch flag: a word with one writer that holds the epoch reached, so that nobody counts.
/// What this lane did before, and what others did before a barrier it passed, is visible to who waits.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn flag_set(at: Global<u64>, epoch: u64) {
    at.store_atomic(Release, Sys, epoch);
}

/// Waits until an epoch flag, set by `peer`, has reached `epoch`, and gives what it holds.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn flag_wait(guard: &Guard, at: Global<u64>, epoch: u64, peer: u32) -> DeviceResult<u64> {
    poll_acquire(guard, at, epoch, WaitKind::EpochFlag, peer, |v| v >= epoch)
}

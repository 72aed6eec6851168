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
//! looks right. Just before the lap ends the kernels therefore clean: see [`clean_lap`].

use crate::arch::{block_dim, block_idx, block_sync, fence, grid_dim, thread_idx};
use crate::atomic::{Release, Sys};
use crate::ptr::Global;
use crate::wait::{Aborted, DeviceResult, Guard, WaitKind, poll_acquire};

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

/// What a lane knows at the beginning of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// The epoch of this launch; the same for all blocks and ranks.
    pub epoch: u64,
    /// A wait of this rank ended early before: peers may not have come so far as the epoch says, so
    /// nothing may be sent, and the epochs stay.
    pub ended: bool,
}

impl Begun {
    /// The epoch, or an error if there is nothing to begin. Where every nanosecond counts, a branch
    /// around the work is cheaper than this way out.
    #[inline(always)]
    pub fn check(self) -> DeviceResult<u64> {
        if self.ended { Err(Aborted) } else { Ok(self.epoch) }
    }
}

/// The epoch words of one region.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Epochs(pub Global<u64>);

impl Epochs {
    /// Begins a launch: all lanes call it first.
    ///
    /// The claim is asked for together with the epoch, and so costs no time of its own; by a load that
    /// the lanes of a multiprocessor share, since what counts was written before the launch.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn begin(self, guard: &Guard) -> Begun {
        let epoch = self.0.at(block_idx()).load();
        Begun { epoch, ended: guard.had_ended() }
    }

    /// Whether a launch of packets at `epoch` has to zero its half of the slots once it has read it: at
    /// the last two epochs of a lap, once for each half.
    #[inline(always)]
    pub const fn cleans(epoch: u64) -> bool {
        epoch as u32 >= u32::MAX - 1
    }

    /// Ends a launch: all lanes of all blocks call it once, last. `next` is the epoch of the launch after
    /// it.
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

/// The cleaning step of a launch of packets, after it has read its last one: this lane zeroes what it
/// read, and all that lies at the same places of `count` slots of `slot` words from `half` on. `first`
/// and `step` are how the lanes of the grid share the packets of a slot, of `words` words each.
///
/// No peer writes here before it has this rank's packets of the next call, and a place that was
/// written in this call was read by the lane that now zeroes it. So no lane waits for another.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn clean_lap(half: Global<u64>, count: u32, slot: u32, words: u32, first: u32, step: u32) {
    let mut s = 0;
    while s < count {
        let mut i = first;
        while i < slot / words {
            let mut word = 0;
            while word < words {
                // As the packets themselves: peers write the same words by system-scope accesses.
                half.at(s * slot + i * words + word).store_atomic(crate::Relaxed, Sys, 0);
                word += 1;
            }
            i += step;
        }
        s += 1;
    }
    // A peer may write the same words once it has this rank's next packets, which are relaxed.
    fence::<Sys>();
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

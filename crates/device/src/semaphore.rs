//! Counting semaphores between two owners.
//!
//! Invariant: the inbound count has one writer's side (the peer, by additions) and only grows; the
//! expected count is this side's own number of waits and lives on the device beside it, so that
//! signals and waits pair up over launches and graph replays.

use crate::atomic::{Relaxed, Release, Sys};
use crate::ptr::Global;
use crate::wait::{DeviceResult, Guard, WaitKind, poll, poll_acquire};

/// One side of a semaphore.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Semaphore {
    /// The peer's inbound count.
    pub remote: Global<u64>,
    /// This side's inbound count: signals received so far.
    pub inbound: Global<u64>,
    /// Waits of this side so far.
    pub expected: Global<u64>,
    /// The rank on the other side, for records.
    pub peer: u64,
}

impl Semaphore {
    /// Signals the peer: what this lane did before, and what others did before a barrier that this
    /// lane passed, is visible to who waits. One lane calls it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn signal(&self) {
        self.remote.reduce_add(Release, Sys, 1);
    }

    /// Signals the peer and orders nothing, neither what this lane wrote before nor what it read: for a
    /// signal that is all there is to say. One that says "I have read, write again" is
    /// [`signal`](Semaphore::signal), which keeps loads before it too.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn signal_relaxed(&self) {
        self.remote.reduce_add(Relaxed, Sys, 1);
    }

    /// Waits for the next signal of the peer; what the peer did before it is visible. One lane calls
    /// it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn wait(&self, guard: &Guard) -> DeviceResult {
        let want = self.next();
        poll_acquire(guard, self.inbound, want, WaitKind::Semaphore, self.peer as u32, |v| {
            v >= want
        })?;
        Ok(())
    }

    /// Waits for the next signal of the peer, ordering nothing.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn wait_relaxed(&self, guard: &Guard) -> DeviceResult {
        let want = self.next();
        poll(guard, self.inbound, want, WaitKind::Semaphore, self.peer as u32, |v| v >= want)?;
        Ok(())
    }

    /// Whether the next signal has come; if so it counts as waited for. One lane calls it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn poll(&self) -> bool {
        let want = self.expected.load() + 1;
        let here = self.inbound.load_atomic(crate::Acquire, Sys) >= want;
        if here {
            self.expected.store(want);
        }
        here
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn next(&self) -> u64 {
        let want = self.expected.load() + 1;
        self.expected.store(want);
        want
    }
}

//! What host threads have seen to be done: they may act upon it.
//!
//! Invariant: who submits something has a stamp that is not before the number of anything that it, or whoever
//! told it, had seen by then. Threads of a process tell each other in ways that nobody sees, so what one has
//! seen all may know of from then on, and nothing else.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a host thread has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// So many items of a queue are done.
    Done { queue: u64, items: u64 },
    /// A point has been passed.
    Passed { point: u64 },
}

/// What a world's thread and those who use its devices share.
#[derive(Default)]
pub(crate) struct Link {
    /// How many things have been seen.
    count: AtomicU64,
    /// With their numbers, from 1 on; those that the world's thread has not taken.
    seen: Mutex<Vec<(u64, Seen)>>,
    /// Threads that have sent something.
    senders: Mutex<HashSet<u32>>,
    queues: AtomicU64,
}

impl Link {
    /// Names a queue among all of the world's devices.
    pub(crate) fn new_queue(self: &Arc<Self>) -> Watched {
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        Watched { link: self.clone(), number, items: AtomicU64::new(0) }
    }

    /// A host thread has seen this. What it does next comes after it, and so does what others do that it tells.
    pub(crate) fn see(&self, seen: Seen) {
        self.number(|list, number| list.push((number, seen)));
    }

    /// Numbers something that the caller is about to let hosts see.
    pub(super) fn number(&self, add: impl FnOnce(&mut Vec<(u64, Seen)>, u64)) {
        let mut list = self.list();
        let number = self.count.load(Ordering::Relaxed) + 1;
        add(&mut list, number);
        self.count.store(number, Ordering::Release);
    }

    /// What who submits something now may know of.
    pub(crate) fn stamp(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// What has been seen and not been taken.
    pub(super) fn take(&self) -> Vec<(u64, Seen)> {
        std::mem::take(&mut *self.list())
    }

    /// This thread sends something.
    pub(crate) fn sends(&self) {
        let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        self.senders.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// Whether a thread has sent anything.
    pub(super) fn has_sent(&self, thread: u32) -> bool {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner).contains(&thread)
    }

    fn list(&self) -> MutexGuard<'_, Vec<(u64, Seen)>> {
        // Whole between any two statements that change it.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue of which a world learns how far it was seen to be.
pub(crate) struct Watched {
    link: Arc<Link>,
    /// Its number among the queues of the world.
    pub(crate) number: u64,
    /// Items that were seen to be done.
    items: AtomicU64,
}

impl Watched {
    /// A host thread has seen so many items done.
    pub(crate) fn see(&self, items: u64) {
        // Else what is seen has its number already.
        if self.items.load(Ordering::Acquire) < items {
            self.link.see(Seen::Done { queue: self.number, items });
            self.items.fetch_max(items, Ordering::Release);
        }
    }
}

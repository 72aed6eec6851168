//! What host threads have seen to be done: they may act upon it.
//!
//! Invariant: who submits something has a stamp that is not before the number of anything that it, or whoever
//! told it, had seen by then. Threads of a process tell each other in ways that nobody sees, so what one has
//! seen all may know of from then on, and nothing else.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::hosts::own_id;
use crate::fork::Process;

/// What a host thread has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// So many items of a queue are done.
    Done { queue: u64, items: u64 },
    /// A point has been passed.
    Passed { point: u64 },
    /// All is done that queues had which nobody submits to any more, and which are empty.
    Gone,
}

/// What has been seen.
#[derive(Default)]
pub(super) struct Log {
    /// How many things there were: the number of the last.
    pub(super) count: u64,
    /// The last stamp that anybody was given.
    pub(super) given: u64,
    /// With their numbers; those that the world's thread has not taken.
    pub(super) seen: Vec<(u64, Seen)>,
}

/// What a world's thread and those who use its devices share.
#[derive(Default)]
pub(crate) struct Link {
    process: Process,
    log: Mutex<Log>,
    /// As in the log, for who only wants to know whether there is anything new.
    count: AtomicU64,
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

    /// A host thread has seen this. What it does next comes after it, and so does what others do that
    /// it tells.
    pub(crate) fn see(&self, seen: Seen) {
        // The child of a fork tells nobody.
        if self.process.is_this() {
            self.with_log(|log| {
                log.count += 1;
                log.seen.push((log.count, seen));
            });
        }
    }

    /// What who submits something now may know of.
    pub(crate) fn stamp(&self) -> u64 {
        self.with_log(|log| {
            log.given = log.count;
            log.given
        })
    }

    /// How many things have been seen.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// What is numbered here, others see after this.
    pub(super) fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> T {
        // Whole between any two statements that change it.
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut log);
        self.count.store(log.count, Ordering::Release);
        done
    }

    /// This thread sends something.
    pub(crate) fn sends(&self) {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner).insert(own_id());
    }

    /// Whether a thread has sent anything.
    pub(super) fn has_sent(&self, thread: u32) -> bool {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner).contains(&thread)
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

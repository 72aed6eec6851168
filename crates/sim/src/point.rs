//! A point in a queue that others wait for.
//!
//! Invariant: a point is passed once and stays passed. Recording an event again makes a new point,
//! so that who waits for an earlier record is not held up or let through by a later one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::exact::{Link, Seen};
use crate::inbox::Inbox;
use crate::{Stopped, inbox::wait_until};

/// A point in a queue; passed once.
pub struct Point {
    id: u64,
    passed: AtomicBool,
    /// Whether a world knows that a host thread has seen it passed.
    seen: AtomicBool,
    /// Where that world learns it.
    link: OnceLock<Arc<Link>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    at: Option<Instant>,
    error: Option<Stopped>,
    devices: Vec<Weak<Inbox>>,
}

impl Point {
    /// A point that nothing has passed yet.
    pub fn new() -> Arc<Point> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Point {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            passed: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            link: OnceLock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Whether the queue has passed it.
    pub fn is_passed(&self) -> bool {
        let passed = self.has_passed();
        self.is_seen(passed);
        passed
    }

    /// When the queue passed it.
    pub fn passed_at(&self) -> Option<Instant> {
        let at = self.state().at;
        self.is_seen(at.is_some());
        at
    }

    /// Blocks until the queue has passed it, at most `limit`; false when the limit passed. An error
    /// if the queue had stopped.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool, Stopped> {
        let state = wait_until(self.state(), &self.changed, limit, |state| state.at.is_some());
        let (passed, error) = (state.at.is_some(), state.error.clone());
        drop(state);
        self.is_seen(passed);
        error.map_or(Ok(passed), Err)
    }

    /// Tells a world that a host thread has seen it passed.
    fn is_seen(&self, passed: bool) {
        if let (true, Some(link)) = (passed, self.link.get())
            && !self.seen.load(Ordering::Acquire)
        {
            link.see(Seen::Passed { point: self.id });
            self.seen.store(true, Ordering::Release);
        }
    }

    /// Unlike no other point.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Who looks at it after it is passed tells so here.
    pub(crate) fn is_watched_by(&self, link: &Arc<Link>) {
        self.link.get_or_init(|| link.clone());
    }

    /// As a scheduler asks: no host learns of it.
    pub(crate) fn has_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
    }

    pub(crate) fn pass(&self, error: Option<Stopped>) {
        let mut state = self.state();
        state.at = Some(Instant::now());
        state.error = error;
        self.passed.store(true, Ordering::Release);
        let devices = std::mem::take(&mut state.devices);
        drop(state);
        self.changed.notify_all();
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.wake();
        }
    }

    /// Has `device` woken when the point is passed; true if it is already.
    pub(crate) fn tell(&self, device: &Arc<Inbox>) -> bool {
        let mut state = self.state();
        if state.at.is_none() {
            state.devices.push(Arc::downgrade(device));
        }
        state.at.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! A point in a queue that others wait for.
//!
//! Invariant: a point is passed once and stays passed. Recording an event again makes a new point,
//! so that who waits for an earlier record is not held up or let through by a later one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::inbox::Inbox;
use crate::{Stopped, inbox::wait_until};

/// A point in a queue; passed once.
#[derive(Default)]
pub struct Point {
    passed: AtomicBool,
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
        Arc::default()
    }

    /// Whether the queue has passed it.
    pub fn is_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
    }

    /// When the queue passed it.
    pub fn passed_at(&self) -> Option<Instant> {
        self.state().at
    }

    /// Blocks until the queue has passed it, at most `limit`; false when the limit passed. An error
    /// if the queue had stopped.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool, Stopped> {
        let state = wait_until(self.state(), &self.changed, limit, |state| state.at.is_some());
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(state.at.is_some()),
        }
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

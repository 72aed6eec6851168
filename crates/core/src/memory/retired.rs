//! What was dropped while a kernel may still use it.
//!
//! Invariant: memory that was given to kernels of a communicator is freed only at a point where the
//! communicator knows that its kernels have ended ([`Retired::free`], called after its last stream
//! was seen idle, and [`Retired::close`], when it is dropped itself). So a drop never waits for the
//! device, and a kernel never meets memory that is gone.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// The things that wait to be freed; one list a communicator.
#[derive(Default)]
pub(crate) struct Retired {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mode: Mode,
    things: Vec<Box<dyn Any + Send>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    /// Kernels may run: things wait for [`Retired::free`].
    #[default]
    Open,
    /// The communicator is gone and its kernels have ended: nothing has to wait.
    Closed,
    /// The communicator is gone, a kernel did not end: nothing is ever freed.
    Leaking,
}

impl Retired {
    fn push(&self, thing: Box<dyn Any + Send>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.mode {
            Mode::Open => state.things.push(thing),
            Mode::Closed => {
                drop(state);
                drop(thing);
            }
            Mode::Leaking => std::mem::forget(thing),
        }
    }

    /// Frees what was dropped up to now. The kernels of the communicator have ended.
    pub(crate) fn free(&self) {
        let things = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut state.things)
        };
        // Outside of the lock: what is freed may hold more that is held here.
        drop(things);
    }

    /// From now on everything is freed at once. The kernels of the communicator have ended.
    pub(crate) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).mode = Mode::Closed;
        self.free();
    }

    /// A kernel did not end: what it may use is never freed.
    pub(crate) fn leak(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.mode = Mode::Leaking;
        std::mem::forget(std::mem::take(&mut state.things));
    }

    /// Whether nothing waits to be freed.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).things.is_empty()
    }
}

/// Something that kernels use; goes to the list when dropped.
pub(crate) struct Held<T: Send + 'static> {
    thing: ManuallyDrop<Box<T>>,
    retired: Arc<Retired>,
}

impl<T: Send + 'static> Held<T> {
    pub(crate) fn new(retired: &Arc<Retired>, thing: T) -> Self {
        Held { thing: ManuallyDrop::new(Box::new(thing)), retired: retired.clone() }
    }
}

impl<T: Send + 'static> Deref for Held<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.thing
    }
}

impl<T: Send + 'static> Drop for Held<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing touches it afterwards.
        let thing = unsafe { ManuallyDrop::take(&mut self.thing) };
        self.retired.push(thing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_thing_is_freed_when_the_kernels_have_ended() {
        let retired = Arc::new(Retired::default());
        let thing = Arc::new(());
        drop(Held::new(&retired, thing.clone()));
        assert_eq!(Arc::strong_count(&thing), 2);
        assert!(!retired.is_empty());
        retired.free();
        assert_eq!(Arc::strong_count(&thing), 1);
    }

    #[test]
    fn after_the_communicator_things_are_freed_at_once() {
        let retired = Arc::new(Retired::default());
        let thing = Arc::new(());
        let held = Held::new(&retired, thing.clone());
        retired.close();
        assert_eq!(Arc::strong_count(&thing), 2);
        drop(held);
        assert_eq!(Arc::strong_count(&thing), 1);
    }
}

//! What is dropped while a capture is open.
//!
//! Invariant: memory that is dropped while a stream is being captured is not freed before the graph
//! that comes of the capture is gone, with all that was made of it and every replay in flight. A
//! captured launch has not run when the memory is dropped, so no point in any stream tells when it has:
//! the launch may be replayed as long as there is the graph.
//!
//! How: a capture begins by having its graph keep a [`Parking`], which is an object like any other that
//! a graph keeps. Memory that is dropped while the capture is open goes there, and is dropped for good
//! with it. So nothing is asked of the graph itself when memory is dropped: it belongs to the thread
//! that captures.
//!
//! A stream that somebody else captures has no such list: the owner of the graph keeps what its launches
//! use, with [`Stream::retain`](crate::Stream::retain).

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::BackendKind;

type Thing = Arc<dyn Any + Send + Sync>;

/// Captures that are open, of all devices: what a capture takes in may lie on any of a kind.
static OPEN: Mutex<Vec<(BackendKind, Weak<Parking>)>> = Mutex::new(Vec::new());

/// How many there are, so that a drop at any other time looks at one word.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps what is dropped while a capture is open; itself kept by the graph.
#[derive(Default)]
pub(crate) struct Parking {
    things: Mutex<Vec<Thing>>,
}

/// A capture that is open.
pub(crate) struct OpenCapture {
    parking: Arc<Parking>,
}

impl OpenCapture {
    /// From here on until it is dropped, what is dropped is parked.
    pub(crate) fn begin(kind: BackendKind) -> OpenCapture {
        let parking = Arc::<Parking>::default();
        let mut open = open();
        open.push((kind, Arc::downgrade(&parking)));
        COUNT.store(open.len(), Ordering::SeqCst);
        OpenCapture { parking }
    }

    pub(crate) fn parking(&self) -> Arc<Parking> {
        self.parking.clone()
    }
}

impl Drop for OpenCapture {
    fn drop(&mut self) {
        let mut open = open();
        open.retain(|(_, parking)| !std::ptr::eq(parking.as_ptr(), &raw const *self.parking));
        COUNT.store(open.len(), Ordering::SeqCst);
    }
}

fn open() -> MutexGuard<'static, Vec<(BackendKind, Weak<Parking>)>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that kernels may use: dropped for good when no capture is open, or else with the graphs.
pub(crate) struct Parked<T: Send + Sync + 'static> {
    thing: ManuallyDrop<T>,
    kind: BackendKind,
}

impl<T: Send + Sync + 'static> Parked<T> {
    pub(crate) fn new(kind: BackendKind, thing: T) -> Self {
        Parked { thing: ManuallyDrop::new(thing), kind }
    }
}

impl<T: Send + Sync + 'static> Deref for Parked<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.thing
    }
}

impl<T: Send + Sync + 'static> Drop for Parked<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing touches it afterwards.
        let thing = unsafe { ManuallyDrop::take(&mut self.thing) };
        if COUNT.load(Ordering::SeqCst) == 0 {
            return;
        }
        let lists: Vec<Arc<Parking>> = {
            let of_kind = |(kind, parking): &(BackendKind, Weak<Parking>)| {
                (*kind == self.kind).then(|| parking.upgrade())?
            };
            open().iter().filter_map(of_kind).collect()
        };
        if lists.is_empty() {
            return;
        }
        let thing: Thing = Arc::new(thing);
        for list in lists {
            list.things.lock().unwrap_or_else(PoisonError::into_inner).push(thing.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what was dropped for good.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_is_dropped_while_captures_are_open_goes_with_the_last_of_their_graphs() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let thing = || Parked::new(BackendKind::Cuda, Counted(dropped.clone()));
        let count = || dropped.load(Ordering::SeqCst);
        drop(thing());
        assert_eq!(count(), 1, "no capture is open");
        let [a, b] = [(); 2].map(|()| OpenCapture::begin(BackendKind::Cuda));
        // What the graphs keep.
        let (graph_a, graph_b) = (a.parking(), b.parking());
        drop(thing());
        drop(Parked::new(BackendKind::Cpu, Counted(dropped.clone())));
        assert_eq!(count(), 2, "the other kind of device has no part in it");
        drop(a);
        drop(thing());
        drop(b);
        drop(thing());
        assert_eq!(count(), 3, "after the captures");
        drop(graph_b);
        assert_eq!(count(), 4, "one was dropped when only this capture was open");
        drop(graph_a);
        assert_eq!(count(), 5);
    }
}

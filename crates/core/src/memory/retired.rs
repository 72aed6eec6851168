//! What was dropped while a kernel may still use it.
//!
//! Invariant: memory that was given to kernels of a communicator is freed only at a point where the
//! communicator knows that its kernels have ended ([`Retired::free`], called after its last stream
//! was seen idle, and [`Retired::close`], when it is dropped itself). So a drop never waits for the
//! device, and a kernel never meets memory that is gone.
//!
//! A captured kernel has not ended, whatever any stream says, until its graph is gone. While a capture
//! with operations of the communicator is open, what is dropped is therefore given to its graph as well
//! ([`Kept`], which the graph keeps from the first such operation on) and freed when both have let go.
//! What is dropped after the capture has ended is not: who replays a graph keeps what it uses, as who
//! launches a kernel does, or has the graph keep it by [`Stream::retain`].

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use mscclrs_gpu::Stream;

use crate::control::ControlBlock;

/// A mutex, so that it may be shared whatever it is; it is not used but dropped.
type Thing = Arc<Mutex<dyn Any + Send>>;

/// What the graph of a capture keeps for the communicator.
pub(crate) struct Kept {
    things: Mutex<Vec<Thing>>,
    /// Captured kernels look at it at each replay.
    _control: Arc<ControlBlock>,
}

impl Kept {
    pub(crate) fn new(control: &Arc<ControlBlock>) -> Arc<Kept> {
        Arc::new(Kept { things: Mutex::default(), _control: control.clone() })
    }
}

/// A capture with operations of the communicator.
struct Capture {
    stream: Stream,
    id: u64,
    kept: Weak<Kept>,
}

impl Capture {
    /// What its graph keeps, while it is open. A broken capture comes to nothing.
    fn open(&self) -> Option<Arc<Kept>> {
        (self.stream.capture_id().ok()? == Some(self.id)).then(|| self.kept.upgrade())?
    }
}

/// The things that wait to be freed; one list a communicator.
#[derive(Default)]
pub(crate) struct Retired {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mode: Mode,
    things: Vec<Thing>,
    captures: Vec<Capture>,
}

impl State {
    /// What the graphs of open captures keep. Forgets the captures that have ended.
    fn open_captures(&mut self) -> Vec<Arc<Kept>> {
        let open: Vec<_> = self.captures.iter().map(Capture::open).collect();
        let mut is_open = open.iter().map(Option::is_some);
        self.captures.retain(|_| is_open.next().unwrap_or(false));
        open.into_iter().flatten().collect()
    }
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
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on, as long as this capture is open, what is dropped is kept by its graph.
    pub(crate) fn keep_in(&self, stream: &Stream, id: u64, kept: &Arc<Kept>) {
        let capture = Capture { stream: stream.clone(), id, kept: Arc::downgrade(kept) };
        drop(self.with(State::open_captures));
        self.with(|state| state.captures.push(capture));
    }

    fn push(&self, thing: impl Any + Send) {
        let thing: Thing = Arc::new(Mutex::new(thing));
        // Not under the lock: a graph may be gone by now, and what it kept come here as well.
        for kept in self.with(State::open_captures) {
            let mut things = kept.things.lock().unwrap_or_else(PoisonError::into_inner);
            things.push(thing.clone());
        }
        self.with(|state| match state.mode {
            Mode::Open => state.things.push(thing.clone()),
            Mode::Closed => {}
            Mode::Leaking => std::mem::forget(thing.clone()),
        });
        // What is kept nowhere is dropped here.
    }

    /// Frees what was dropped up to now. The kernels of the communicator have ended.
    pub(crate) fn free(&self) {
        let things = self.with(|state| std::mem::take(&mut state.things));
        // Outside of the lock: what is freed may hold more that is held here.
        drop(things);
    }

    /// From now on everything is freed at once. The kernels of the communicator have ended.
    pub(crate) fn close(&self) {
        self.with(|state| state.mode = Mode::Closed);
        self.free();
    }

    /// A kernel did not end: what it may use is never freed.
    pub(crate) fn leak(&self) {
        self.with(|state| {
            state.mode = Mode::Leaking;
            std::mem::forget(std::mem::take(&mut state.things));
        });
    }

    /// Whether nothing waits to be freed.
    pub(crate) fn is_empty(&self) -> bool {
        self.with(|state| state.things.is_empty())
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
        self.retired.push(*thing);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mscclrs_gpu::{BackendKind, Device};

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
    fn a_thing_dropped_while_a_capture_is_open_waits_for_its_graph_too() {
        let device = Device::open(BackendKind::Cpu, 320).unwrap();
        let stream = device.create_stream().unwrap();
        let control = ControlBlock::new(&device).unwrap();
        let retired = Arc::new(Retired::default());
        let [early, late] = [(); 2].map(|()| Arc::new(()));
        let later = Held::new(&retired, late.clone());
        let graph = stream.capture::<mscclrs_gpu::Error>(|stream| {
            let kept = Kept::new(&control);
            stream.retain(kept.clone())?;
            retired.keep_in(stream, stream.capture_id()?.unwrap(), &kept);
            drop(Held::new(&retired, early.clone()));
            retired.free();
            Ok(())
        });
        let graph = graph.unwrap();
        drop(later);
        retired.free();
        // Also when the communicator is gone.
        retired.close();
        assert_eq!(Arc::strong_count(&late), 1, "the capture had ended");
        assert_eq!(Arc::strong_count(&early), 2, "the graph keeps it");
        assert_eq!(Arc::strong_count(&control), 2);
        let exec = graph.instantiate().unwrap();
        drop(graph);
        assert_eq!(Arc::strong_count(&early), 2, "what is made of the graph keeps it");
        drop(exec);
        let since = Instant::now();
        // A graph lets go on a thread of its own.
        while Arc::strong_count(&early) > 1 || Arc::strong_count(&control) > 1 {
            assert!(since.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(1));
        }
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

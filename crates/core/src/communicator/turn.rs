//! One thread at a time, and one order of operations.
//!
//! Invariant: the state is reached only by the thread that holds the turn; whoever comes meanwhile
//! gets [`Error::Busy`], not a race and not a wait. The turn is one atomic exchange, and a thread that
//! has it may take it again.
//!
//! Order: an operation that is enqueued on another stream than the one before first waits for an
//! event recorded there. A captured operation has no place in time until its graph runs, so it is
//! ordered so:
//! - after captured operations on other streams of the same capture, by an event, as any other;
//! - after operations that were enqueued before on *another*, uncaptured stream, by waiting for them
//!   on the host: a graph cannot wait for what lies outside of it. They have ended when the graph is
//!   first replayed. This happens once a capture, not at replays;
//! - on the stream that is captured, nothing is to be done: the stream orders them;
//! - while a capture with operations is open, none can be captured into *another* one: nothing would
//!   order the two graphs.
//!
//! From its first operation on the graph of a capture keeps what its kernels may use, see
//! [`Kept`].
//!
//! A replay is an operation of the stream it is launched on ([`Communicator::launch_graph`]); on the
//! stream of the last operation that costs nothing.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use mscclrs_gpu::{Event, GraphExec, Stream};

use super::Shared;
use crate::memory::Kept;
use crate::{Communicator, Error, Result};

/// Who uses the communicator, and what only they may touch.
pub(super) struct Turns {
    /// The thread that has the turn; 0 while nobody has.
    owner: AtomicU64,
    state: UnsafeCell<State>,
    /// Where the last stream was when another one took over. Made beforehand: making one may wait for
    /// the device, where another rank's kernel could be waiting for this rank.
    event: Event,
}

// SAFETY: `state` is reached only by the thread that holds the turn, which it takes with acquire and
// gives back with release.
unsafe impl Sync for Turns {}

#[derive(Default)]
struct State {
    depth: u32,
    /// Where the last operation that was not captured was enqueued.
    last_run: Option<Stream>,
    /// Where the last captured operation was enqueued.
    last_captured: Option<Captured>,
}

#[derive(Clone)]
struct Captured {
    stream: Stream,
    /// The capture that the stream was in.
    id: u64,
}

impl Captured {
    fn is_open(&self) -> bool {
        // A broken capture comes to nothing.
        self.stream.capture_id().is_ok_and(|id| id == Some(self.id))
    }
}

fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static ID: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // At the very end of a thread its own number is gone; all such threads share one.
    ID.try_with(|id| *id).unwrap_or(u64::MAX)
}

impl Turns {
    pub(super) fn new(event: Event) -> Self {
        Turns { owner: AtomicU64::new(0), state: UnsafeCell::default(), event }
    }
}

/// The right to use a communicator; held by one thread, given back when dropped.
pub struct Turn<'a> {
    shared: &'a Shared,
    /// It belongs to the thread that took it.
    _thread: PhantomData<*const ()>,
}

impl Shared {
    pub(crate) fn enter(&self) -> Result<Turn<'_>> {
        let me = this_thread();
        let turns = &self.turns;
        if turns.owner.load(Ordering::Relaxed) != me
            && turns.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return Err(Error::Busy { rank: self.rank });
        }
        let turn = Turn { shared: self, _thread: PhantomData };
        turn.with(|state| state.depth += 1);
        Ok(turn)
    }
}

impl Turn<'_> {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // SAFETY: this thread has the turn, and `work` calls nothing that comes back here.
        work(unsafe { &mut *self.shared.turns.state.get() })
    }

    /// Makes this stream wait for what the communicator enqueued on another one before, and notes
    /// that the next operation goes to this stream.
    ///
    /// Blocks only when a capture begins on another stream than the last operation's: until that
    /// operation has ended, a rank is lost, or a wait ended early.
    ///
    /// While the stream is captured, what the communicator gave to kernels and is dropped before the
    /// capture ends lives as long as the graph. What is dropped later does not: who replays a graph keeps
    /// what it uses, or has the graph keep it by [`Stream::retain`].
    ///
    /// [`Error::Order`] if the stream is in another capture than one that has operations of this
    /// communicator and is still open. An error if a rank was lost or a wait ended early before: the
    /// communicator is of no use then.
    pub fn order(&self, stream: &Stream) -> Result<()> {
        self.shared.check()?;
        let raw = stream.raw();
        let Some(id) = stream.capture_id()? else {
            let same = self.with(|s| s.last_run.as_ref().is_some_and(|last| last.raw() == raw));
            return if same { Ok(()) } else { self.order_run(stream) };
        };
        let same = self.with(|s| {
            s.last_run.as_ref().is_none_or(|last| last.raw() == raw)
                && s.last_captured.as_ref().is_some_and(|c| c.id == id && c.stream.raw() == raw)
        });
        if same { Ok(()) } else { self.order_captured(stream, id) }
    }

    fn order_run(&self, stream: &Stream) -> Result<()> {
        if let Some(last) = self.with(|s| s.last_run.clone()) {
            if last.is_capturing()? {
                return Err(Error::Order {
                    what: format!(
                        "rank {}: an operation on {stream:?} has to come after one on {last:?}, which \
                         is being captured now; end the capture first, or use the captured stream",
                        self.shared.rank
                    ),
                });
            }
            let event = &self.shared.turns.event;
            last.record(event)?;
            stream.wait(event)?;
        }
        self.with(|s| s.last_run = Some(stream.clone()));
        Ok(())
    }

    fn order_captured(&self, stream: &Stream, id: u64) -> Result<()> {
        let (run, captured) = self.with(|s| (s.last_run.clone(), s.last_captured.clone()));
        let raw = stream.raw();
        let other = captured.as_ref().filter(|last| last.id != id && last.is_open());
        if let Some(Captured { stream: last, .. }) = other {
            return Err(Error::Order {
                what: format!(
                    "rank {}: an operation on {stream:?} would be captured while the capture on \
                     {last:?}, which has operations of this communicator, is open, and nothing would \
                     order the two graphs; end that capture first, or have the stream join it by an \
                     event",
                    self.shared.rank
                ),
            });
        }
        if let Some(last) = run.filter(|last| last.raw() != raw)
            // One that joined this capture is ordered by the replay's own stream.
            && !last.is_capturing()?
        {
            self.shared.wait_idle(&last)?;
            self.with(|s| s.last_run = None);
        }
        match captured.filter(|last| last.id == id) {
            Some(Captured { stream: last, .. }) if last.raw() != raw => {
                // An event of its own: one that was recorded in a capture is part of that graph.
                let event = self.shared.device.create_event(false)?;
                last.record(&event)?;
                stream.wait(&event)?;
            }
            Some(_) => {}
            None => {
                let kept = Kept::new(&self.shared.health.control);
                stream.retain(kept.clone())?;
                self.shared.retired.keep_in(stream, id, &kept);
            }
        }
        self.with(|s| s.last_captured = Some(Captured { stream: stream.clone(), id }));
        Ok(())
    }

    /// Waits until everything that was enqueued before has ended, and frees what was dropped.
    pub(crate) fn quiesce(&self) -> Result<()> {
        if let Some(last) = self.with(|s| s.last_run.clone()) {
            // What is being captured does not run, and asking would break the capture.
            if last.is_capturing()? {
                return Ok(());
            }
            self.shared.wait_idle(&last)?;
        }
        self.shared.retired.free();
        Ok(())
    }

    /// Frees what was dropped if everything that was enqueued before happens to have ended.
    pub(super) fn reclaim(&self) {
        let idle = |last: &Stream| -> Result<bool> { Ok(!last.is_capturing()? && last.is_idle()?) };
        if self.last_stream().is_none_or(|last| idle(&last).unwrap_or(false)) {
            self.shared.retired.free();
        }
    }

    /// The stream of the last operation that runs, for a communicator that ends.
    pub(super) fn last_stream(&self) -> Option<Stream> {
        self.with(|s| s.last_run.clone())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let left = self.with(|state| {
            state.depth -= 1;
            state.depth
        });
        if left == 0 {
            self.shared.turns.owner.store(0, Ordering::Release);
        }
    }
}

impl Communicator {
    /// Takes the turn for a run of calls: until it is dropped another thread's calls end with
    /// [`Error::Busy`]. The thread that has it may call everything, and take it again.
    pub fn enter(&self) -> Result<Turn<'_>> {
        self.shared.enter()
    }

    /// Makes this stream wait for what the communicator enqueued on another one before; see
    /// [`Turn::order`].
    pub fn order(&self, stream: &Stream) -> Result<()> {
        self.enter()?.order(stream)
    }

    /// Enqueues a replay of a graph that holds operations of this communicator, in its order.
    pub fn launch_graph(&self, graph: &GraphExec, stream: &Stream) -> Result<()> {
        let turn = self.enter()?;
        turn.order(stream)?;
        Ok(graph.launch(stream)?)
    }
}

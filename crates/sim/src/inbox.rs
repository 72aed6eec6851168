//! How other threads speak to a device's scheduler, and how they wait for it.
//!
//! Invariant: a command is in the list when the flag is set, and the flag is set before the
//! scheduler is unparked; the scheduler clears the flag before it takes the list. So no command is
//! left behind, and a device without work sleeps without a clock.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::exact::{Link, Seen, Watched};
use crate::fork::Process;
use crate::{Graph, Point, Stopped, WaitingReport};

/// What a queue does next.
pub(crate) enum Item {
    Graph(Arc<Graph>),
    Pass(Arc<Point>),
    Task(Box<dyn FnOnce() + Send>),
    Wait(Arc<Point>),
}

pub(crate) enum Command {
    Open(Arc<QueueShared>),
    /// A queue's next item, and how much hosts had seen by then, where accesses are watched.
    Submit(u64, Item, u64),
    Close(u64),
    /// Dropped when what all queues have now is done.
    Defer(Arc<dyn Any + Send + Sync>),
    Report(Sender<WaitingReport>),
    Shutdown,
}

/// What came to an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Came {
    Nothing,
    NoWork,
    Work,
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) process: Process,
    full: AtomicBool,
    commands: Mutex<Vec<Command>>,
    thread: OnceLock<Thread>,
    /// Where a world's thread takes what comes.
    link: Option<Arc<Link>>,
}

impl Inbox {
    /// One of a device of a world.
    pub(crate) fn in_world(link: Arc<Link>) -> Inbox {
        Inbox { link: Some(link), ..Inbox::default() }
    }

    /// A host thread has seen that queues which are gone have done all.
    pub(crate) fn sees_gone(&self) {
        if let Some(link) = &self.link {
            link.see(Seen::Gone);
        }
    }

    /// What a world is to know of a new queue.
    pub(crate) fn watched(&self) -> Option<Watched> {
        self.link.as_ref().map(Link::new_queue)
    }

    pub(crate) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// In the child of a fork there is nobody to send to.
    pub(crate) fn send(&self, command: Command) {
        if !self.process.is_this() {
            return;
        }
        self.sends();
        let mut commands = self.commands();
        commands.push(command);
        self.full.store(true, Ordering::Release);
        drop(commands);
        self.wake();
    }

    /// Sends the next item of a queue; the ticket counts the queue's items from 1.
    pub(crate) fn submit(&self, queue: &QueueShared, item: Item) -> u64 {
        if !self.process.is_this() {
            return queue.submitted.load(Ordering::Relaxed);
        }
        self.sends();
        let mut commands = self.commands();
        // Under the lock, so that tickets and stamps are in the order of the list.
        let ticket = queue.submitted.fetch_add(1, Ordering::Relaxed) + 1;
        let stamp = self.link.as_ref().map_or(0, |link| link.stamp());
        commands.push(Command::Submit(queue.id, item, stamp));
        self.full.store(true, Ordering::Release);
        drop(commands);
        self.wake();
        ticket
    }

    fn sends(&self) {
        if let Some(link) = &self.link {
            link.sends();
        }
    }

    pub(crate) fn wake(&self) {
        self.full.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Whether something came since the last call.
    pub(crate) fn poll(&self) -> bool {
        self.full.load(Ordering::Relaxed) && self.full.swap(false, Ordering::Acquire)
    }

    /// How many commands came that have not been taken.
    pub(crate) fn sent(&self) -> usize {
        self.commands().len()
    }

    /// Whether anything came that has not been taken, and whether any of it is work.
    pub(crate) fn came(&self) -> Came {
        let commands = self.commands();
        match () {
            () if commands.is_empty() => Came::Nothing,
            () if commands.iter().any(|c| matches!(c, Command::Submit(..))) => Came::Work,
            () => Came::NoWork,
        }
    }

    /// The scheduler sleeps until something comes, at most `limit`.
    pub(crate) fn park(&self, limit: Option<Duration>) {
        // What ran on this thread meanwhile may have parked too and have had our wake-up.
        if self.full.load(Ordering::Acquire) {
            return;
        }
        match limit {
            Some(limit) => std::thread::park_timeout(limit),
            None => std::thread::park(),
        }
    }

    pub(crate) fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *self.commands())
    }

    fn commands(&self) -> MutexGuard<'_, Vec<Command>> {
        // A list of commands is whole at any time.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the owner of a queue and the scheduler share.
pub(crate) struct QueueShared {
    pub(crate) id: u64,
    pub(crate) submitted: AtomicU64,
    /// Where a world learns what hosts have seen of it.
    pub(crate) watched: Option<Watched>,
    process: Process,
    state: Mutex<QueueProgress>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueProgress {
    completed: u64,
    error: Option<Stopped>,
}

impl QueueShared {
    pub(crate) fn new(id: u64, watched: Option<Watched>) -> Self {
        QueueShared {
            id,
            submitted: AtomicU64::new(0),
            watched,
            process: Process::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn complete(&self) {
        self.state().completed += 1;
        self.changed.notify_all();
    }

    /// In the child of a fork nothing of what its parent enqueued is done there.
    pub(crate) fn has_done(&self, ticket: u64) -> bool {
        let done = self.process.is_this() && self.state().completed >= ticket;
        self.seen(ticket, done);
        done
    }

    /// A host thread learns whether so many items are done.
    fn seen(&self, ticket: u64, done: bool) {
        if let (true, Some(watched)) = (done, &self.watched) {
            watched.see(ticket);
        }
    }

    pub(crate) fn error(&self) -> Option<Stopped> {
        if let Err(stopped) = self.process.check() {
            return Some(stopped);
        }
        self.state().error.clone()
    }

    /// The first error stays.
    pub(crate) fn fail(&self, error: Stopped) {
        self.state().error.get_or_insert(error);
    }

    /// The scheduler is gone: nobody may wait for it.
    pub(crate) fn abandon(&self, error: Stopped) {
        let mut state = self.state();
        state.error.get_or_insert(error);
        state.completed = u64::MAX / 2;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until `ticket` items are done; false when the limit passed.
    pub(crate) fn wait(&self, ticket: u64, limit: Option<Duration>) -> Result<bool, Stopped> {
        self.process.check()?;
        let state =
            wait_until(self.state(), &self.changed, limit, |state| state.completed >= ticket);
        let done = state.completed >= ticket;
        let error = state.error.clone().filter(|_| done);
        drop(state);
        self.seen(ticket, done);
        error.map_or(Ok(done), Err)
    }

    fn state(&self) -> MutexGuard<'_, QueueProgress> {
        // Whole between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn wait_until<'a, T>(
    mut state: MutexGuard<'a, T>,
    changed: &Condvar,
    limit: Option<Duration>,
    done: impl Fn(&T) -> bool,
) -> MutexGuard<'a, T> {
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    while !done(&state) {
        state = match deadline {
            None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
    state
}

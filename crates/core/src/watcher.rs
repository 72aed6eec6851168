//! The one thread of a process that watches sockets.
//!
//! It starts with the first registration and ends with the last. It never waits for anything but
//! events: handlers read and write without blocking. Once a `Registration` is dropped its handler
//! is not called any more. In the child of a fork there is no such thread; what the child inherited
//! is closed there without touching the parent's epoll set, which both share.

use std::collections::{BTreeSet, HashMap};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::{Error, Result};

/// How often `tick` is called while a handler needs it.
pub(crate) const TICK: Duration = Duration::from_millis(50);
const WAKE: u64 = u64::MAX;

/// What reacts to sockets. Called on the watcher's thread only; must not block.
pub(crate) trait Handler: Send + Sync {
    /// The socket watched under `key` can be read, or is closed.
    fn ready(&self, key: u32);
    /// Time has passed.
    fn tick(&self) {}
    /// Whether `tick` is to be called. Asked after each call of the handler and after
    /// [`Watch::wake`], so that a process of a thousand ranks does not ask all for each event.
    fn needs_tick(&self) -> bool {
        false
    }
}

/// Starts to watch on behalf of a handler, which `make` builds from the means to watch sockets.
pub(crate) fn register<H: Handler + 'static>(
    make: impl FnOnce(Watch) -> Result<Arc<H>>,
) -> Result<(Arc<H>, Registration)> {
    let watcher = Watcher::current()?;
    let id = watcher.shared.next.fetch_add(1, Ordering::Relaxed);
    let watch = Watch { shared: Arc::clone(&watcher.shared), id };
    let handler = make(watch)?;
    let entry = Arc::new(Entry { handler: handler.clone(), live: Mutex::new(true) });
    watcher.shared.entries().insert(id, entry);
    watcher.shared.wake(id);
    Ok((handler, Registration { watcher, id }))
}

/// Keeps a handler being called.
pub(crate) struct Registration {
    watcher: Arc<Watcher>,
    id: u32,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let shared = &self.watcher.shared;
        if !shared.is_ours() {
            return;
        }
        let entry = shared.entries().remove(&self.id);
        // On the watcher's thread the handler being called is this very one, or none.
        if let Some(entry) = entry
            && !self.watcher.is_this_thread()
        {
            *entry.live.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }
    }
}

/// The means to watch sockets for one handler.
#[derive(Clone)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
    id: u32,
}

impl Watch {
    /// Watches `fd` under `key`.
    pub(crate) fn watch(&self, fd: OwnedFd, key: u32) -> Result<Watched> {
        self.add(fd, key, EventFlags::IN | EventFlags::RDHUP)
    }

    /// Watches `fd` under `key` for the end of what the other side sends, which is one event.
    pub(crate) fn watch_for_end(&self, fd: OwnedFd, key: u32) -> Result<Watched> {
        self.add(fd, key, EventFlags::RDHUP | EventFlags::ONESHOT)
    }

    fn add(&self, fd: OwnedFd, key: u32, flags: EventFlags) -> Result<Watched> {
        let data = EventData::new_u64(u64::from(self.id) << 32 | u64::from(key));
        epoll::add(&self.shared.epoll, &fd, data, flags)
            .map_err(|error| Error::io("cannot watch a socket", error))?;
        Ok(Watched { fd: Some(fd), watch: self.clone() })
    }

    /// Makes the thread look at `needs_tick` again.
    pub(crate) fn wake(&self) {
        self.shared.wake(self.id);
    }
}

/// A socket that is watched until this is dropped.
pub(crate) struct Watched {
    fd: Option<OwnedFd>,
    watch: Watch,
}

impl Watched {
    /// The socket, watched no more.
    pub(crate) fn into_fd(mut self) -> Option<OwnedFd> {
        self.stop();
        self.fd.take()
    }

    fn stop(&self) {
        if let Some(fd) = &self.fd
            && self.watch.shared.is_ours()
        {
            // It fails only for a socket that is not in the set, which is what is wanted.
            let _ = epoll::delete(&self.watch.shared.epoll, fd);
        }
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("only into_fd, which consumes self, takes the descriptor"),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Entry {
    handler: Arc<dyn Handler>,
    live: Mutex<bool>,
}

/// What the thread and all who watch share.
struct Shared {
    epoll: OwnedFd,
    wake: OwnedFd,
    pid: u32,
    next: AtomicU32,
    stop: AtomicBool,
    entries: Mutex<HashMap<u32, Arc<Entry>>>,
    /// Handlers to be asked whether they need ticks.
    changed: Mutex<Vec<u32>>,
}

impl Shared {
    fn entries(&self) -> MutexGuard<'_, HashMap<u32, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }

    fn entry(&self, id: u32) -> Option<Arc<Entry>> {
        self.entries().get(&id).cloned()
    }

    /// Makes the thread ask a handler whether it needs ticks.
    fn wake(&self, id: u32) {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        self.rouse();
    }

    fn rouse(&self) {
        // The counter is full only if the thread has been woken anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 256];
        let mut ticking = BTreeSet::new();
        let mut next_tick = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            if !ticking.is_empty() && now >= next_tick {
                for id in ticking.clone() {
                    if let Some(entry) = self.entry(id) {
                        call(&entry, |handler| handler.tick());
                    }
                    self.ask(id, &mut ticking);
                }
                next_tick = Instant::now() + TICK;
                continue;
            }
            let limit = (!ticking.is_empty()).then(|| next_tick.saturating_duration_since(now));
            let limit = limit.map(|limit| Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: limit.subsec_nanos().into(),
            });
            // Interrupted or not, the loop starts anew.
            if let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
                let before = ticking.is_empty();
                self.dispatch(ready, &mut ticking);
                if before {
                    next_tick = Instant::now() + TICK;
                }
            }
        }
    }

    fn dispatch(&self, ready: &[epoll::Event], ticking: &mut BTreeSet<u32>) {
        for event in ready {
            let data = event.data.u64();
            if data == WAKE {
                let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                let changed =
                    mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner));
                for id in changed {
                    self.ask(id, ticking);
                }
                continue;
            }
            let id = (data >> 32) as u32;
            if let Some(entry) = self.entry(id) {
                call(&entry, |handler| handler.ready(data as u32));
            }
            self.ask(id, ticking);
        }
    }

    fn ask(&self, id: u32, ticking: &mut BTreeSet<u32>) {
        if self.entry(id).is_some_and(|entry| entry.handler.needs_tick()) {
            ticking.insert(id);
        } else {
            ticking.remove(&id);
        }
    }
}

/// Calls a handler unless its registration is gone. A handler that panics is not called again.
fn call(entry: &Entry, body: impl FnOnce(&dyn Handler)) {
    let live = entry.live.lock();
    if let Ok(live) = live
        && *live
    {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            body(&*entry.handler);
        }));
        if caught.is_err() {
            mscclrs_log::error!(LIVENESS, "a socket handler panicked");
        }
    }
}

/// The thread; dropped with the last registration.
struct Watcher {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watcher {
    fn current() -> Result<Arc<Watcher>> {
        static CURRENT: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = current.upgrade() {
            if watcher.shared.is_ours() {
                return Ok(watcher);
            }
            // Inherited through a fork: the thread stayed in the parent.
            mem::forget(watcher);
        }
        let watcher = Arc::new(Watcher::start()?);
        *current = Arc::downgrade(&watcher);
        Ok(watcher)
    }

    fn start() -> Result<Watcher> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::io("cannot create an epoll set", error))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("cannot create an eventfd", error))?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)
            .map_err(|error| Error::io("cannot watch an eventfd", error))?;
        let shared = Arc::new(Shared {
            epoll,
            wake,
            pid: std::process::id(),
            next: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            entries: Mutex::default(),
            changed: Mutex::default(),
        });
        let runs = Arc::clone(&shared);
        let thread = with_signals_blocked(|| {
            thread::Builder::new().name("mscclrs-watcher".into()).spawn(move || runs.run())
        })
        .map_err(|error| Error::io("cannot start the watcher thread", error))?;
        Ok(Watcher { shared, thread: Mutex::new(Some(thread)) })
    }

    fn is_this_thread(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|t| t.thread().id() == thread::current().id())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if !self.shared.is_ours() {
            return;
        }
        let is_this_thread = self.is_this_thread();
        self.shared.stop.store(true, Ordering::Release);
        self.shared.rouse();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && !is_this_thread
        {
            // Handlers' panics are caught, so there is no result to look at.
            let _ = thread.join();
        }
    }
}

/// A thread inherits its creator's signal mask: signals are the business of the user's threads.
fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set it is given, pthread_sigmask only reads it and
    // initialises `before`; both live on this stack.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = body();
    if blocked {
        // SAFETY: `before` was initialised by the call that succeeded.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

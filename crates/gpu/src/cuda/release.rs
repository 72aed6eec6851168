//! What has to be released later, elsewhere, and without holding up a rank.
//!
//! Freeing memory, unpinning it, unmapping it and closing a handle may wait for all work on the device,
//! on its peers too, and while such a call waits the driver may let no other thread of the process
//! launch. If one of the kernels it waits for spins for a rank of this process that has still to launch
//! its own, neither ends. So the rule, "nothing that may wait for the device is called once a kernel of
//! ours can be spinning", is kept like this:
//!
//! - *A drop releases nothing.* It notes what is to be released, behind points in all streams of the
//!   device, and returns.
//! - *The release thread* releases what is behind its points at a quiet moment: it closes the [gate](Gate)
//!   that every launch of ours passes, looks at all streams, and releases one thing if no kernel of ours
//!   is running. None can begin before it has done. Nobody waits for this thread; a launch may, for as
//!   long as one release takes on a device that runs nothing of ours.
//! - *Calls that may wait for the device by their own contract* (allocating, importing,
//!   [`Device::reclaim`](crate::Device::reclaim)) release what is behind its points on the caller's
//!   thread: there the caller has said that no kernel waits for it. So what is dropped and allocated in
//!   turns does not pile up, however busy the device is.
//! - In a process that has used *a stream of somebody else* the thread releases nothing. There is work
//!   then that cannot be looked at, replays of graphs with kernels of ours among it, and a quiet moment
//!   cannot be known. The calls above release.
//! - What is left *when the process ends* goes with its context.
//!
//! Invariant: nothing is released before all work that our streams, and streams of others that are in
//! use here, had when it was dropped has been done. A stream that is being captured cannot be asked;
//! what is dropped meanwhile waits until it can be. What captured launches use the graph keeps.
//!
//! The driver's callbacks, which may make no CUDA calls, hand what they hold to the same thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard,
    RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

use crate::cuda::device::Gpu;
use crate::cuda::streams::{Points, all_are_quiet};
use crate::{Error, Result};

const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// What every launch of ours passes, and what is closed for a release.
pub(super) struct Gate(RwLock<()>);

impl Gate {
    const fn new() -> Gate {
        Gate(RwLock::new(()))
    }

    /// Held while work is launched.
    pub(super) fn pass(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closed as long as the guard lives; none if a launch is under way. Never waits: a launch can be
    /// blocked by a full queue until a kernel ends, and others must get past it.
    fn close(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.0.try_write() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The gate of this process.
pub(super) static GATE: Gate = Gate::new();

/// What has to pass before a release.
pub(super) trait Due: Send {
    fn is_due(&mut self) -> bool;
}

struct Entry<D> {
    ordinal: u32,
    due: D,
    release: Box<dyn FnOnce() + Send>,
}

/// What waits to be released.
struct Waiting<D> {
    state: Mutex<State<D>>,
    changed: Condvar,
    /// Held by who has taken entries out to look at them, so that nobody misses one.
    sweeping: Mutex<()>,
}

struct State<D> {
    entries: Vec<Entry<D>>,
    /// To be dropped on the release thread, no more.
    held: Vec<Arc<dyn Any + Send + Sync>>,
}

impl<D: Due> Waiting<D> {
    const fn new() -> Self {
        let state = State { entries: Vec::new(), held: Vec::new() };
        Waiting { state: Mutex::new(state), changed: Condvar::new(), sweeping: Mutex::new(()) }
    }

    /// Held for moments only, and never while CUDA is called: the driver's callbacks take it.
    fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, ordinal: u32, due: D, release: Box<dyn FnOnce() + Send>) {
        self.lock().entries.push(Entry { ordinal, due, release });
        self.changed.notify_one();
    }

    fn hold(&self, held: Arc<dyn Any + Send + Sync>) {
        self.lock().held.push(held);
        self.changed.notify_one();
    }

    /// Releases what is due of one device, on this thread, which may wait for the device.
    fn release_due(&self, ordinal: u32) {
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        let of_device = {
            let mut state = self.lock();
            let all = std::mem::take(&mut state.entries);
            let (of_device, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|entry| entry.ordinal == ordinal);
            state.entries = others;
            of_device
        };
        for mut entry in of_device {
            if entry.due.is_due() {
                quietly(entry.release);
            } else {
                self.lock().entries.push(entry);
            }
        }
    }

    /// Releases one thing that is due, at a quiet moment; false if there is none, of either.
    fn release_one(&self, gate: &Gate, is_quiet: impl FnOnce() -> bool) -> bool {
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = std::mem::take(&mut self.lock().entries);
        let due = entries.iter_mut().position(|entry| entry.due.is_due());
        let due = due.and_then(|at| {
            // Closed before the streams are looked at: nothing begins between the look and the end.
            let closed = gate.close().filter(|_| is_quiet())?;
            Some((closed, entries.swap_remove(at)))
        });
        self.lock().entries.append(&mut entries);
        let Some((closed, entry)) = due else { return false };
        quietly(entry.release);
        drop(closed);
        true
    }

    /// The release thread.
    fn run(&self, gate: &Gate, is_quiet: impl Fn() -> bool) -> ! {
        let mut pause = FIRST_PAUSE;
        loop {
            let held = {
                let mut state = self.lock();
                if state.entries.is_empty() && state.held.is_empty() {
                    pause = FIRST_PAUSE;
                    let idle =
                        |state: &mut State<D>| state.entries.is_empty() && state.held.is_empty();
                    let waited = self.changed.wait_while(state, idle);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
                std::mem::take(&mut state.held)
            };
            for held in held {
                quietly(|| drop(held));
            }
            if self.release_one(gate, &is_quiet) {
                pause = FIRST_PAUSE;
            } else {
                let state = self.lock();
                if !state.held.is_empty() {
                    continue;
                }
                let waited = self.changed.wait_timeout(state, pause);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// A panic in somebody's destructor must not end the thread that everybody needs.
fn quietly(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

static WAITING: Waiting<Points> = Waiting::new();

/// Starts the release thread, once; an error if the process may start no more threads.
pub(super) fn start() -> Result<()> {
    static STARTED: OnceLock<bool> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        let thread = std::thread::Builder::new().name("mscclrs-release".into());
        thread.spawn(|| WAITING.run(&GATE, all_are_quiet)).is_ok()
    });
    started.then_some(()).ok_or_else(|| Error::System {
        call: "start of the release thread",
        source: std::io::Error::from(std::io::ErrorKind::OutOfMemory),
    })
}

/// Drops `held` on the thread; for callbacks of the driver. [`start`] was called before.
pub(super) fn hand_over(held: Arc<dyn Any + Send + Sync>) {
    WAITING.hold(held);
}

/// Has `release` run once it holds nobody up, see above. Never waits, and runs nothing itself.
pub(super) fn later(gpu: &'static Gpu, release: impl FnOnce() + Send + 'static) {
    WAITING.push(gpu.ordinal, gpu.points(), Box::new(release));
    // Without the thread the calls that may wait release it.
    let _ = start();
}

/// Releases what can be, on this thread, which may wait for the device.
pub(super) fn now(gpu: &'static Gpu) {
    WAITING.release_due(gpu.ordinal);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    /// Due once it is set.
    #[derive(Clone, Default)]
    struct Flag(Arc<AtomicBool>);

    impl Flag {
        fn set(&self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    impl Due for Flag {
        fn is_due(&mut self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[derive(Clone, Default)]
    struct Count(Arc<AtomicU32>);

    impl Count {
        fn up(&self) -> Box<dyn FnOnce() + Send> {
            let count = self.0.clone();
            Box::new(move || {
                count.fetch_add(1, Ordering::SeqCst);
            })
        }

        fn get(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn a_release_waits_for_its_points_for_launches_and_for_quiet() {
        let (waiting, gate) = (Waiting::<Flag>::new(), Gate::new());
        let (flag, count) = (Flag::default(), Count::default());
        waiting.push(0, flag.clone(), count.up());
        let quiet = |is: bool| waiting.release_one(&gate, || is);
        assert!(!quiet(true), "its points have not passed");
        flag.set();
        let launching = gate.pass();
        assert!(!quiet(true), "a launch is under way");
        drop(launching);
        assert!(!quiet(false), "a kernel runs");
        assert_eq!(count.get(), 0);
        assert!(quiet(true));
        assert_eq!(count.get(), 1);
        assert!(!quiet(true), "once");
    }

    #[test]
    fn nothing_is_launched_while_something_is_released() {
        let (waiting, gate) = (Waiting::<Flag>::new(), Gate::new());
        let (flag, launched) = (Flag::default(), Arc::new(AtomicBool::new(false)));
        flag.set();
        let (begun, begin) = std::sync::mpsc::channel();
        let seen = Arc::new(AtomicBool::new(true));
        let release = {
            let (launched, seen) = (launched.clone(), seen.clone());
            move || {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(30));
                seen.store(launched.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        };
        waiting.push(0, flag, Box::new(release));
        std::thread::scope(|scope| {
            let (gate, launched) = (&gate, &launched);
            scope.spawn(move || {
                begin.recv().unwrap();
                let _pass = gate.pass();
                launched.store(true, Ordering::SeqCst);
            });
            assert!(waiting.release_one(gate, || true));
        });
        assert!(!seen.load(Ordering::SeqCst), "a launch passed a closed gate");
        assert!(launched.load(Ordering::SeqCst), "it passed when the gate was open again");
    }

    #[test]
    fn calls_that_may_wait_release_what_is_due_of_their_device() {
        let waiting = Waiting::<Flag>::new();
        let (due, count) = (Flag::default(), Count::default());
        due.set();
        waiting.push(0, due.clone(), count.up());
        waiting.push(1, due.clone(), count.up());
        waiting.push(0, Flag::default(), count.up());
        // Its release drops something else that has to be released.
        let waiting: &'static Waiting<Flag> = Box::leak(Box::new(waiting));
        let again = (due.clone(), count.up());
        waiting.push(0, due, Box::new(move || waiting.push(0, again.0, again.1)));
        waiting.release_due(0);
        assert_eq!(count.get(), 1);
        waiting.release_due(0);
        assert_eq!(count.get(), 2);
        waiting.release_due(1);
        assert_eq!((count.get(), waiting.lock().entries.len()), (3, 1));
    }

    #[test]
    fn the_thread_releases_when_it_can_and_survives_panics() {
        let waiting: &'static Waiting<Flag> = Box::leak(Box::new(Waiting::new()));
        let gate: &'static Gate = Box::leak(Box::new(Gate::new()));
        let quiet: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        // Ends with the process.
        std::thread::spawn(|| waiting.run(gate, || quiet.load(Ordering::SeqCst)));
        let (due, count) = (Flag::default(), Count::default());
        due.set();
        let panics = || std::panic::resume_unwind(Box::new("on purpose"));
        waiting.push(0, due.clone(), Box::new(panics));
        for _ in 0..50 {
            waiting.push(0, due.clone(), count.up());
        }
        struct Held(Count);
        impl Drop for Held {
            fn drop(&mut self) {
                (self.0.up())();
            }
        }
        let held = Count::default();
        waiting.hold(Arc::new(Held(held.clone())));
        let wait_for = |what: &str, done: &dyn Fn() -> bool| {
            let since = std::time::Instant::now();
            while !done() {
                assert!(since.elapsed() < Duration::from_secs(10), "{what}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for("what callbacks hand over needs no quiet", &|| held.get() == 1);
        assert_eq!(count.get(), 0, "a kernel runs");
        quiet.store(true, Ordering::SeqCst);
        wait_for("everything is released", &|| count.get() == 50);
    }
}

//! The CPU device's side of the contract.
//!
//! A GPU thread ("lane") is a fiber of the simulator; while it runs, its [`Engine`] is installed in a
//! thread-local. Without an engine, device code runs as a single lane of a 1 x 1 grid, so that it has
//! plain unit tests.

mod engine;
mod memory;
mod numbers;

use core::cell::{Cell, UnsafeCell};
use core::panic::Location;
use core::sync::atomic::{AtomicBool, Ordering};

pub use engine::{Access, Bits, Coords, Engine, Op, Spin, read_raw, write_raw};
use memory::plain;
pub use memory::{Atom, Plain, load_pair, store_pair};
pub use numbers::*;

use crate::atomic::Scope;

/// Whether accesses go through the engines. Off in fast mode, at no cost but one branch.
pub static WATCHED: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    static CURRENT: Cell<Option<*const dyn Engine>> = const { Cell::new(None) };
    static ALONE: UnsafeCell<[u64; 6144]> = const { UnsafeCell::new([0; 6144]) };
}

/// Installs the engine of the lane that runs next on this thread; gives the one before.
///
/// # Safety
/// The engine outlives its being installed, and calls on it come from this thread only.
pub unsafe fn set_engine(engine: Option<*const dyn Engine>) -> Option<*const dyn Engine> {
    CURRENT.with(|c| c.replace(engine))
}

#[inline]
fn engine() -> Option<&'static dyn Engine> {
    // SAFETY: `set_engine`'s promise.
    CURRENT.with(|c| c.get().map(|e| unsafe { &*e }))
}

const ALONE_COORDS: Coords = Coords { thread: 0, block: 0, block_dim: 1, grid_dim: 1 };

#[inline]
fn coords() -> Coords {
    engine().map_or(ALONE_COORDS, |e| e.coords())
}

/// The engine, where accesses go through it.
#[inline]
fn watcher() -> Option<&'static dyn Engine> {
    if WATCHED.load(Ordering::Relaxed) { engine() } else { None }
}

/// Index of the lane in its block.
#[inline]
pub fn thread_idx() -> u32 {
    coords().thread
}

/// Index of the block in its grid.
#[inline]
pub fn block_idx() -> u32 {
    coords().block
}

/// Lanes a block.
#[inline]
pub fn block_dim() -> u32 {
    coords().block_dim
}

/// Blocks of the grid.
#[inline]
pub fn grid_dim() -> u32 {
    coords().grid_dim
}

/// Index of the lane in its warp of 32.
#[inline]
pub fn lane() -> u32 {
    thread_idx() & 31
}

/// Waits for all lanes of the block that have not exited; orders their memory accesses.
#[inline]
#[track_caller]
pub fn block_sync() {
    if let Some(engine) = engine() {
        engine.block_any(false, Location::caller());
    }
}

/// As [`block_sync`], and gives every lane whether the predicate holds on any lane.
#[inline]
#[track_caller]
pub fn block_any(predicate: bool) -> bool {
    let from = Location::caller();
    engine().map_or(predicate, |e| e.block_any(predicate, from))
}

/// Waits for the lanes of `mask` in this warp; orders their memory accesses.
#[inline]
#[track_caller]
pub fn warp_sync(mask: u32) {
    if let Some(engine) = engine() {
        engine.warp_sync(mask, Location::caller());
    }
}

/// The value of lane `lane ^ lane_mask`; every lane of `mask` takes part.
#[inline]
#[track_caller]
pub fn shuffle_xor(mask: u32, value: u32, lane_mask: u32) -> u32 {
    let from = Location::caller();
    engine().map_or(value, |e| e.warp_exchange(mask, value, lane_mask, from))
}

/// Bit i is lane i's predicate; every lane of `mask` takes part.
#[inline]
#[track_caller]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    let from = Location::caller();
    engine().map_or(predicate as u32, |e| e.warp_ballot(mask, predicate, from))
}

/// Nanoseconds of a clock that all lanes share.
#[inline]
pub fn global_timer_ns() -> u64 {
    if let Some(now) = engine().and_then(|engine| engine.now()) {
        return now;
    }
    machine_ns()
}

/// As [`global_timer_ns`], of the machine, whatever clock the lane has.
pub fn machine_ns() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    1 + START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

/// Ends the program: a broken invariant.
pub fn trap() -> ! {
    panic!("device trap")
}

/// A value that is worked out before what follows, however late it is used.
#[inline]
pub fn settle(value: u64) -> u64 {
    value
}

/// Whether [`spin`] returns only when the word has changed or a look is due.
pub const SPIN_SUSPENDS: bool = true;

/// Polls of a wait for one call of [`spin`].
#[inline]
pub const fn polls_a_spin() -> u32 {
    1
}

/// Said first in a loop: its body is not written out several times.
#[inline]
pub fn keep_rolled() {}

/// A count of nanoseconds, from no particular moment on, that wraps; of cycles on a GPU.
#[inline]
pub fn cycles() -> u32 {
    global_timer_ns() as u32
}

/// Does nothing for some cycles of a GPU; here no time at all.
#[inline]
pub fn pause(_cycles: u32) {}

/// One fruitless poll; true asks the wait to look at the abort word and the clock now.
#[inline]
#[track_caller]
pub fn spin(at: *const u64, seen: u64, abort: *const u32, what: &'static str) -> bool {
    match engine() {
        Some(engine) => engine.spin(Spin { at, seen, abort, what, from: Location::caller() }),
        None => {
            std::thread::yield_now();
            true
        }
    }
}

/// Orders this lane's accesses before and after it, as `fence.acq_rel` of the scope does.
#[inline]
pub fn fence<S: Scope>() {
    match watcher() {
        Some(engine) => engine.fence(S::KIND),
        None => core::sync::atomic::fence(Ordering::AcqRel),
    }
}

/// A wait of this lane ends early, or it learns that one of its rank has: what follows does without what
/// that would have brought. Told before anything else is touched.
#[inline]
pub fn wait_ended_early() {
    if let Some(engine) = engine() {
        engine.wait_ended_early();
    }
}

/// Base of the block's shared memory, as an offset that the shared accesses take.
#[inline]
pub fn shared_base() -> u32 {
    0
}

fn shared(at: u32) -> *mut u8 {
    let base = engine().map_or_else(|| ALONE.with(|a| a.get().cast()), |e| e.shared());
    base.wrapping_add(at as usize)
}

/// A 4-byte word of the block's shared memory.
#[inline]
#[track_caller]
pub fn shared_load(at: u32) -> u32 {
    if let Some(engine) = watcher() {
        engine.shared_access(plain(at as usize, 4, Op::Load));
    }
    // SAFETY: the launch's promise: `at` lies in the shared memory it asked for.
    unsafe { shared(at).cast::<u32>().read() }
}

/// A 4-byte word of the block's shared memory.
#[inline]
#[track_caller]
pub fn shared_store(at: u32, value: u32) {
    if let Some(engine) = watcher() {
        engine.shared_access(plain(at as usize, 4, Op::Store));
    }
    // SAFETY: as in `shared_load`.
    unsafe { shared(at).cast::<u32>().write(value) }
}

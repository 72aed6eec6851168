//! One lane: the engine that device code calls while the lane runs, and the fiber it runs on.
//!
//! Invariant: a lane's fiber never leaves the scheduler thread that made it, so thread-locals that
//! device code reads mean the same thread before and after a wait. No borrow of the block's state is
//! held while the lane is suspended.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use corosensei::{Coroutine, CoroutineResult, Yielder};
use mscclrs_device::arch::host::{
    Access, Bits, Coords, Engine, Spin, read_raw, set_engine, write_raw,
};
use mscclrs_device::{Kernel, ScopeKind};

use crate::block::{BlockState, Slot, WarpOperation};
use crate::exact::Watch;
use crate::stack::Stack;

/// A lane's code on a stack of its own. What it returns is the payload of a panic.
pub(crate) type Fiber = Coroutine<(), (), Option<Box<dyn Any + Send>>, Stack>;

/// What a lane is doing, for reports.
#[derive(Clone, Copy, Default)]
pub(crate) enum Waiting {
    #[default]
    No,
    Barrier(&'static Location<'static>),
    Warp(u32, &'static Location<'static>),
    Word(Spin),
}

/// What device code sees of its lane.
pub(crate) struct Lane {
    coords: Coords,
    block: *const BlockState,
    yielder: Cell<*const Yielder<(), ()>>,
    pub(crate) waiting: Cell<Waiting>,
    /// What a warp operation gives.
    pub(crate) result: Cell<u32>,
    /// Whether the wait has to look at the abort word and the clock.
    pub(crate) look: Cell<bool>,
    /// The word and value of a wait that only its timer ended: to wait for the same again is no
    /// progress.
    pub(crate) fruitless: Cell<(usize, u64)>,
    /// Whether it is about to make an access that others can take part in synchronising by.
    pub(crate) parked: Cell<bool>,
}

impl Lane {
    pub(crate) fn new(coords: Coords, block: *const BlockState) -> Self {
        Lane {
            coords,
            block,
            yielder: Cell::new(std::ptr::null()),
            waiting: Cell::default(),
            result: Cell::new(0),
            look: Cell::new(false),
            fruitless: Cell::new((0, 0)),
            parked: Cell::new(false),
        }
    }

    fn block(&self) -> &BlockState {
        // SAFETY: a block's state outlives its lanes: both lie in one `Block`, which ends its fibers
        // before it is dropped.
        unsafe { &*self.block }
    }

    fn suspend(&self, waiting: Waiting) {
        self.waiting.set(waiting);
        // SAFETY: set when the fiber began, and valid as long as it has not ended; only code of this
        // lane's own fiber gets here.
        unsafe { (*self.yielder.get()).suspend(()) };
        self.waiting.set(Waiting::No);
    }

    /// The world that watches, and this lane's number there.
    fn watch(&self) -> Option<(&Watch, u32)> {
        let (watch, first) = self.block().watch.as_ref()?;
        Some((watch, first + self.coords.thread))
    }

    /// Before an access: where it is a decision who makes his next, the scheduler decides. A lane that
    /// only a timer woke looks at what it waits for and decides nothing.
    #[inline(always)]
    fn park(&self, watch: &Watch, access: &Access) {
        if watch.decides_before(access) && !self.looks() {
            self.wait_for_decision(watch);
        }
    }

    #[cold]
    fn wait_for_decision(&self, watch: &Watch) {
        self.parked.set(true);
        self.block().get_ready(self.coords.thread);
        self.suspend(Waiting::No);
        self.parked.set(false);
        // Something was found: the scheduler ends this fiber.
        while watch.has_failed() {
            self.suspend(Waiting::No);
        }
    }

    /// Whether only a timer woke it, and it has done nothing since.
    pub(crate) fn looks(&self) -> bool {
        self.fruitless.get() != (0, 0)
    }

    /// After an access: others may get their turn.
    fn make_room(&self, watch: &Watch, is_turn_over: bool) {
        if is_turn_over {
            self.block().get_ready(self.coords.thread);
            self.suspend(Waiting::No);
        }
        // Something was found: the scheduler ends this fiber.
        while watch.has_failed() {
            self.suspend(Waiting::No);
        }
    }

    fn warp(
        &self,
        mask: u32,
        value: u32,
        operation: WarpOperation,
        from: &'static Location<'static>,
    ) -> u32 {
        let block = self.block();
        block.progress.set(true);
        if !block.meet(self.coords.thread, Slot { mask, value, operation, from }) {
            self.suspend(Waiting::Warp(mask, from));
        }
        self.result.get()
    }
}

impl Engine for Lane {
    fn coords(&self) -> Coords {
        self.coords
    }

    fn block_any(&self, predicate: bool, from: &'static Location<'static>) -> bool {
        let block = self.block();
        block.progress.set(true);
        if !block.arrive(self.coords.thread, predicate, from) {
            self.suspend(Waiting::Barrier(from));
        }
        block.verdict()
    }

    fn warp_exchange(
        &self,
        mask: u32,
        value: u32,
        lane_mask: u32,
        from: &'static Location<'static>,
    ) -> u32 {
        self.warp(mask, value, WarpOperation::Exchange(lane_mask), from)
    }

    fn warp_ballot(&self, mask: u32, predicate: bool, from: &'static Location<'static>) -> u32 {
        self.warp(mask, predicate as u32, WarpOperation::Ballot, from)
    }

    fn warp_sync(&self, mask: u32, from: &'static Location<'static>) {
        self.warp(mask, 0, WarpOperation::Sync, from);
    }

    fn spin(&self, spin: Spin) -> bool {
        let block = self.block();
        let again = self.fruitless.get() == (spin.at as usize, spin.seen);
        if !again {
            block.progress.set(true);
        }
        if let Some((watch, who)) = self.watch() {
            watch.waits(who, again);
        }
        block.watch_word(self.coords.thread, spin);
        self.suspend(Waiting::Word(spin));
        self.look.get()
    }

    fn shared(&self) -> *mut u8 {
        self.block().shared()
    }

    fn now(&self) -> Option<u64> {
        let (watch, who) = self.watch()?;
        // Who only looks whether his wait is over changes nothing.
        if !self.looks() {
            let is_over = watch.is_turn_over_at_clock(who);
            self.make_room(watch, is_over);
        }
        Some(watch.now())
    }

    fn wait_ended_early(&self) {
        if let Some((watch, _)) = self.watch() {
            watch.wait_ended_early();
        }
    }

    // Another world of the process may be why accesses come here: then they are what they always are.
    fn load(&self, access: Access) -> Bits {
        let Some((watch, who)) = self.watch() else {
            // SAFETY: the launch's promise: the kernel may read there.
            return unsafe { read_raw(access.address, access.size) };
        };
        self.park(watch, &access);
        let bits = watch.load(who, &access, self.looks());
        self.make_room(watch, watch.is_turn_over());
        bits
    }

    fn store(&self, access: Access, bits: Bits) {
        let Some((watch, who)) = self.watch() else {
            // SAFETY: the launch's promise: the kernel may write there.
            return unsafe { write_raw(access.address, access.size, bits) };
        };
        self.park(watch, &access);
        self.fruitless.set((0, 0));
        watch.store(who, &access, bits);
        self.block().progress.set(true);
        self.make_room(watch, watch.is_turn_over());
    }

    fn modify(&self, access: Access, change: &dyn Fn(u64) -> Option<u64>) -> u64 {
        let Some((watch, who)) = self.watch() else {
            // SAFETY: the launch's promise: the kernel may read and write there.
            return unsafe { modify_raw(access.address, access.size, change) };
        };
        self.park(watch, &access);
        self.fruitless.set((0, 0));
        let before = watch.modify(who, &access, change);
        self.block().progress.set(true);
        self.make_room(watch, watch.is_turn_over());
        before
    }

    fn fence(&self, scope: ScopeKind) {
        match self.watch() {
            Some((watch, who)) => watch.fence(who, scope),
            None => std::sync::atomic::fence(std::sync::atomic::Ordering::AcqRel),
        }
    }

    fn shared_access(&self, access: Access) {
        let Some((watch, who)) = self.watch() else { return };
        let block = self.block();
        watch.shared(who, block.shared_object, block.shared_bytes, &access);
        self.make_room(watch, watch.is_turn_over());
    }
}

/// A read-modify-write, which another thread sees as one step.
///
/// # Safety
/// The address is a multiple of the size, 4 or 8, and the bytes are mapped.
unsafe fn modify_raw(address: usize, size: u32, change: &dyn Fn(u64) -> Option<u64>) -> u64 {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    // SAFETY: the caller's promise.
    unsafe {
        if size == 4 {
            let change = |held: u32| change(held.into()).map(|new| new as u32);
            AtomicU32::from_ptr(address as *mut u32)
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, change)
                .map_or_else(u64::from, u64::from)
        } else {
            let word = AtomicU64::from_ptr(address as *mut u64);
            let changed = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
            changed.unwrap_or_else(|held| held)
        }
    }
}

/// Makes the fiber of a lane; it begins at the first resume.
///
/// # Safety
/// `lane`, what it points to, and `args` outlive the fiber; `args` are the kernel's.
pub(crate) unsafe fn fiber(
    stack: Stack,
    lane: *const Lane,
    kernel: &'static Kernel,
    args: *const u8,
) -> Fiber {
    Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        // SAFETY: the caller's promise.
        unsafe { (*lane).yielder.set(yielder) };
        // Also catches the unwinding of a fiber that is ended while it waits.
        // SAFETY: the caller's promise: the arguments are the kernel's.
        catch_unwind(AssertUnwindSafe(|| unsafe { (kernel.host)(args) })).err()
    })
}

/// Runs a lane until it waits or ends; the outer option is its end.
///
/// # Safety
/// `lane` is the one that `fiber` was made for.
pub(crate) unsafe fn resume(
    fiber: &mut Fiber,
    lane: *const Lane,
) -> Option<Option<Box<dyn Any + Send>>> {
    // SAFETY: the lane outlives the fiber (see `fiber`), and is taken off before this returns.
    let before = unsafe { set_engine(Some(lane as *const dyn Engine)) };
    let result = fiber.resume(());
    // SAFETY: what was installed before is still valid: this frame lies in its.
    unsafe { set_engine(before) };
    match result {
        CoroutineResult::Yield(()) => None,
        CoroutineResult::Return(panic) => Some(panic),
    }
}

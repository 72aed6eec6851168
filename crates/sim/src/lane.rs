//! One lane: the engine that device code calls while the lane runs, and the fiber it runs on.
//!
//! Invariant: a lane's fiber never leaves the scheduler thread that made it, so thread-locals that
//! device code reads mean the same thread before and after a wait. No borrow of the block's state is
//! held while the lane is suspended.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::{Coroutine, CoroutineResult, Yielder};
use mscclrs_device::Kernel;
use mscclrs_device::arch::host::{Access, Coords, Engine, Spin, set_engine};

use crate::block::BlockState;
use crate::stack::Stack;

/// A lane's code on a stack of its own. What it returns is the payload of a panic.
pub(crate) type Fiber = Coroutine<(), (), Option<Box<dyn Any + Send>>, Stack>;

/// What a lane is doing, for reports.
#[derive(Clone, Copy, Default)]
pub(crate) enum Waiting {
    #[default]
    No,
    Barrier,
    Warp(u32),
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

    fn warp(&self, mask: u32, value: u32, operation: crate::block::WarpOperation) -> u32 {
        let block = self.block();
        block.progress.set(true);
        if !block.meet(self.coords.thread, mask, value, operation) {
            self.suspend(Waiting::Warp(mask));
        }
        self.result.get()
    }
}

impl Engine for Lane {
    fn coords(&self) -> Coords {
        self.coords
    }

    fn block_any(&self, predicate: bool) -> bool {
        let block = self.block();
        block.progress.set(true);
        if !block.arrive(self.coords.thread, predicate) {
            self.suspend(Waiting::Barrier);
        }
        block.verdict()
    }

    fn warp_exchange(&self, mask: u32, value: u32, lane_mask: u32) -> u32 {
        self.warp(mask, value, crate::block::WarpOperation::Exchange(lane_mask))
    }

    fn warp_ballot(&self, mask: u32, predicate: bool) -> u32 {
        self.warp(mask, predicate as u32, crate::block::WarpOperation::Ballot)
    }

    fn spin(&self, spin: Spin) -> bool {
        let block = self.block();
        if self.fruitless.get() != (spin.at as usize, spin.seen) {
            block.progress.set(true);
        }
        block.watch(self.coords.thread, spin);
        self.suspend(Waiting::Word(spin));
        self.look.get()
    }

    fn shared(&self) -> *mut u8 {
        self.block().shared()
    }

    fn access(&self, _: Access) {}
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

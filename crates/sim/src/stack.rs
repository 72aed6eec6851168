//! Stacks for fibers, kept for the whole process.
//!
//! A stack costs two system calls and page faults the first time and almost nothing when it is used
//! again, so stacks go back to a pool that all devices share. A scheduler keeps a few at hand, so
//! that a lane that never waits costs no lock.
//!
//! Stacks begin at different offsets in their pages. If all began at the same one, the few lines that
//! a switch touches would share a few sets of the caches, and a barrier of 1024 lanes would miss at
//! each switch.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use corosensei::stack::{DefaultStack, StackPointer};

/// Bytes a stack; a guard page lies below it, so that an overflow ends the program instead of
/// spoiling another lane. What a lane does not touch costs addresses only, and code that is not optimised
/// takes several times as much as code that is.
const STACK_BYTES: usize = 256 * 1024;
/// Different beginnings of stacks, and bytes between them; together at most a page.
const COLOURS: usize = 16;
const COLOUR_BYTES: usize = 256;
/// Stacks moved between a scheduler and the pool at once.
const BATCH: usize = 64;

/// A stack that begins somewhat below the top of its memory.
pub(crate) struct Stack {
    memory: DefaultStack,
    below: usize,
}

impl Stack {
    fn new() -> std::io::Result<Stack> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let colour = NEXT.fetch_add(1, Ordering::Relaxed) % COLOURS;
        let memory = DefaultStack::new(STACK_BYTES + COLOURS * COLOUR_BYTES)?;
        Ok(Stack { memory, below: colour * COLOUR_BYTES })
    }
}

// SAFETY: the memory from `limit` to `base` is a part of the inner stack's, which is at least a page
// longer than what is left out at the top; `base` stays a multiple of 16.
unsafe impl corosensei::stack::Stack for Stack {
    fn base(&self) -> StackPointer {
        let base = self.memory.base().get() - self.below;
        // An address within a mapping; the inner base is as good if it were not.
        StackPointer::new(base).unwrap_or(self.memory.base())
    }

    fn limit(&self) -> StackPointer {
        self.memory.limit()
    }
}

static POOL: Mutex<Vec<Stack>> = Mutex::new(Vec::new());

fn pool() -> std::sync::MutexGuard<'static, Vec<Stack>> {
    // Nothing panics while it is locked; a list of stacks is whole at any time.
    POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The stacks that one scheduler has at hand.
#[derive(Default)]
pub(crate) struct Stacks {
    at_hand: Vec<Stack>,
}

impl Stacks {
    pub(crate) fn take(&mut self) -> std::io::Result<Stack> {
        if self.at_hand.is_empty() {
            let mut pool = pool();
            let keep = pool.len().saturating_sub(BATCH);
            self.at_hand.extend(pool.drain(keep..));
        }
        match self.at_hand.pop() {
            Some(stack) => Ok(stack),
            None => Stack::new(),
        }
    }

    pub(crate) fn give(&mut self, stack: Stack) {
        self.at_hand.push(stack);
        if self.at_hand.len() > 2 * BATCH {
            let keep = self.at_hand.len() - BATCH;
            pool().extend(self.at_hand.drain(keep..));
        }
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        pool().append(&mut self.at_hand);
    }
}

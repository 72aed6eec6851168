//! Stacks for fibers, kept for the whole process.
//!
//! A stack costs two system calls and page faults the first time and almost nothing when it is used
//! again, so stacks go back to a pool that all devices share. A scheduler keeps a few at hand, so
//! that a lane that never waits costs no lock.

use std::sync::Mutex;

use corosensei::stack::DefaultStack;

/// Bytes a stack; a guard page lies below it, so that an overflow ends the program instead of
/// spoiling another lane.
const STACK_BYTES: usize = 64 * 1024;
/// Stacks moved between a scheduler and the pool at once.
const BATCH: usize = 64;

static POOL: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());

fn pool() -> std::sync::MutexGuard<'static, Vec<DefaultStack>> {
    // Nothing panics while it is locked; a list of stacks is whole at any time.
    POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The stacks that one scheduler has at hand.
#[derive(Default)]
pub(crate) struct Stacks {
    at_hand: Vec<DefaultStack>,
}

impl Stacks {
    pub(crate) fn take(&mut self) -> std::io::Result<DefaultStack> {
        if self.at_hand.is_empty() {
            let mut pool = pool();
            let keep = pool.len().saturating_sub(BATCH);
            self.at_hand.extend(pool.drain(keep..));
        }
        match self.at_hand.pop() {
            Some(stack) => Ok(stack),
            None => DefaultStack::new(STACK_BYTES),
        }
    }

    pub(crate) fn give(&mut self, stack: DefaultStack) {
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

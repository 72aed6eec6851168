//! What a thread allocates.
//!
//! Invariant: the counters are the thread's own and have no destructor, so that counting never
//! allocates and works until the thread has ended.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that are held now, less those that were when the count began.
    static HELD: Cell<i64> = const { Cell::new(0) };
    /// The most of them.
    static MOST: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: i64) {
    // Other threads may still allocate while their locals are gone; nobody asks about them.
    let _ = HELD.try_with(|held| {
        let now = held.get().wrapping_add(bytes);
        held.set(now);
        let _ = MOST.try_with(|most| most.set(most.get().max(now)));
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as i64 - layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

/// Runs `work`; gives the most bytes that this thread held during it beyond those it held before.
pub(crate) fn most_held<T>(work: impl FnOnce() -> T) -> (T, u64) {
    HELD.set(0);
    MOST.set(0);
    let result = work();
    (result, MOST.get().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_was_held_at_once_is_counted() {
        let (_, most) = most_held(|| {
            drop(std::hint::black_box(vec![1u8; 5000]));
            drop(std::hint::black_box(vec![0u8; 7000]));
        });
        assert!((7000..8000).contains(&most), "{most}");
        let (_, none) = most_held(|| ());
        assert_eq!(none, 0);
    }
}

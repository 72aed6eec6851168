//! The child of a fork has the memory of its parent, and none of its threads.
//!
//! Invariant: in a child, nothing of a device that was made before the fork is locked or waited for: its
//! scheduler may have held a lock at that moment, and is not there to give it back.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Stopped;

/// How often this process or one of its parents was made by a fork.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that something was made in.
pub(crate) struct Process(u32);

impl Process {
    /// Whether it is this one.
    pub(crate) fn is_this(&self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// An error where it is not.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.is_this() {
            return Ok(());
        }
        Err(Stopped::new(
            "it was opened before a fork, and its threads stayed in the parent; a child opens devices \
             of its own",
        ))
    }
}

/// This process.
impl Default for Process {
    fn default() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            // SAFETY: the hook lives as long as the program, and adds to a number. Where there is no
            // memory for it, forks go unnoticed.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Process(FORKS.load(Ordering::Relaxed))
    }
}

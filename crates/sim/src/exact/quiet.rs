//! While everything waits: when time goes on, and when it is a deadlock.
//!
//! Invariant: the world's clock goes on as the host's does, so that a wait ends at its time limit if that is
//! over before a deadlock is told. How often lanes looked until then changes nothing.

use std::time::{Duration, Instant};

/// Between two times at which the clock goes on, at least: more than lanes wait before they look at it.
const PAUSE: Duration = Duration::from_micros(2500);
/// Looks of many lanes take long: of the time of waiting one part in so many, at most.
const PARTS: u32 = 10;
/// Fruitless looks after which a world that gets nothing more is taken for deadlocked.
const FRUITLESS: u32 = 8;

/// A time in which everything waits.
pub(super) struct Quiet {
    since: Instant,
    /// Up to when the clock has gone on.
    passed: Instant,
    /// After which it goes on again.
    pause: Duration,
    /// How often lanes have looked in vain.
    fruitless: u32,
}

impl Quiet {
    pub(super) fn begin() -> Quiet {
        let now = Instant::now();
        Quiet { since: now, passed: now, pause: PAUSE, fruitless: 0 }
    }

    /// Lets `look` have lanes look after so much time, if it is time for that; true if any did more.
    pub(super) fn pass(&mut self, look: impl FnOnce(Duration) -> bool) -> bool {
        let now = Instant::now();
        let passed = now.duration_since(self.passed);
        if passed < self.pause {
            return false;
        }
        let went_on = look(passed);
        self.passed = now;
        self.pause = PAUSE.max(PARTS * now.elapsed());
        self.fruitless += 1;
        went_on
    }

    /// Whether it has lasted for so long, and lanes have looked often enough.
    pub(super) fn is_longer(&self, limit: Duration) -> bool {
        self.since.elapsed() > limit && self.fruitless > FRUITLESS
    }
}

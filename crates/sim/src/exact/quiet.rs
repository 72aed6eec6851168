//! While everything waits: when time goes on, and when it is a deadlock.
//!
//! Invariant: the world's clock goes on as the host's does, so that a wait ends at its time limit if that is
//! over before a deadlock is told. How often lanes looked until then changes nothing.

use std::time::{Duration, Instant};

/// Between two times at which the clock goes on, at least: more than lanes wait before they look at it.
const PAUSE: Duration = Duration::from_micros(2500);
/// Looks of many lanes take long: between two of them passes so many times as long, at least.
const TIMES: u32 = 4;
/// Fruitless looks after which a world that gets nothing more is taken for deadlocked, at least. Not
/// more: with many lanes they would take many times the limit.
const FRUITLESS: u32 = 2;

/// A time in which everything waits.
pub(super) struct Quiet {
    since: Instant,
    /// Up to when the clock has gone on.
    passed: Instant,
    /// After which it goes on again.
    pause: Duration,
    /// How often lanes have looked in vain.
    fruitless: u32,
    /// How often they had when nobody was about to do anything.
    when_done: Option<u32>,
}

impl Quiet {
    pub(super) fn begin() -> Quiet {
        let now = Instant::now();
        Quiet { since: now, passed: now, pause: PAUSE, fruitless: 0, when_done: None }
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
        self.pause = PAUSE.max(TIMES * now.elapsed());
        self.fruitless += 1;
        went_on
    }

    /// Whether lanes have looked after so much of it, and often enough.
    pub(super) fn is_longer(&self, limit: Duration) -> bool {
        self.passed.duration_since(self.since) > limit && self.fruitless >= FRUITLESS
    }

    /// Whether lanes have looked since nobody was about to do anything: what hosts did last was seen then.
    pub(super) fn looked_since(&mut self, are_done: impl FnOnce() -> bool) -> bool {
        let looked = self.when_done.is_some_and(|looks| self.fruitless > looks);
        if self.when_done.is_some() && !looked {
            return false;
        }
        // Again, since some may have woken meanwhile.
        let done = are_done();
        self.when_done = done.then_some(self.fruitless);
        looked && done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hosts_did_last_is_looked_for_once_more() {
        let mut quiet = Quiet::begin();
        let look = |quiet: &mut Quiet| {
            let looks = quiet.fruitless;
            while quiet.fruitless == looks {
                quiet.pass(|_| false);
                std::thread::sleep(PAUSE);
            }
        };
        look(&mut quiet);
        assert!(!quiet.looked_since(|| false));
        look(&mut quiet);
        assert!(!quiet.looked_since(|| true) && !quiet.looked_since(|| true));
        look(&mut quiet);
        assert!(!quiet.looked_since(|| false), "one has woken");
        assert!(!quiet.looked_since(|| true));
        look(&mut quiet);
        assert!(quiet.looked_since(|| true));
    }

    #[test]
    fn a_deadlock_is_told_after_few_looks_however_long_they_take() {
        let limit = Duration::from_millis(20);
        for look in [0, 30].map(Duration::from_millis) {
            let (mut quiet, begin, mut looks) = (Quiet::begin(), Instant::now(), 0);
            while !quiet.is_longer(limit) {
                assert!(begin.elapsed() < Duration::from_secs(20), "{looks} looks of {look:?}");
                quiet.pass(|_| {
                    looks += 1;
                    std::thread::sleep(look);
                    false
                });
                std::thread::sleep(Duration::from_micros(200));
            }
            assert!(begin.elapsed() > limit && looks >= FRUITLESS, "{looks} looks of {look:?}");
            assert!(look.is_zero() || looks == FRUITLESS, "{looks} looks of {look:?}");
        }
    }
}

//! Who polls in vain, and whether without end.
//!
//! A loop that only reads is told where nobody stores anything any more, after many loads and after the host
//! has had as long to end it as it has to end a wait.

use std::cell::Cell;
use std::time::{Duration, Instant};

use mscclrs_device::arch::host::Access;

use super::finding::FindingKind;
use super::watch::{State, Watch};

/// Loads of what the lane has just read, with nothing else between, after which those who poll poll in
/// vain; and loads of anything.
const ENDLESS: u64 = 1_000_000;
const ENDLESS_ANY: u64 = 64 * ENDLESS;
/// Such loads after which others get their turn at once: one of them may store.
const PATIENCE: u64 = 1_000;
/// Such loads by which everybody had a turn who can go on.
const ALL_HAD_TURNS: u64 = ENDLESS / 16;
/// Words that a poll goes through, at most.
pub(super) const POLLED: usize = 16;

/// Loads of one kind since something was stored.
#[derive(Default)]
struct Loads {
    count: Cell<u64>,
    /// When they were as many as makes others get their turn.
    since: Cell<Option<Instant>>,
}

impl Loads {
    fn set(&self, count: u64) {
        self.count.set(count);
        if count == PATIENCE {
            self.since.set(Some(Instant::now()));
        }
    }

    fn are_endless(&self, most: u64, patience: Duration) -> bool {
        let since = self.since.get().filter(|_| self.count.get() > most);
        since.is_some_and(|since| since.elapsed() >= patience)
    }
}

/// What lanes read since something was stored.
#[derive(Default)]
pub(super) struct Polls {
    /// Of what the lane had just read.
    again: Loads,
    any: Loads,
    /// For so long the host may yet end a poll.
    patience: Cell<Duration>,
}

impl Polls {
    /// Something was stored, or every lane waits.
    #[inline]
    pub(super) fn end(&self) {
        self.again.count.set(0);
        self.any.count.set(0);
    }

    /// A lane has read; whether that goes on without end.
    fn load(&self, again: bool) -> bool {
        self.again.set(if again { self.again.count.get() + 1 } else { 0 });
        self.any.set(self.any.count.get() + 1);
        let patience = self.patience.get();
        self.again.are_endless(ENDLESS, patience) || self.any.are_endless(ENDLESS_ANY, patience)
    }
}

impl Watch {
    /// For how long, by the host's clock, nothing may come that ends a wait.
    pub(super) fn set_patience(&self, patience: Duration) {
        self.polls.patience.set(patience);
    }

    /// Whether all who ran lately only polled.
    pub(super) fn polls_in_vain(&self) -> bool {
        self.polls.again.count.get() > PATIENCE
    }

    /// Whether they did so for so long that nobody else can go on.
    pub(super) fn only_polls(&self) -> bool {
        self.polls.again.count.get() > ALL_HAD_TURNS
    }

    /// A lane looks at the clock. Who does nothing else for too long waits without end.
    pub(super) fn polled_clock(&self, who: u32) {
        if self.polls.load(true) && !self.has_failed() {
            let what = "nothing has been stored for a long time, and this lane goes on looking at the \
                        clock; a wait needs a guard, which ends it on an abort or at its time limit";
            self.report_failure(FindingKind::EndlessPoll, what.into(), who);
        }
    }

    /// A lane has read: whether it, and whoever else runs, does so without end.
    pub(super) fn polled(&self, state: &mut State, who: u32, object: u64, access: &Access) {
        let lane = &mut state.lanes[who as usize];
        let place = object.wrapping_add(access.address as u64);
        let again = lane.read.contains(&place);
        if !again {
            lane.read[usize::from(lane.next_read)] = place;
            lane.next_read = (lane.next_read + 1) % POLLED as u8;
        }
        if self.polls.load(again) && !self.has_failed() {
            let what = "nothing has been stored for a long time, and this lane goes on reading; a poll \
                        needs a guard, which ends it on an abort or at its time limit";
            let finding = state.about(FindingKind::EndlessPoll, what.into(), who, access, None);
            self.found(state, finding);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_loads_are_endless_once_the_host_has_had_its_time() {
        for (again, most) in [(true, ENDLESS), (false, ENDLESS_ANY)] {
            let polls = Polls::default();
            polls.patience.set(Duration::from_secs(3600));
            assert!((0..PATIENCE).all(|_| !polls.load(again)));
            let loads = if again { &polls.again } else { &polls.any };
            loads.count.set(most + 1);
            assert!(!polls.load(again), "the host may yet end it");
            polls.patience.set(Duration::ZERO);
            assert!(polls.load(again));
            polls.end();
            assert!(!polls.load(again));
        }
    }
}

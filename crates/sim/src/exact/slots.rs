//! Slots of clocks: lanes of a block have some that follow each other, and a move of a queue has one.
//!
//! Invariant: a lane knows of all that was done in its slot before it. So slots that were used are taken only
//! by who comes after all that was done there.

use std::collections::BTreeMap;

use super::clock::Known;
use super::watch::Watch;

/// Slots that follow each other: a block's, or a move's one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRun {
    pub(crate) first: u32,
    count: u32,
}

/// Runs that nobody holds: their first slots, by how many slots they have.
#[derive(Debug, Default)]
pub(crate) struct FreeSlots(BTreeMap<u32, Vec<u32>>);

impl FreeSlots {
    pub(crate) fn give(&mut self, runs: impl IntoIterator<Item = SlotRun>) {
        for SlotRun { first, count } in runs {
            self.0.entry(count).or_default().push(first);
        }
    }

    /// The shortest that is long enough and that may be taken; of several the one that was given last.
    fn take(&mut self, count: u32, may: impl Fn(u32) -> bool) -> Option<SlotRun> {
        self.0.range_mut(count..).find_map(|(&count, free)| {
            let at = free.iter().rposition(|&first| may(first))?;
            Some(SlotRun { first: free.remove(at), count })
        })
    }
}

impl Watch {
    /// So many slots or more, for what comes after all that is in `known`: of a queue's own, of those that no
    /// queue holds, or new ones.
    pub(crate) fn take_slots(&self, own: &mut FreeSlots, count: u32, known: &Known) -> SlotRun {
        let state = &mut *self.state.borrow_mut();
        let slots = &mut state.slots;
        let is_known = |slot: u32| {
            let last = slots[slot as usize];
            last == 0 || known.get(slot as usize).is_some_and(|&known| known + 1 >= last)
        };
        // Of a queue's own too: nodes of a graph do not all know of each other.
        let may = |first: u32| (first..first + count).all(is_known);
        own.take(count, may).or_else(|| state.free_slots.take(count, may)).unwrap_or_else(|| {
            // Blocks of ever other sizes can have the same.
            let (first, count) = (slots.len() as u32, count.next_power_of_two());
            slots.resize((first + count) as usize, 0);
            SlotRun { first, count }
        })
    }

    /// Slots whose lanes have ended, and whose queue is gone.
    pub(crate) fn give_slots(&self, free: FreeSlots) {
        let free_slots = &mut self.state.borrow_mut().free_slots;
        for (count, firsts) in free.0 {
            free_slots.0.entry(count).or_default().extend(firsts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Check, Mode};
    use super::*;

    #[test]
    fn the_run_that_fits_best_is_taken_and_no_other() {
        let run = |first, count| SlotRun { first, count };
        let mut free = FreeSlots::default();
        free.give([run(0, 64), run(64, 8), run(72, 32), run(104, 32)]);
        assert_eq!(free.take(128, |_| true), None);
        assert_eq!(free.take(20, |_| true), Some(run(104, 32)));
        assert_eq!(free.take(20, |first| first != 72), Some(run(0, 64)));
        assert_eq!(free.take(1, |_| true), Some(run(64, 8)));
        assert_eq!(free.take(1, |_| true), Some(run(72, 32)));
        assert_eq!(free.take(1, |_| true), None);
    }

    #[test]
    fn only_who_knows_what_was_done_in_a_slot_takes_it() {
        let watch = Watch::new(Mode::new(Check::Checked, 0), false, Default::default());
        let mut own = FreeSlots::default();
        let run = watch.take_slots(&mut own, 2, &Known::default());
        // What was done in its second slot.
        watch.state.borrow_mut().slots[run.first as usize + 1] = 6;
        own.give([run]);
        let ignorant = watch.take_slots(&mut own, 2, &Known::default());
        assert_ne!(ignorant, run);
        assert_ne!(watch.take_slots(&mut own, 2, &vec![0, 4].into()), run);
        // One lane has the first slot, which is new.
        assert_eq!(watch.take_slots(&mut own, 1, &Known::default()), run);
        own.give([run]);
        assert_eq!(watch.take_slots(&mut own, 2, &vec![0, 5].into()), run);
        // And so of those of queues that are gone.
        own.give([run, ignorant]);
        watch.give_slots(own);
        let mut own = FreeSlots::default();
        assert_eq!(watch.take_slots(&mut own, 2, &Known::default()), ignorant);
        assert_eq!(watch.take_slots(&mut own, 2, &vec![0, 5].into()), run);
    }

    #[test]
    fn blocks_of_all_sizes_take_few_slots() {
        let watch = Watch::new(Mode::new(Check::Checked, 0), false, Default::default());
        let mut own = FreeSlots::default();
        for count in 1..=1024 {
            let run = watch.take_slots(&mut own, count, &Known::default());
            own.give([run]);
        }
        assert!(watch.state.borrow().slots.len() < 2048);
    }
}

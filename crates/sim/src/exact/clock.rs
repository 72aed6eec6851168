//! Vector clocks: what each lane knows of what the others have done.
//!
//! A lane has a slot and counts time in it; its clock holds, for every slot, up to which time what was
//! done there happened before what the lane does now. Lanes of later launches take the slots of lanes
//! that ended before them, and go on counting where those stopped.
//!
//! Clocks are shared until one changes: after a barrier all lanes of a block have the same one.

use std::rc::Rc;

/// What is known of all slots.
pub(crate) type Known = Rc<Vec<u32>>;

/// What a lane knew at some moment, and what it had done itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moment {
    /// Perhaps without what was done in the slot.
    known: Known,
    slot: u32,
    time: u32,
}

impl Moment {
    /// One at which nothing was done.
    pub(crate) fn of(known: Known) -> Moment {
        Moment { known, slot: 0, time: 0 }
    }

    /// Adds what it knew.
    pub(crate) fn add_to(&self, known: &mut Known) {
        join(known, &self.known);
        if self.time > known.get(self.slot as usize).copied().unwrap_or(0) {
            set(known, self.slot, self.time);
        }
    }

    /// Whether what was done in `slot` at `time` had happened.
    pub(crate) fn knows(&self, slot: u32, time: u32) -> bool {
        let known = self.known.get(slot as usize).copied().unwrap_or(0);
        time <= if slot == self.slot { known.max(self.time) } else { known }
    }

    /// Whether its lane, as of then, is known there.
    pub(crate) fn is_known_by(&self, clock: &Clock) -> bool {
        clock.knows(self.slot, self.time)
    }

    /// What either knew.
    pub(crate) fn join(&mut self, other: &Moment) {
        if self.slot == other.slot && Rc::ptr_eq(&self.known, &other.known) {
            self.time = self.time.max(other.time);
        } else {
            other.add_to(&mut self.known);
        }
    }

    /// Whether it is the same one.
    pub(crate) fn is(&self, other: &Moment) -> bool {
        (self.slot, self.time) == (other.slot, other.time) && Rc::ptr_eq(&self.known, &other.known)
    }
}

/// The clock of one lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    pub(crate) slot: u32,
    /// The lane's own time, ahead of what `known` says of its slot.
    pub(crate) time: u32,
    known: Known,
    /// Part of it, as others know it: what they release again and again is taken in once.
    taken_in: [Option<Known>; TAKEN_IN],
    next: usize,
}

/// Peers of whose knowledge a lane remembers to have it.
const TAKEN_IN: usize = 4;

impl Clock {
    pub(crate) fn new(slot: u32, time: u32, known: Known) -> Clock {
        Clock { slot, time, known, ..Default::default() }
    }

    /// Whether what was done in `slot` at `time` happened before.
    pub(crate) fn knows(&self, slot: u32, time: u32) -> bool {
        if slot == self.slot {
            return time <= self.time;
        }
        self.known.get(slot as usize).is_some_and(|&known| time <= known)
    }

    /// What it knows of other slots.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// All that happened up to now; what comes after it is later.
    pub(crate) fn release(&mut self) -> Moment {
        let moment = Moment { known: self.known.clone(), slot: self.slot, time: self.time };
        self.time += 1;
        moment
    }

    /// What was known there is known here.
    pub(crate) fn acquire(&mut self, moment: &Moment) {
        let is_in = |known: &Known| Rc::ptr_eq(known, &moment.known);
        if !self.taken_in.iter().flatten().any(is_in) {
            join(&mut self.known, &moment.known);
            self.taken_in[self.next] = Some(moment.known.clone());
            self.next = (self.next + 1) % TAKEN_IN;
        }
        if !self.knows(moment.slot, moment.time) {
            set(&mut self.known, moment.slot, moment.time);
        }
    }
}

/// All that was done in a slot up to a time is known.
pub(crate) fn set(known: &mut Known, slot: u32, time: u32) {
    let known = Rc::make_mut(known);
    if known.len() <= slot as usize {
        known.resize(slot as usize + 1, 0);
    }
    known[slot as usize] = time;
}

/// What either knows.
pub(crate) fn join(known: &mut Known, other: &Known) {
    if Rc::ptr_eq(known, other) || other.is_empty() {
        return;
    }
    if known.is_empty() {
        *known = other.clone();
        return;
    }
    let known = Rc::make_mut(known);
    if known.len() < other.len() {
        known.resize(other.len(), 0);
    }
    for (known, other) in known.iter_mut().zip(other.iter()) {
        *known = (*known).max(*other);
    }
}

/// Lanes that meet: what happened before on any of them happened before what comes after on all.
pub(crate) fn meet<'a>(clocks: impl Iterator<Item = &'a mut Clock>) {
    let mut clocks: Vec<&mut Clock> = clocks.collect();
    let mut all = Known::default();
    for clock in &clocks {
        join(&mut all, &clock.known);
    }
    for clock in &mut clocks {
        set(&mut all, clock.slot, clock.time);
    }
    for clock in clocks {
        clock.known = all.clone();
        clock.time += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes() -> [Clock; 3] {
        [0, 1, 2].map(|slot| Clock::new(slot, 1, Known::default()))
    }

    #[test]
    fn only_what_was_released_and_acquired_is_known() {
        let [mut a, mut b, c] = lanes();
        let before = a.time;
        let released = a.release();
        let after = a.time;
        assert!(!b.knows(0, before));
        b.acquire(&released);
        assert!(b.knows(0, before) && !b.knows(0, after) && !c.knows(0, before));
        assert!(a.knows(0, after));
    }

    #[test]
    fn what_is_known_is_passed_on() {
        let [mut a, mut b, mut c] = lanes();
        let time = a.time;
        b.acquire(&a.release());
        c.acquire(&b.release());
        assert!(c.knows(0, time));
    }

    #[test]
    fn a_meeting_orders_all_that_came_before_it() {
        let [mut a, mut b, mut c] = lanes();
        let (before, other) = (a.time, c.time);
        meet([&mut a, &mut b].into_iter());
        assert!(b.knows(0, before) && !b.knows(0, a.time) && !b.knows(2, other));
        c.acquire(&b.release());
        assert!(c.knows(0, before));
    }
}

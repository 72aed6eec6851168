//! Copies, fills and uploads of queues: they touch memory as kernels do, and nothing but queues, events and
//! the host orders them.
//!
//! A cell remembers the last move that read all of it and the last that wrote all of it. What a move writes
//! in part, at its ends, is compared to what came before and not remembered.

use std::num::NonZeroU32;

use super::cells::{CellMut, PAGE_BYTES, Page, Untouched};
use super::clock::{Known, set};
use super::finding::{Finding, FindingKind};
use super::memory::{Found, MemoryOwner};
use super::mode::Check;
use super::stamps::{Kinds, Stamp};
use super::watch::{BlockInfo, State, Watch};

/// A move of bytes by a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveInfo {
    pub(super) slot: u32,
    pub(super) time: u32,
    pub(super) device: u32,
    pub(super) name: &'static str,
}

impl Watch {
    /// A queue begins to move bytes, in a slot of its own; gives the move's number.
    pub(crate) fn begin_move(&self, slot: u32, device: u32, name: &'static str) -> u32 {
        let state = &mut *self.state.borrow_mut();
        let next = &mut state.slots[slot as usize];
        let time = (*next).max(1);
        *next = time + 1;
        state.moves.push(MoveInfo { slot, time, device, name });
        state.moves.len() as u32
    }

    /// A move has read and written so many bytes.
    pub(crate) fn moved(
        &self,
        number: u32,
        known: &Known,
        (from, to): (Option<u64>, u64),
        bytes: u64,
    ) {
        let Some(number) = NonZeroU32::new(number).filter(|_| bytes > 0) else { return };
        let state = &mut *self.state.borrow_mut();
        state.refresh();
        let unwritten = from.map_or(Vec::new(), |from| state.unwritten(from, bytes));
        let read = from.and_then(|from| state.moved(number, known, (from, bytes), false));
        let race = read.or(state.moved(number, known, (to, bytes), true));
        state.hand_on_unwritten(to, &unwritten);
        if let Some(finding) = race {
            self.found(state, finding);
        }
    }

    /// What comes after a move knows of it.
    pub(crate) fn end_move(&self, number: u32, known: &mut Known) {
        let MoveInfo { slot, time, .. } = self.state.borrow().moves[number as usize - 1];
        set(known, slot, time);
    }
}

/// What a move does not go together with.
enum Other {
    Lane(Stamp),
    Move(NonZeroU32),
}

impl State {
    pub(super) fn move_info(&self, number: NonZeroU32) -> MoveInfo {
        self.moves[number.get() as usize - 1]
    }

    fn moved(
        &mut self,
        number: NonZeroU32,
        known: &Known,
        (address, bytes): (u64, u64),
        writes: bool,
    ) -> Option<Finding> {
        let Found::In { object, offset, owner } = self.view.find(address, bytes) else {
            return None;
        };
        let place = self.cells.place(object);
        let compares = self.mode.check == Check::Checked && !self.spoilt;
        let weak = self.mode.check == Check::Weak;
        let mut other = None;
        let mut at = offset & !7;
        while at < offset + bytes {
            let is_whole = at.is_multiple_of(PAGE_BYTES) && at + PAGE_BYTES <= offset + bytes;
            if let (true, Page::Untouched(page)) = (is_whole, self.cells.page(place, at)) {
                if compares && owner == MemoryOwner::Device && other.is_none() {
                    let moved = (page.moved_to, page.moved_from);
                    let before = moved_before(moved, known, &self.moves, (number, writes));
                    other = before.map(|before| (Other::Move(before), at));
                }
                *page = match writes {
                    true => Untouched { written: true, moved_to: Some(number), moved_from: None },
                    false => Untouched { moved_from: Some(number), ..*page },
                };
                at += PAGE_BYTES;
                continue;
            }
            let (from, to) = (offset.saturating_sub(at), (offset + bytes - at).min(8));
            let mask = ((0xff_u16 << to) ^ (0xff_u16 << from)) as u8;
            let State { cells, moves, blocks, kinds, .. } = self;
            let mut cell = cells.cell(place, at);
            if compares && owner == MemoryOwner::Device && other.is_none() {
                let before =
                    unordered(&cell, (known, moves, blocks, kinds), (number, mask, writes));
                other = before.map(|before| (before, at));
            }
            cell.moved(number, mask, (writes, weak), kinds);
            at += 8;
            // Nothing of what kernels did there counts any more.
            let whole = offset + PAGE_BYTES..=offset + bytes;
            if writes && at.is_multiple_of(PAGE_BYTES) && whole.contains(&at) {
                let page = self.cells.page(place, at - PAGE_BYTES);
                let moved_to = Some(number);
                *page = Page::Untouched(Untouched { written: true, moved_to, moved_from: None });
            }
        }
        let (other, at) = other?;
        Some(self.race_of_move(number, other, (self.cells.number(place), at)))
    }

    /// Which bytes of what is moved nothing has written: how far in they begin, and how many they are.
    fn unwritten(&mut self, from: u64, bytes: u64) -> Vec<(u64, u64)> {
        let found = self.view.find(from, bytes);
        let Found::In { object, offset, owner: MemoryOwner::Device } = found else {
            return Vec::new();
        };
        let place = self.cells.place(object);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut add = |from: u64, count: u64| match ranges.last_mut() {
            Some((first, known)) if *first + *known == from => *known += count,
            _ => ranges.push((from, count)),
        };
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let next = match self.cells.page(place, at) {
                Page::Untouched(page) => {
                    let next = end.min(at - at % PAGE_BYTES + PAGE_BYTES);
                    if !page.written {
                        add(at - offset, next - at);
                    }
                    next
                }
                Page::Touched(_) => {
                    let next = end.min((at & !7) + 8);
                    let written = self.cells.cell(place, at).written();
                    let missing = (at..next).filter(|byte| written & 1 << (byte & 7) == 0);
                    missing.for_each(|byte| add(byte - offset, 1));
                    next
                }
            };
            at = next;
        }
        ranges
    }

    /// What comes from memory that nothing wrote is none that something wrote.
    fn hand_on_unwritten(&mut self, to: u64, ranges: &[(u64, u64)]) {
        for &(from, count) in ranges {
            let Found::In { object, offset, .. } = self.view.find(to + from, count) else {
                continue;
            };
            let place = self.cells.place(object);
            let (mut at, end) = (offset, offset + count);
            while at < end {
                let is_whole = at.is_multiple_of(PAGE_BYTES) && at + PAGE_BYTES <= end;
                if let (true, Page::Untouched(page)) = (is_whole, self.cells.page(place, at)) {
                    page.written = false;
                    at += PAGE_BYTES;
                } else {
                    let next = end.min((at & !7) + 8);
                    let mut cell = self.cells.cell(place, at);
                    let of_these = (at..next).fold(0, |mask, byte| mask | 1 << (byte & 7));
                    cell.set_written(cell.written() & !of_these);
                    at = next;
                }
            }
        }
    }

    fn race_of_move(
        &mut self,
        number: NonZeroU32,
        other: Other,
        (place, at): (u32, u64),
    ) -> Finding {
        let MoveInfo { device, name, .. } = self.move_info(number);
        let (with, site) = match other {
            Other::Lane(stamp) => {
                let text = self.kinds.get(stamp.kind).words();
                let site = self.site(stamp.who(), self.kinds.place(stamp.kind), text);
                ("a kernel's access".to_owned(), Some(site))
            }
            Other::Move(before) => {
                let MoveInfo { device, name, .. } = self.move_info(before);
                (format!("the {name} of a queue of device {device}"), None)
            }
        };
        let what = format!(
            "the {name} of a queue of device {device} comes to memory after {with}, at byte {at:#x} of memory \
             {place}, and nothing orders the two"
        );
        let steps = self.interleaving(&[], Some((place, at)));
        let (kind, mode) = (FindingKind::Race, self.mode.clone());
        Finding { kind, what, here: None, other: site, missing: Some(MISSING.into()), steps, mode }
    }
}

/// What would order a move.
pub(super) const MISSING: &str = "one queue for both, an event that one queue records and the other waits \
                                  for, or a wait of the host between the two";

fn unordered(
    cell: &CellMut<'_>,
    (known, moves, blocks, kinds): (&Known, &[MoveInfo], &[BlockInfo], &Kinds),
    (number, mask, writes): (NonZeroU32, u8, bool),
) -> Option<Other> {
    let knows = |slot: u32, time| known.get(slot as usize).is_some_and(|&known| time <= known);
    let races = |stamp: &Stamp| {
        kinds.get(stamp.kind).mask & mask != 0 && !knows(stamp.slot(blocks), stamp.time)
    };
    if let Some(stamp) = cell.find(writes, races) {
        return Some(Other::Lane(stamp));
    }
    let before = moved_before((cell.moved_to(), cell.moved_from()), known, moves, (number, writes));
    before.map(Other::Move)
}

/// The move before that another one does not go together with.
fn moved_before(
    (moved_to, moved_from): (Option<NonZeroU32>, Option<NonZeroU32>),
    known: &Known,
    moves: &[MoveInfo],
    (number, writes): (NonZeroU32, bool),
) -> Option<NonZeroU32> {
    let knows = |slot: u32, time| known.get(slot as usize).is_some_and(|&known| time <= known);
    let own = moves[number.get() as usize - 1].slot;
    let moved = |&before: &NonZeroU32| {
        let MoveInfo { slot, time, .. } = moves[before.get() as usize - 1];
        // What has the slot of another move comes after it.
        slot != own && !knows(slot, time)
    };
    moved_to.filter(moved).or(moved_from.filter(|_| writes).filter(moved))
}

impl CellMut<'_> {
    /// Nothing that was before counts any more where a move wrote.
    fn moved(&mut self, number: NonZeroU32, mask: u8, (writes, weak): (bool, bool), kinds: &Kinds) {
        if !writes {
            if mask == 0xff {
                self.set_moved_from(Some(number));
            }
            return;
        }
        self.set_written(self.written() | mask);
        // Late loads see whole values.
        if weak || mask == 0xff {
            self.forget_values();
        } else if let Some(values) = self.values(kinds) {
            values.retain_mut(|value| value.keep(!mask));
        }
        self.forget(|stamp| kinds.get(stamp.kind).mask & !mask == 0);
        if mask == 0xff {
            self.set_moved_to(Some(number));
            self.set_moved_from(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FreeSlots;
    use super::*;

    #[test]
    fn what_a_queue_writes_is_written_byte_for_byte() {
        let watch =
            Watch::new(super::super::Mode::new(Check::Checked, 0), false, Default::default());
        let memory = super::super::TestMemory::new(32);
        let slot = watch.take_slots(&mut FreeSlots::default(), 1, &Known::default()).first;
        let number = watch.begin_move(slot, 0, "fill");
        watch.moved(number, &Known::default(), (None, memory.address() + 6), 11);
        watch.moved(number, &Known::default(), (None, memory.address() + 25), 0);
        let state = &mut *watch.state.borrow_mut();
        let Found::In { object, .. } = state.view.find(memory.address(), 8) else { panic!() };
        let place = state.cells.place(object);
        let written = [0, 8, 16, 24].map(|at| state.cells.cell(place, at).written());
        assert_eq!(written, [0b1100_0000, 0xff, 0b0000_0001, 0]);
    }

    #[test]
    fn memory_that_only_queues_touch_has_no_cells() {
        let watch =
            Watch::new(super::super::Mode::new(Check::Checked, 0), false, Default::default());
        let memory = super::super::TestMemory::new(4 * PAGE_BYTES as usize);
        let slot = watch.take_slots(&mut FreeSlots::default(), 1, &Known::default()).first;
        let fill = |from: u64, bytes| {
            let number = watch.begin_move(slot, 0, "fill");
            watch.moved(number, &Known::default(), (None, memory.address() + from), bytes);
        };
        let place = {
            let state = &mut *watch.state.borrow_mut();
            state.refresh();
            let Found::In { object, .. } = state.view.find(memory.address(), 8) else { panic!() };
            state.cells.place(object)
        };
        let untouched = || {
            let state = &mut *watch.state.borrow_mut();
            [0, 1, 2, 3].map(|page| match state.cells.page(place, page * PAGE_BYTES) {
                Page::Untouched(page) => Some(page.written),
                Page::Touched(_) => None,
            })
        };
        fill(PAGE_BYTES - 8, 2 * PAGE_BYTES);
        assert_eq!(untouched(), [None, Some(true), None, Some(false)]);
        let written = [PAGE_BYTES - 16, PAGE_BYTES - 8, PAGE_BYTES, 3 * PAGE_BYTES - 16];
        let written = written.map(|at| watch.state.borrow_mut().cells.cell(place, at).written());
        assert_eq!(written, [0, 0xff, 0xff, 0xff]);
        fill(0, 4 * PAGE_BYTES);
        assert_eq!(untouched(), [Some(true); 4]);
    }
}

//! What is remembered of each 8 bytes of memory: who read and wrote it last, and what it held.
//!
//! A cell says in 32 bytes what there is to say of most memory: its last write and one read since. What few
//! cells have lies beside, a page of cells together.

use std::collections::HashMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::rc::Rc;

use mscclrs_device::arch::host::Op;

use smallvec::SmallVec;

use super::ahead::prefetch;
use super::orders::Release;
use super::stamps::{Kinds, Stamp};
use super::values::{Value, Values};

/// Cells that are made together.
const PAGE: usize = 256;
/// Bytes of memory that they stand for.
pub(super) const PAGE_BYTES: u64 = 8 * PAGE as u64;
/// Reads that are kept even if others cover them.
const READS: usize = 64;
/// Reads among which one is looked for that a new one covers.
const RECENT_READS: usize = 4;

/// What is remembered of 8 bytes.
#[derive(Debug)]
#[repr(align(32))]
struct Cell {
    /// The last write, if nothing has made it worth nothing.
    write: Stamp,
    /// The first of the reads since.
    read: Stamp,
    /// The move of a queue that wrote all of it last, if no kernel has written it since.
    moved_to: Option<NonZeroU32>,
    rest: Option<RestId>,
    /// Bytes that something has written.
    written: u8,
    /// Its value is that of `write`, which is atomic and released nothing, and nothing else is known of it:
    /// there are no values in the rest.
    is_value: bool,
}

// Twice as much, and those of a small collective do not lie in the machine's nearer caches any more.
const _: () = assert!(size_of::<Cell>() == 32);

impl Cell {
    const EMPTY: Cell = Cell {
        write: Stamp::NONE,
        read: Stamp::NONE,
        moved_to: None,
        rest: None,
        written: 0,
        is_value: false,
    };
}

/// One more than the place of a cell's rest in its page.
type RestId = NonZeroU16;

/// What few cells have. Mostly one access more, of the other 4 bytes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Rest {
    /// Earlier writes that no later write of the same bytes covers.
    writes: SmallVec<[Stamp; 1]>,
    /// Later reads.
    reads: SmallVec<[Stamp; 1]>,
    /// The move of a queue that read all of it last, if no kernel has written it since.
    moved_from: Option<NonZeroU32>,
    /// What it held, oldest first: all that may still be seen in weak mode, else what was written last
    /// by an atomic.
    values: Option<Box<Values>>,
}

const _: () = assert!(size_of::<Rest>() == 64);

impl Rest {
    fn is_empty(&self) -> bool {
        let Rest { writes, reads, moved_from, values } = self;
        let has_values = values.as_ref().is_some_and(|values| values.len() > 0);
        writes.is_empty() && reads.is_empty() && moved_from.is_none() && !has_values
    }
}

/// Those of a page, and which of them no cell has.
#[derive(Debug, Default)]
struct Rests {
    rests: Vec<Rest>,
    free: Vec<RestId>,
}

impl Rests {
    fn take(&mut self) -> RestId {
        self.free.pop().unwrap_or_else(|| {
            self.rests.push(Rest::default());
            // There are no more than cells in a page.
            RestId::MIN.saturating_add(self.rests.len() as u16 - 1)
        })
    }

    fn get(&self, id: RestId) -> &Rest {
        &self.rests[usize::from(id.get()) - 1]
    }

    fn get_mut(&mut self, id: RestId) -> &mut Rest {
        &mut self.rests[usize::from(id.get()) - 1]
    }
}

/// A cell, and where its rest is.
pub(super) struct CellMut<'a> {
    cell: &'a mut Cell,
    rests: &'a mut Option<Box<Rests>>,
}

impl CellMut<'_> {
    fn rest(&self) -> Option<&Rest> {
        Some(self.rests.as_ref()?.get(self.cell.rest?))
    }

    fn rest_if_any(&mut self) -> Option<&mut Rest> {
        Some(self.rests.as_mut()?.get_mut(self.cell.rest?))
    }

    fn rest_mut(&mut self) -> &mut Rest {
        let rests = self.rests.get_or_insert_default();
        let id = *self.cell.rest.get_or_insert_with(|| rests.take());
        rests.get_mut(id)
    }

    /// Gives back a rest that has nothing.
    fn tidy(&mut self) {
        if self.rest().is_some_and(Rest::is_empty)
            && let (Some(rests), Some(id)) = (self.rests.as_mut(), self.cell.rest.take())
        {
            rests.free.push(id);
        }
    }

    /// Bytes that something has written.
    pub(super) fn written(&self) -> u8 {
        self.cell.written
    }

    pub(super) fn set_written(&mut self, mask: u8) {
        self.cell.written = mask;
    }

    /// The earliest of which it holds: of the writes that no later write of the same bytes covers, and, if they
    /// are asked for, of the reads since.
    #[inline]
    pub(super) fn find(&self, and_reads: bool, holds: impl Fn(&Stamp) -> bool) -> Option<Stamp> {
        let holds = |stamp: &&Stamp| !stamp.is_none() && holds(stamp);
        let Cell { write, read, rest, .. } = &*self.cell;
        let rest = rest.and_then(|_| self.rest());
        let earlier = rest.and_then(|rest| rest.writes.iter().find(holds));
        earlier
            .or_else(|| Some(write).filter(holds))
            .or_else(|| Some(read).filter(|_| and_reads).filter(holds))
            .or_else(|| rest.filter(|_| and_reads)?.reads.iter().find(holds))
            .copied()
    }

    /// Forgets accesses.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&Stamp) -> bool) {
        for stamp in [&mut self.cell.write, &mut self.cell.read] {
            if is_gone(stamp) {
                *stamp = Stamp::NONE;
            }
        }
        if let Some(rest) = self.rest_if_any() {
            rest.writes.retain(|stamp| !is_gone(stamp));
            rest.reads.retain(|stamp| !is_gone(stamp));
            self.tidy();
        }
    }

    /// Remembers a write, and no access any more that it covers.
    #[inline]
    pub(super) fn add_write(
        &mut self,
        stamp: Stamp,
        kinds: &Kinds,
        covers: impl Fn(&Stamp) -> bool,
    ) {
        let new = kinds.get(stamp.kind);
        if self.cell.is_value {
            let held = kinds.get(self.cell.write.kind).mask;
            // Who still asks for the value before.
            if new.op == Op::AtomicRmw || held & !new.mask != 0 {
                self.values_mut(kinds);
            }
            self.cell.is_value = false;
        }
        let Cell { write, read, written, rest, .. } = &mut *self.cell;
        *written |= new.mask;
        if covers(read) {
            *read = Stamp::NONE;
        }
        let before = std::mem::replace(write, stamp);
        let stays = !before.is_none() && !covers(&before);
        if rest.is_none() && !stays {
            return;
        }
        let rest = self.rest_mut();
        rest.writes.retain(|stamp| !covers(stamp));
        rest.reads.retain(|stamp| !covers(stamp));
        rest.writes.extend(stays.then_some(before));
        self.tidy();
    }

    /// Remembers a read, in the place of one that it covers, if such a one is at hand.
    #[inline]
    pub(super) fn add_read(&mut self, stamp: Stamp, covers: impl Fn(&Stamp) -> bool) {
        if self.cell.read.is_none() || covers(&self.cell.read) {
            self.cell.read = stamp;
            return;
        }
        let reads = &mut self.rest_mut().reads;
        let recent = reads.len().saturating_sub(RECENT_READS);
        if let Some(at) = reads[recent..].iter().position(&covers) {
            reads[recent + at] = stamp;
            return;
        }
        if reads.len() > READS {
            reads.retain(|before| !covers(before));
        }
        reads.push(stamp);
    }

    /// Who wrote these bytes of its value last, if an atomic did, and what that released.
    #[inline]
    pub(super) fn last_write(
        &self,
        mask: u8,
        kinds: &Kinds,
    ) -> Option<(Stamp, Option<Rc<Release>>)> {
        let Cell { write, is_value, .. } = *self.cell;
        if is_value {
            return (kinds.get(write.kind).mask & mask != 0).then_some((write, None));
        }
        let (by, release) = self.rest()?.values.as_ref()?.last()?.write(mask)?;
        Some((by, release.clone()))
    }

    /// Its values, if it has any.
    pub(super) fn values(&mut self, kinds: &Kinds) -> Option<&mut Values> {
        if self.cell.is_value {
            return Some(self.values_mut(kinds));
        }
        self.rest_if_any()?.values.as_deref_mut()
    }

    pub(super) fn values_mut(&mut self, kinds: &Kinds) -> &mut Values {
        let write = self.cell.write;
        let is_value = std::mem::take(&mut self.cell.is_value);
        let values = self.rest_mut().values.get_or_insert_default();
        if is_value {
            let by = Some((write, kinds.get(write.kind).mask));
            values.set(Some(Value { by, ..Value::of(0) }));
        }
        values
    }

    /// Its value is that of the last write, which released nothing.
    pub(super) fn set_value_of_write(&mut self) {
        self.forget_values();
        self.cell.is_value = true;
    }

    pub(super) fn forget_values(&mut self) {
        self.cell.is_value = false;
        if let Some(values) = self.rest_if_any().and_then(|rest| rest.values.as_mut()) {
            values.set(None);
            self.tidy();
        }
    }

    /// The move of a queue that wrote all of it last, if no kernel has written it since.
    pub(super) fn moved_to(&self) -> Option<NonZeroU32> {
        self.cell.moved_to
    }

    /// The move of a queue that read all of it last, if no kernel has written it since.
    pub(super) fn moved_from(&self) -> Option<NonZeroU32> {
        self.rest().and_then(|rest| rest.moved_from)
    }

    pub(super) fn set_moved_to(&mut self, number: Option<NonZeroU32>) {
        self.cell.moved_to = number;
    }

    pub(super) fn set_moved_from(&mut self, number: Option<NonZeroU32>) {
        if number.is_some() {
            self.rest_mut().moved_from = number;
        } else if let Some(rest) = self.rest_if_any() {
            rest.moved_from = None;
            self.tidy();
        }
    }
}

/// What is known of memory that only moves of queues have touched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Untouched {
    pub(super) written: bool,
    pub(super) moved_to: Option<NonZeroU32>,
    pub(super) moved_from: Option<NonZeroU32>,
}

/// Cells are made when a kernel comes to them: large copies take no room.
pub(super) enum Page {
    Untouched(Untouched),
    Touched(Touched),
}

/// Cells that lie side by side.
pub(super) struct Touched {
    cells: Box<[Cell]>,
    rests: Option<Box<Rests>>,
}

impl Touched {
    #[inline]
    fn cell(&mut self, at: usize) -> CellMut<'_> {
        CellMut { cell: &mut self.cells[at], rests: &mut self.rests }
    }
}

impl Page {
    #[inline]
    fn touched(&mut self) -> &mut Touched {
        if let Page::Untouched(whole) = *self {
            *self = Page::Touched(whole.touched());
        }
        match self {
            Page::Touched(touched) => touched,
            Page::Untouched(_) => unreachable!("made above"),
        }
    }
}

impl Untouched {
    #[cold]
    fn touched(self) -> Touched {
        let Untouched { written, moved_to, moved_from } = self;
        let written = if written { 0xff } else { 0 };
        // One after the other: lanes have small stacks.
        let cells = (0..PAGE).map(|_| Cell { written, moved_to, ..Cell::EMPTY }).collect();
        let mut touched = Touched { cells, rests: None };
        if moved_from.is_some() {
            (0..PAGE).for_each(|at| touched.cell(at).set_moved_from(moved_from));
        }
        touched
    }
}

/// Which piece of memory: where its cells are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

/// The cells of one piece of memory.
#[derive(Default)]
struct Object {
    /// In the order in which pieces were first used: the same in every run.
    number: u32,
    pages: Vec<Page>,
}

/// Objects whose places are at hand; names of objects mostly follow each other.
const AT_HAND: usize = 64;

/// All cells.
pub(super) struct Cells {
    objects: Vec<Object>,
    index: HashMap<u64, Place>,
    /// Places of objects that are gone.
    free: Vec<Place>,
    /// Of the index, by the name's last bits.
    at_hand: [Option<(u64, Place)>; AT_HAND],
    numbers: u32,
}

impl Default for Cells {
    fn default() -> Cells {
        let (objects, index, free) = (Vec::new(), HashMap::new(), Vec::new());
        Cells { objects, index, free, at_hand: [None; AT_HAND], numbers: 0 }
    }
}

impl Cells {
    /// Where a piece of memory is, until it is forgotten.
    #[inline]
    pub(super) fn place(&mut self, object: u64) -> Place {
        match self.at_hand[object as usize % AT_HAND] {
            Some((name, at)) if name == object => at,
            _ => self.look_up(object),
        }
    }

    fn look_up(&mut self, object: u64) -> Place {
        let Cells { objects, numbers, free, index, .. } = self;
        let at = *index.entry(object).or_insert_with(|| {
            let at = free.pop().unwrap_or_else(|| {
                objects.push(Object::default());
                Place(objects.len() as u32 - 1)
            });
            objects[at.0 as usize].number = *numbers;
            *numbers += 1;
            at
        });
        self.at_hand[object as usize % AT_HAND] = Some((object, at));
        at
    }

    /// The number of a piece of memory, for reports and traces.
    pub(super) fn number(&self, place: Place) -> u32 {
        self.objects[place.0 as usize].number
    }

    /// What a piece of memory is called where it comes from; a search, for reports.
    pub(super) fn object(&self, place: Place) -> Option<u64> {
        self.index.iter().find(|(_, at)| **at == place).map(|(object, _)| *object)
    }

    /// The cell at a multiple of 8.
    #[inline]
    pub(super) fn cell(&mut self, place: Place, offset: u64) -> CellMut<'_> {
        let cell = (offset / 8) as usize % PAGE;
        self.page(place, offset).touched().cell(cell)
    }

    /// All that is remembered of one byte is wanted soon, and of another one later.
    #[inline]
    pub(super) fn prefetch(&self, place: Place, (soon, later): (u64, u64)) {
        let pages = &self.objects[place.0 as usize].pages;
        let at = |offset: u64| match pages.get((offset / PAGE_BYTES) as usize) {
            Some(Page::Touched(touched)) => {
                Some((&touched.cells[(offset / 8) as usize % PAGE], &touched.rests))
            }
            _ => None,
        };
        if let Some((cell, _)) = at(later) {
            prefetch(cell);
        }
        // Its cell came when it was wanted later.
        if let Some((Cell { rest: Some(rest), .. }, Some(rests))) = at(soon) {
            prefetch(rests.get(*rest));
        }
    }

    /// The page that a byte lies in.
    #[inline]
    pub(super) fn page(&mut self, place: Place, offset: u64) -> &mut Page {
        let page = (offset / PAGE_BYTES) as usize;
        let pages = &mut self.objects[place.0 as usize].pages;
        if pages.len() <= page {
            pages.resize_with(page + 1, || Page::Untouched(Untouched::default()));
        }
        &mut pages[page]
    }

    /// Forgets pieces of memory that are gone: their numbers may come again for others.
    pub(super) fn retain(&mut self, live: impl Fn(u64) -> bool) {
        let gone: Vec<u64> = self.index.keys().copied().filter(|&object| !live(object)).collect();
        gone.into_iter().for_each(|object| self.forget(object));
    }

    /// Forgets a piece of memory that is gone.
    pub(super) fn forget(&mut self, object: u64) {
        if let Some(at) = self.index.remove(&object) {
            self.objects[at.0 as usize].pages = Vec::new();
            self.free.push(at);
        }
        self.at_hand[object as usize % AT_HAND] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_leaves_its_place_and_not_its_number() {
        let mut cells = Cells::default();
        for object in 1..100 {
            let place = cells.place(object);
            cells.cell(place, 8).set_written(1);
            let now = (cells.number(place), cells.cell(place, 8).written());
            assert_eq!(now, (object as u32 - 1, 1));
            cells.forget(object);
        }
        assert_eq!(cells.objects.len(), 1);
        let place = cells.place(100);
        assert_eq!(cells.cell(place, 8).written(), 0);
    }

    #[test]
    fn numbers_do_not_depend_on_what_objects_are_called() {
        let mut cells = Cells::default();
        let mut number = |object| {
            let place = cells.place(object);
            cells.number(place)
        };
        assert_eq!([900, 7, 900, 8].map(&mut number), [0, 1, 0, 2]);
    }
}

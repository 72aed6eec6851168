//! What is remembered of each 8 bytes of memory: who read and wrote it last, and what it held.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::rc::Rc;

use mscclrs_device::arch::host::{Access, Op};
use mscclrs_device::{OrderKind, ScopeKind};

use thin_vec::ThinVec;

use super::clock::Moment;
use super::watch::Who;

/// Cells that are made together.
const PAGE: usize = 256;
/// Bytes of memory that they stand for.
pub(super) const PAGE_BYTES: u64 = 8 * PAGE as u64;
/// Values of a cell that a late load may still see.
pub(super) const MOST_VALUES: usize = 6;

/// One access, for comparison with later ones. Small, since there are many: lanes have 16 bits, as blocks are
/// small, and so have source lines; those beyond would be told as the last of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// The block's number among all of the world.
    block: u32,
    pub(super) slot: u32,
    pub(super) time: u32,
    lane: u16,
    /// Which source line.
    pub(super) line: u16,
    /// Which bytes of the cell; none: no access at all.
    pub(super) mask: u8,
    pub(super) op: Op,
    pub(super) order: OrderKind,
    pub(super) scope: ScopeKind,
}

impl Stamp {
    const NONE: Stamp = Stamp {
        block: 0,
        slot: 0,
        time: 0,
        lane: 0,
        line: 0,
        mask: 0,
        op: Op::Load,
        order: OrderKind::Relaxed,
        scope: ScopeKind::Cta,
    };

    /// One of a lane, in its slot at its time.
    pub(super) fn new(
        who: Who,
        (slot, time): (u32, u32),
        line: u32,
        mask: u8,
        access: &Access,
    ) -> Stamp {
        let Access { op, order, scope, .. } = *access;
        let small = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        let (block, lane, line) = (who.block, small(who.lane), small(line));
        Stamp { block, slot, time, lane, line, mask, op, order, scope }
    }

    /// Which lane.
    pub(super) fn who(&self) -> Who {
        Who { block: self.block, lane: self.lane.into() }
    }

    pub(super) fn is_atomic(&self) -> bool {
        super::races::is_atomic(self.op)
    }

    pub(super) fn writes(&self) -> bool {
        matches!(self.op, Op::Store | Op::AtomicStore | Op::AtomicRmw)
    }
}

/// What an acquire that sees a value learns.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) known: Moment,
    pub(super) scope: ScopeKind,
    /// The lane whose scope it is.
    pub(super) who: Who,
    /// What a read-modify-write hands on that has another scope than its own.
    pub(super) also: Option<Box<Release>>,
}

impl Release {
    /// It, and what it hands on.
    pub(super) fn all(&self) -> impl Iterator<Item = &Release> {
        std::iter::successors(Some(self), |release| release.also.as_deref())
    }

    /// Hands on another one, which hands on nothing.
    pub(super) fn add(&mut self, release: Box<Release>) {
        if self.scope == release.scope {
            return self.known.join(&release.known);
        }
        match &mut self.also {
            Some(also) => also.add(release),
            None => self.also = Some(release),
        }
    }
}

/// A value that the cell held.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) bits: u64,
    /// Who wrote it; `None` is before everything.
    pub(super) by: Option<Stamp>,
    pub(super) release: Option<Rc<Release>>,
    /// Who wrote the other 4 bytes last and what that released, where this write was of 4 only.
    pub(super) beside: Option<Box<(Stamp, Option<Rc<Release>>)>>,
    /// Slots and times of lanes that have seen it: who knows of them sees nothing older.
    pub(super) seen: ThinVec<(u32, u32)>,
}

/// Values of a cell, oldest first: mostly one, which lies in the cell itself.
#[derive(Clone, Debug)]
pub(super) struct Values {
    /// None if there are no others.
    last: Option<Value>,
    earlier: ThinVec<Value>,
}

impl Values {
    const EMPTY: Values = Values { last: None, earlier: ThinVec::new() };

    pub(super) fn len(&self) -> usize {
        self.earlier.len() + usize::from(self.last.is_some())
    }

    pub(super) fn last(&self) -> Option<&Value> {
        self.last.as_ref()
    }

    /// The place of the latest of which it holds.
    pub(super) fn latest(&self, holds: impl Fn(&Value) -> bool) -> Option<usize> {
        match &self.last {
            Some(last) if holds(last) => Some(self.earlier.len()),
            _ => self.earlier.iter().rposition(holds),
        }
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Value> {
        if at == self.earlier.len() { self.last.as_mut() } else { self.earlier.get_mut(at) }
    }

    pub(super) fn push(&mut self, value: Value) {
        self.earlier.extend(self.last.replace(value));
    }

    /// This one and no other.
    pub(super) fn set(&mut self, value: Option<Value>) {
        self.last = value;
        self.earlier.clear();
    }

    /// Forgets the oldest one of several.
    pub(super) fn forget_oldest(&mut self) {
        if !self.earlier.is_empty() {
            self.earlier.remove(0);
        }
    }

    pub(super) fn retain_mut(&mut self, mut keep: impl FnMut(&mut Value) -> bool) {
        self.earlier.retain_mut(&mut keep);
        if self.last.as_mut().is_some_and(|value| !keep(value)) {
            self.last = self.earlier.pop();
        }
    }
}

impl Value {
    /// One that nobody is known to have written.
    pub(super) const fn of(bits: u64) -> Value {
        Value { bits, by: None, release: None, beside: None, seen: ThinVec::new() }
    }

    /// Other bytes than these are not of it any more; whether it has any.
    pub(super) fn keep(&mut self, mask: u8) -> bool {
        self.beside.take_if(|beside| beside.0.mask & mask == 0);
        let Some(by) = &mut self.by else { return false };
        by.mask &= mask;
        if by.mask == 0
            && let Some(beside) = self.beside.take()
        {
            (self.by, self.release) = (Some(beside.0), beside.1);
        }
        self.by.is_some_and(|by| by.mask != 0)
    }

    /// Who wrote these bytes of it, and what that released.
    pub(super) fn write(&self, mask: u8) -> Option<(Stamp, &Option<Rc<Release>>)> {
        let by = self.by?;
        match &self.beside {
            Some(beside) if by.mask & mask == 0 => Some((beside.0, &beside.1)),
            _ if by.mask & mask == 0 => None,
            _ => Some((by, &self.release)),
        }
    }
}

/// What is remembered of 8 bytes: two lines of the machine's caches, which it reads together.
#[derive(Clone, Debug)]
#[repr(align(128))]
pub(super) struct Cell {
    /// The first of the writes that no later write of the same bytes covers.
    write: Stamp,
    /// The first of the reads since.
    read: Stamp,
    /// What few cells have.
    more: Option<Box<More>>,
    /// What it held, oldest first: all that may still be seen in weak mode, else what was written last
    /// by an atomic.
    pub(super) values: Values,
    /// The move of a queue that wrote all of it last, if no kernel has written it since.
    pub(super) moved_to: Option<NonZeroU32>,
    /// Bytes that something has written.
    pub(super) written: u8,
}

const _: () = assert!(size_of::<Cell>() == 128);

/// The rest of a cell's accesses.
#[derive(Clone, Debug, Default)]
struct More {
    writes: Vec<Stamp>,
    reads: Vec<Stamp>,
    /// The move of a queue that read all of it last, if no kernel has written it since.
    moved_from: Option<NonZeroU32>,
}

/// Reads that are kept even if others cover them.
const READS: usize = 64;
/// Reads among which one is looked for that a new one covers.
const RECENT_READS: usize = 4;

impl Cell {
    const EMPTY: Cell = Cell {
        write: Stamp::NONE,
        read: Stamp::NONE,
        more: None,
        values: Values::EMPTY,
        moved_to: None,
        written: 0,
    };

    /// Writes that no later write of the same bytes covers.
    pub(super) fn writes(&self) -> impl Iterator<Item = &Stamp> {
        let more = self.more.iter().flat_map(|more| &more.writes);
        std::iter::once(&self.write).filter(|stamp| stamp.mask != 0).chain(more)
    }

    /// Reads since.
    pub(super) fn reads(&self) -> impl Iterator<Item = &Stamp> {
        let more = self.more.iter().flat_map(|more| &more.reads);
        std::iter::once(&self.read).filter(|stamp| stamp.mask != 0).chain(more)
    }

    /// Forgets accesses.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&Stamp) -> bool) {
        for stamp in [&mut self.write, &mut self.read] {
            if is_gone(stamp) {
                stamp.mask = 0;
            }
        }
        if let Some(more) = &mut self.more {
            more.writes.retain(|stamp| !is_gone(stamp));
            more.reads.retain(|stamp| !is_gone(stamp));
        }
    }

    /// Remembers a write.
    pub(super) fn add_write(&mut self, stamp: Stamp) {
        if self.write.mask == 0 {
            self.write = stamp;
        } else {
            self.more.get_or_insert_default().writes.push(stamp);
        }
    }

    /// Remembers a read, in the place of one that it covers, if such a one is at hand.
    pub(super) fn add_read(&mut self, stamp: Stamp, covers: impl Fn(&Stamp) -> bool) {
        if self.read.mask == 0 || covers(&self.read) {
            self.read = stamp;
            return;
        }
        let reads = &mut self.more.get_or_insert_default().reads;
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

    /// The move of a queue that read all of it last, if no kernel has written it since.
    pub(super) fn moved_from(&self) -> Option<NonZeroU32> {
        self.more.as_ref().and_then(|more| more.moved_from)
    }

    /// A move of a queue has read all of it, or what one has read does not count any more.
    pub(super) fn set_moved_from(&mut self, number: Option<NonZeroU32>) {
        if number.is_some() {
            self.more.get_or_insert_default().moved_from = number;
        } else if let Some(more) = &mut self.more {
            more.moved_from = None;
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
    Cells(Box<[Cell]>),
}

impl Page {
    #[inline]
    fn cells(&mut self) -> &mut [Cell] {
        if let Page::Untouched(whole) = *self {
            let Untouched { written, moved_to, moved_from } = whole;
            let written = if written { 0xff } else { 0 };
            let cell = || {
                let mut cell = Cell { written, moved_to, ..Cell::EMPTY };
                cell.set_moved_from(moved_from);
                cell
            };
            // One after the other: lanes have small stacks.
            *self = Page::Cells((0..PAGE).map(|_| cell()).collect());
        }
        match self {
            Page::Cells(cells) => cells,
            Page::Untouched(_) => unreachable!("made above"),
        }
    }
}

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
    index: HashMap<u64, usize>,
    /// Places of objects that are gone.
    free: Vec<usize>,
    /// Of the index, by the name's last bits.
    at_hand: [Option<(u64, usize)>; AT_HAND],
    numbers: u32,
}

impl Default for Cells {
    fn default() -> Cells {
        let (objects, index, free) = (Vec::new(), HashMap::new(), Vec::new());
        Cells { objects, index, free, at_hand: [None; AT_HAND], numbers: 0 }
    }
}

impl Cells {
    #[inline]
    fn object(&mut self, object: u64) -> usize {
        match self.at_hand[object as usize % AT_HAND] {
            Some((name, at)) if name == object => at,
            _ => self.look_up(object),
        }
    }

    fn look_up(&mut self, object: u64) -> usize {
        let Cells { objects, numbers, free, index, .. } = self;
        let at = *index.entry(object).or_insert_with(|| {
            let at = free.pop().unwrap_or_else(|| {
                objects.push(Object::default());
                objects.len() - 1
            });
            objects[at].number = *numbers;
            *numbers += 1;
            at
        });
        self.at_hand[object as usize % AT_HAND] = Some((object, at));
        at
    }

    /// The number of a piece of memory, for reports and traces.
    pub(super) fn number(&mut self, object: u64) -> u32 {
        let at = self.object(object);
        self.objects[at].number
    }

    /// The cell at a multiple of 8.
    pub(super) fn cell(&mut self, object: u64, offset: u64) -> &mut Cell {
        let cell = (offset / 8) as usize % PAGE;
        &mut self.page(object, offset).cells()[cell]
    }

    /// The page that a byte lies in.
    #[inline]
    pub(super) fn page(&mut self, object: u64, offset: u64) -> &mut Page {
        let at = self.object(object);
        let page = (offset / PAGE_BYTES) as usize;
        let pages = &mut self.objects[at].pages;
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
            self.objects[at].pages = Vec::new();
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
            cells.cell(object, 8).written = 1;
            assert_eq!(
                (cells.number(object), cells.cell(object, 8).written),
                (object as u32 - 1, 1)
            );
            cells.forget(object);
        }
        assert_eq!(cells.objects.len(), 1);
        assert_eq!(cells.cell(100, 8).written, 0);
    }

    #[test]
    fn numbers_do_not_depend_on_what_objects_are_called() {
        let mut cells = Cells::default();
        assert_eq!([900, 7, 900, 8].map(|object| cells.number(object)), [0, 1, 0, 2]);
    }
}

//! What is remembered of each 8 bytes of memory: who read and wrote it last, and what it held.

use std::collections::HashMap;
use std::num::NonZeroU32;

use mscclrs_device::arch::host::Op;
use mscclrs_device::{OrderKind, ScopeKind};

use smallvec::SmallVec;

use super::clock::Moment;
use super::watch::Who;

/// Cells that are made together.
const PAGE: usize = 256;
/// Bytes of memory that they stand for.
pub(super) const PAGE_BYTES: u64 = 8 * PAGE as u64;
/// Values of a cell that a late load may still see.
pub(super) const MOST_VALUES: usize = 6;

/// One access, for comparison with later ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// Which lane.
    pub(super) who: Who,
    pub(super) slot: u32,
    pub(super) time: u32,
    /// Which source line.
    pub(super) line: u32,
    /// Which bytes of the cell.
    pub(super) mask: u8,
    pub(super) op: Op,
    pub(super) order: OrderKind,
    pub(super) scope: ScopeKind,
}

impl Stamp {
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
    pub(super) release: Option<Release>,
    /// Who wrote the other 4 bytes last and what that released, where this write was of 4 only.
    pub(super) beside: Option<Box<(Stamp, Option<Release>)>>,
    /// Slots and times of lanes that have seen it: who knows of them sees nothing older.
    pub(super) seen: Vec<(u32, u32)>,
}

impl Value {
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
    pub(super) fn write(&self, mask: u8) -> Option<(Stamp, &Option<Release>)> {
        let by = self.by?;
        match &self.beside {
            Some(beside) if by.mask & mask == 0 => Some((beside.0, &beside.1)),
            _ if by.mask & mask == 0 => None,
            _ => Some((by, &self.release)),
        }
    }
}

/// Adds to a list of a cell, which mostly has one entry: there are many cells.
pub(super) fn add<T>(list: &mut Vec<T>, entry: T) {
    if list.capacity() == 0 {
        list.reserve_exact(1);
    }
    list.push(entry);
}

/// Mostly one, which lies in the cell itself.
pub(super) type Stamps = SmallVec<[Stamp; 1]>;

#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    /// Bytes that something has written.
    pub(super) written: u8,
    /// The moves of queues that wrote all of it, and that read all of it, last, if no kernel has written
    /// it since.
    pub(super) moved_to: Option<NonZeroU32>,
    pub(super) moved_from: Option<NonZeroU32>,
    /// Writes that no later write of the same bytes covers.
    pub(super) writes: Stamps,
    /// Reads since.
    pub(super) reads: Stamps,
    /// What it held, oldest first: all that may still be seen in weak mode, else what was written last
    /// by an atomic.
    pub(super) values: Vec<Value>,
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
    Cells(Box<[Cell; PAGE]>),
}

impl Page {
    #[inline]
    fn cells(&mut self) -> &mut [Cell; PAGE] {
        if let Page::Untouched(whole) = *self {
            let Untouched { written, moved_to, moved_from } = whole;
            let written = if written { 0xff } else { 0 };
            let cell = || Cell { written, moved_to, moved_from, ..Cell::EMPTY };
            *self = Page::Cells(Box::new(std::array::from_fn(|_| cell())));
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

impl Cell {
    const EMPTY: Cell = Cell {
        written: 0,
        moved_to: None,
        moved_from: None,
        writes: SmallVec::new_const(),
        reads: SmallVec::new_const(),
        values: Vec::new(),
    };
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

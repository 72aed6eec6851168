//! Who made an access, when and of which kind, in 12 bytes: two are kept for every 8 bytes of memory, and
//! what looking at them costs is mostly what it costs to have them at hand.
//!
//! Invariant: a stamp's slot is the one of its block's first lane and the lane's index more, since slots of
//! a block follow each other.

use std::collections::HashMap;
use std::panic::Location;

use mscclrs_device::arch::host::{Access, Op};
use mscclrs_device::{OrderKind, ScopeKind};

use super::races::is_atomic;
use super::watch::{BlockInfo, Who};
use crate::work::MOST_THREADS;

/// Kinds that are told apart by their source line; of later ones the line is not known.
const LINED: usize = 60_000;
/// Kinds that are at hand.
const AT_HAND: usize = 128;

/// One access, for comparison with later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    block: u32,
    pub(super) time: u32,
    lane: u16,
    pub(super) kind: KindId,
}

// Lanes have 16 bits.
const _: () = assert!(MOST_THREADS <= 1 << 16);

impl Stamp {
    /// No access at all.
    pub(super) const NONE: Stamp = Stamp { block: 0, time: 0, lane: 0, kind: KindId::NONE };

    /// One of a lane at its time.
    pub(super) fn new(who: Who, time: u32, kind: KindId) -> Stamp {
        Stamp { block: who.block, time, lane: who.lane as u16, kind }
    }

    pub(super) fn is_none(&self) -> bool {
        self.kind == KindId::NONE
    }

    /// Which lane.
    pub(super) fn who(&self) -> Who {
        Who { block: self.block, lane: self.lane.into() }
    }

    /// The slot of the lane.
    pub(super) fn slot(&self, blocks: &[BlockInfo]) -> u32 {
        blocks[self.block as usize].first_slot + u32::from(self.lane)
    }
}

/// What there is to say of many accesses: which bytes of a cell, how, and where in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    line: u32,
    /// Which bytes of the cell; none: no access at all.
    pub(super) mask: u8,
    pub(super) op: Op,
    pub(super) order: OrderKind,
    pub(super) scope: ScopeKind,
}

impl Kind {
    pub(super) fn is_atomic(&self) -> bool {
        is_atomic(self.op)
    }

    pub(super) fn writes(&self) -> bool {
        matches!(self.op, Op::Store | Op::AtomicStore | Op::AtomicRmw)
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        super::races::words(self.op, self.order, self.scope)
    }

    /// All but the line, in one number.
    fn form(access: &Access, mask: u8) -> u32 {
        let Access { op, order, scope, .. } = *access;
        u32::from_le_bytes([mask, op as u8, order as u8, scope as u8])
    }
}

/// The number of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KindId(u16);

impl KindId {
    const NONE: KindId = KindId(0);
}

/// A source line, by where its location lies, and the rest of a kind.
type Name = (*const Location<'static>, u32);

/// All kinds of accesses that were made.
pub(super) struct Kinds {
    kinds: Vec<Kind>,
    lines: Vec<&'static Location<'static>>,
    line_index: HashMap<*const Location<'static>, u32>,
    index: HashMap<Name, KindId>,
    /// Of the index, by a few bits of the name.
    at_hand: [(Name, KindId); AT_HAND],
}

impl Default for Kinds {
    fn default() -> Kinds {
        let (op, order, scope) = (Op::Load, OrderKind::Relaxed, ScopeKind::Cta);
        Kinds {
            kinds: vec![Kind { line: u32::MAX, mask: 0, op, order, scope }],
            lines: Vec::new(),
            line_index: HashMap::new(),
            index: HashMap::new(),
            at_hand: [((std::ptr::null(), 0), KindId::NONE); AT_HAND],
        }
    }
}

impl Kinds {
    /// The kind of an access as far as it touches these bytes of a cell.
    #[inline]
    pub(super) fn of(&mut self, access: &Access, mask: u8) -> KindId {
        let from: *const Location<'static> = access.from;
        let name = (from, Kind::form(access, mask));
        let place = ((from as usize / 8) ^ usize::from(mask) ^ access.op as usize) % AT_HAND;
        match self.at_hand[place] {
            (known, kind) if known == name => kind,
            _ => {
                let kind = self.look_up(access, name, mask);
                self.at_hand[place] = (name, kind);
                kind
            }
        }
    }

    fn look_up(&mut self, access: &Access, (from, form): Name, mask: u8) -> KindId {
        let is_lined = self.kinds.len() < LINED || self.index.contains_key(&(from, form));
        let name = if is_lined { (from, form) } else { (std::ptr::null(), form) };
        if let Some(&kind) = self.index.get(&name) {
            return kind;
        }
        let line = if is_lined { self.line(access.from) } else { u32::MAX };
        let Access { op, order, scope, .. } = *access;
        // There are fewer than a thousand forms without a line.
        let kind = KindId(self.kinds.len() as u16);
        self.kinds.push(Kind { line, mask, op, order, scope });
        self.index.insert(name, kind);
        kind
    }

    fn line(&mut self, from: &'static Location<'static>) -> u32 {
        let lines = &mut self.lines;
        *self.line_index.entry(from).or_insert_with(|| {
            lines.push(from);
            lines.len() as u32 - 1
        })
    }

    #[inline]
    pub(super) fn get(&self, kind: KindId) -> Kind {
        self.kinds[usize::from(kind.0)]
    }

    /// Where in the source it is.
    pub(super) fn place(&self, kind: KindId) -> String {
        let line = self.lines.get(self.get(kind).line as usize);
        line.map_or("a line of a program that has too many to name".into(), |line| line.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(op: Op, from: &'static Location<'static>) -> Access {
        let (order, scope) = (OrderKind::Relaxed, ScopeKind::Gpu);
        Access { address: 0, size: 8, op, order, scope, from }
    }

    #[test]
    fn a_kind_is_one_whoever_asks() {
        let mut kinds = Kinds::default();
        let (here, there) = (Location::caller(), &*Box::leak(Box::new(*Location::caller())));
        let asked = [
            (Op::Load, here, 0xff),
            (Op::Load, here, 0x0f),
            (Op::Store, here, 0xff),
            (Op::Load, there, 0xff),
        ];
        let ids = asked.map(|(op, from, mask)| kinds.of(&access(op, from), mask));
        let again = asked.map(|(op, from, mask)| kinds.of(&access(op, from), mask));
        assert_eq!(ids, again);
        for (at, id) in ids.iter().enumerate() {
            assert!(!ids[..at].contains(id) && *id != KindId::NONE);
            let Kind { op, mask, .. } = kinds.get(*id);
            assert_eq!((op, mask), (asked[at].0, asked[at].2));
        }
    }

    #[test]
    fn of_too_many_lines_all_but_the_line_is_known() {
        let mut kinds = Kinds::default();
        let here = Location::caller();
        let known = kinds.of(&access(Op::Load, here), 0xff);
        kinds.kinds.resize(LINED, kinds.get(known));
        kinds.at_hand = Kinds::default().at_hand;
        assert_eq!(kinds.of(&access(Op::Load, here), 0xff), known);
        let new = kinds.of(&access(Op::AtomicStore, here), 0x0f);
        assert_eq!((kinds.get(new).op, kinds.get(new).mask), (Op::AtomicStore, 0x0f));
        assert!(kinds.place(new).contains("too many"), "{}", kinds.place(new));
    }
}

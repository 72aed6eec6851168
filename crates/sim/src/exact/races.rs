//! Accesses, one by one: whether there is such memory, whether anything orders them against what others
//! did before, and what they see.
//!
//! The rules are those of the PTX memory model as far as the project's forms need them
//! (docs/src/memory-model.md). Atomic accesses of the same bytes do not race with each other if each one's
//! scope holds the other's lane. All others have to be ordered: see `orders`.

use std::num::NonZeroU32;

use mscclrs_device::arch::host::{Access, Bits, Op, read_raw, write_raw};
use mscclrs_device::{OrderKind, ScopeKind};

use super::cells::Place;
use super::clock::Clock;
use super::decisions::Effect;
use super::finding::{Finding, FindingKind, Site};
use super::memory::{Found, MemoryOwner};
use super::mode::Check;
use super::moves::MoveInfo;
use super::orders::{Miss, chain};
use super::stamps::{Kind, Kinds, Stamp};
use super::trace::Event;
use super::watch::{BlockInfo, LaneState, State, includes};

pub(super) type Checked<T> = Result<T, Box<Finding>>;

/// An access, in words.
pub(super) fn words(op: Op, order: OrderKind, scope: ScopeKind) -> String {
    let what = match op {
        Op::Load => return "plain load".into(),
        Op::Store => return "plain store".into(),
        Op::AtomicLoad => "load",
        Op::AtomicStore => "store",
        Op::AtomicRmw => "read-modify-write",
    };
    let order = match order {
        OrderKind::AcqRel => "acquire-release",
        OrderKind::Acquire => "acquire",
        OrderKind::Relaxed => "relaxed",
        OrderKind::Release => "release",
    };
    format!("{order} {what} ({} scope)", scope_name(scope))
}

fn scope_name(scope: ScopeKind) -> &'static str {
    match scope {
        ScopeKind::Cta => "block",
        ScopeKind::Gpu => "GPU",
        ScopeKind::Sys => "system",
    }
}

/// Where an access goes: a piece of memory and the byte in it.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) object: u64,
    pub(super) place: Place,
    pub(super) offset: u64,
    pub(super) owner: MemoryOwner,
}

/// The cells that an access touches: their offsets and which of their bytes.
pub(super) fn parts(offset: u64, size: u32) -> impl Iterator<Item = (u64, u8)> {
    let second = (size == 16).then_some((offset + 8, 0xff));
    std::iter::once((offset & !7, first_mask(offset, size))).chain(second)
}

/// Which bytes of the first of them.
pub(super) fn first_mask(offset: u64, size: u32) -> u8 {
    ((0xff_u16 >> (8 - size.min(8))) << (offset % 8)) as u8
}

impl State {
    #[inline(always)]
    fn locate(&mut self, who: u32, access: &Access) -> Checked<At> {
        self.refresh();
        let (address, size) = (access.address as u64, u64::from(access.size));
        // Sizes are powers of two.
        if address & (size - 1) == 0
            && let Found::In { object, offset, owner } = self.view.find(address, size)
        {
            let place = self.cells.place(object);
            return Ok(At { object, place, offset, owner });
        }
        Err(self.nowhere(who, access))
    }

    /// Why an access goes nowhere.
    #[cold]
    fn nowhere(&mut self, who: u32, access: &Access) -> Box<Finding> {
        let (address, size) = (access.address as u64, u64::from(access.size));
        let (kind, what) = match self.view.find(address, size) {
            _ if !address.is_multiple_of(size) => (
                FindingKind::Misaligned,
                format!("{size} bytes at {address:#x}, which is not a multiple of {size}"),
            ),
            Found::Past { offset, bytes } => (
                FindingKind::Outside,
                format!("{size} bytes at byte {offset} of memory that has {bytes}"),
            ),
            Found::Gone { offset, bytes } => (
                FindingKind::Released,
                format!("{size} bytes at byte {offset} of {bytes} bytes that have been released"),
            ),
            Found::Nowhere | Found::In { .. } => {
                (FindingKind::Outside, format!("{size} bytes at {address:#x}: there is no memory"))
            }
        };
        self.about(kind, what, who, access, None).into()
    }

    pub(super) fn stamp(&mut self, who: u32, access: &Access, mask: u8) -> Stamp {
        let kind = self.kinds.of(access, mask);
        let lane = &self.lanes[who as usize];
        Stamp::new(lane.who, lane.clock.time, kind)
    }

    fn trace(&mut self, who: u32, access: &Access, at: At, bits: Bits, effect: Effect) {
        let (object, offset, in_vain) = (self.cells.number(at.place), at.offset, self.in_vain);
        if let Some(decisions) = self.decisions.as_mut().filter(|_| !in_vain) {
            decisions.accessed(who, access, (object, offset), effect);
        }
        let kind = self.kinds.of(access, first_mask(offset, access.size));
        let event = Event { who: self.who(who), kind, object, offset, bits: bits[0], in_vain };
        self.trace.add(event, access.op);
    }

    pub(super) fn load(&mut self, who: u32, access: &Access) -> Checked<Bits> {
        let at = self.locate(who, access)?;
        if at.owner == MemoryOwner::Device {
            self.compare_all(who, access, (at.place, at.offset))?;
        }
        let is_late = at.owner == MemoryOwner::Device && self.mode.check == Check::Weak;
        let bits = if is_late {
            self.load_late(who, access, at)
        } else {
            // SAFETY: the view has the memory, and the address is a multiple of the size.
            unsafe { read_raw(access.address, access.size) }
        };
        if access.op == Op::AtomicLoad && !is_late {
            self.synchronize(who, access, at);
        }
        self.trace(who, access, at, bits, Effect::Read);
        Ok(bits)
    }

    pub(super) fn store(&mut self, who: u32, access: &Access, bits: Bits) -> Checked<()> {
        let at = self.locate(who, access)?;
        if at.owner == MemoryOwner::Device {
            self.compare_all(who, access, (at.place, at.offset))?;
            if self.mode.check == Check::Weak {
                self.keep_value(at.place, at.offset, access.size, access.address);
            }
        }
        let watched = self.mode.check != Check::Ordered;
        let release = watched.then(|| self.release(who, access, at)).flatten();
        self.tell_host(at, release.as_ref());
        // SAFETY: the view has the memory, and the address is a multiple of the size.
        unsafe { write_raw(access.address, access.size, bits) };
        if watched {
            self.add_value(who, access, at, release);
        }
        self.trace(who, access, at, bits, Effect::Changed);
        Ok(())
    }

    /// The value before, and whether it was changed.
    pub(super) fn modify(
        &mut self,
        who: u32,
        access: &Access,
        change: &dyn Fn(u64) -> Option<u64>,
    ) -> Checked<(u64, bool)> {
        let at = self.locate(who, access)?;
        let watched = self.mode.check != Check::Ordered;
        if watched && at.owner == MemoryOwner::Device {
            self.compare_all(who, access, (at.place, at.offset))?;
            if self.mode.check == Check::Weak {
                self.keep_value(at.place, at.offset, access.size, access.address);
            }
        }
        // SAFETY: the view has the memory, and the address is a multiple of the size.
        let before = unsafe { read_raw(access.address, access.size) }[0];
        let after = change(before);
        let earlier = watched.then(|| self.handed_on(who, access, at)).flatten();
        if watched {
            self.synchronize(who, access, at);
        }
        if let Some(after) = after {
            let own = watched.then(|| self.release(who, access, at)).flatten();
            let release = chain(earlier, own);
            self.tell_host(at, release.as_ref());
            // SAFETY: as above. Only lanes of this thread write device memory; what the host writes
            // at the same time may be lost, as a GPU's atomics are none for the CPU.
            unsafe { write_raw(access.address, access.size, [after, 0]) };
            if watched {
                self.add_value(who, access, at, release);
            }
        }
        let effect = match after {
            None => Effect::Read,
            Some(after) if after == before => Effect::Rewrote,
            Some(_) => Effect::Changed,
        };
        self.trace(who, access, at, [after.unwrap_or(before), 0], effect);
        Ok((before, effect == Effect::Changed))
    }

    pub(super) fn shared(
        &mut self,
        who: u32,
        object: u64,
        bytes: u32,
        access: &Access,
    ) -> Checked<()> {
        let (offset, size) = (access.address as u64, access.size);
        if !offset.is_multiple_of(size.into()) {
            let what = format!(
                "{size} bytes at byte {offset} of a block's shared memory, which is not a multiple of {size}"
            );
            return Err(self.about(FindingKind::Misaligned, what, who, access, None).into());
        }
        if offset + u64::from(size) > u64::from(bytes) {
            let what = format!("byte {offset} of a block's shared memory, which has {bytes}");
            return Err(self.about(FindingKind::Outside, what, who, access, None).into());
        }
        // Nothing else is remembered of shared memory, so only then it has a number.
        if self.mode.check != Check::Checked {
            return Ok(());
        }
        let place = self.cells.place(object);
        self.compare_all(who, access, (place, offset))
    }

    /// In checked mode, compares an access to the earlier ones of its cells, and remembers it. In this and in
    /// weak mode, asks for what the lane comes to next.
    fn compare_all(
        &mut self,
        who: u32,
        access: &Access,
        (place, offset): (Place, u64),
    ) -> Checked<()> {
        if self.mode.check == Check::Ordered {
            return Ok(());
        }
        self.look_ahead(who, access, (place, offset));
        if self.mode.check == Check::Weak {
            return Ok(());
        }
        for (offset, mask) in parts(offset, access.size) {
            self.compare(who, access, (place, offset, mask))?;
        }
        Ok(())
    }

    /// Compares an access to the earlier ones of the cell, and remembers it.
    fn compare(
        &mut self,
        who: u32,
        access: &Access,
        (place, offset, mask): (Place, u64, u8),
    ) -> Checked<()> {
        let stamp = self.stamp(who, access, mask);
        // After a wait has ended early, data is missing, and what would have ordered it.
        let State { blocks, kinds, moves, lanes, cells, spoilt, .. } = self;
        let (spoilt, kind, clock) = (*spoilt, kinds.get(stamp.kind), &lanes[who as usize].clock);
        let new = New { blocks, kinds, clock, stamp, kind };
        let writes = kind.writes();
        let mut cell = cells.cell(place, offset);
        if !spoilt {
            if let Some(before) = cell.find(writes, |before| new.races(before)) {
                return Err(self.race(who, access, (place, offset, mask), before).into());
            }
            let moved = |&number: &NonZeroU32| {
                let MoveInfo { slot, time, .. } = moves[number.get() as usize - 1];
                !clock.knows(slot, time)
            };
            let read = cell.moved_from().filter(|_| writes);
            if let Some(number) = cell.moved_to().filter(moved).or(read.filter(moved)) {
                return Err(self.race_with_move(who, access, (place, offset), number).into());
            }
        }
        if access.op == Op::Load && !spoilt && cell.written() & mask != mask {
            let first = offset + u64::from((mask & !cell.written()).trailing_zeros());
            let what = format!(
                "{} was never written, by a kernel, a copy or the host, or came by a copy from such; memory \
                 is 0 at first, so this reads zeros that nobody put there",
                self.byte_of((place, first))
            );
            let at = Some((place, offset));
            return Err(self.about(FindingKind::Unwritten, what, who, access, at).into());
        }
        if !writes {
            // A read that everybody knows of who knows of this one says nothing new.
            cell.add_read(stamp, |before| new.covers(before));
            return Ok(());
        }
        if mask == 0xff && !spoilt {
            cell.set_moved_to(None);
            cell.set_moved_from(None);
        }
        cell.add_write(stamp, kinds, |before| new.covers(before));
        Ok(())
    }

    /// A byte of a piece of memory, which is told by its number and size.
    fn byte_of(&self, (place, offset): (Place, u64)) -> String {
        let bytes = self.cells.object(place).and_then(|object| self.view.bytes(object));
        let what =
            bytes.map_or("shared memory of a block".into(), |bytes| format!("{bytes} bytes"));
        format!("byte {offset:#x} of memory {} ({what})", self.cells.number(place))
    }

    fn race_with_move(
        &mut self,
        who: u32,
        access: &Access,
        place: (Place, u64),
        number: NonZeroU32,
    ) -> Finding {
        let MoveInfo { device, name, .. } = self.move_info(number);
        let what = format!(
            "a kernel comes to memory after the {name} of a queue of device {device}, at {}, and nothing \
             orders the two",
            self.byte_of(place)
        );
        let finding = self.about(FindingKind::Race, what, who, access, Some(place));
        Finding { missing: Some(super::moves::MISSING.into()), ..finding }
    }

    /// Whether two accesses are of launches that queues, events or the host are to order: both are of
    /// one device, or one had ended before the other began.
    fn are_ordered_by_queues(&self, first: &Site, second: &Site) -> bool {
        let ended = self.launches[first.launch as usize].ended;
        let had_ended = ended.is_some_and(|next| next <= second.launch);
        first.launch != second.launch && (first.device == second.device || had_ended)
    }

    fn race(
        &mut self,
        who: u32,
        access: &Access,
        (place, offset, mask): (Place, u64, u8),
        stamp: Stamp,
    ) -> Finding {
        let before = self.kinds.get(stamp.kind);
        // The cell has eight bytes; these are the ones that both touch.
        let first = offset + u64::from((mask & before.mask).trailing_zeros() % 8);
        let what = format!(
            "two accesses to the same memory, {}, and nothing orders them",
            self.byte_of((place, first))
        );
        let mut finding = self.about(FindingKind::Race, what, who, access, Some((place, offset)));
        finding.other = Some(self.site(stamp.who(), self.kinds.place(stamp.kind), before.words()));
        let at = (self.cells.number(place), offset);
        finding.steps = self.interleaving(&[self.who(who), stamp.who()], Some(at));
        let slot = stamp.slot(&self.blocks);
        let LaneState { misses, clock, who: own, .. } = &self.lanes[who as usize];
        let two_launches = match (&finding.here, &finding.other) {
            (Some(here), Some(other)) => self.are_ordered_by_queues(other, here),
            _ => false,
        };
        let is_cause = |miss: &&Miss| miss.is_of(slot, stamp.time, &self.blocks);
        finding.missing = Some(match misses.iter().rev().find(is_cause) {
            Some(miss) => miss.words(&self.kinds),
            None if before.is_atomic() && is_atomic(access.op) && before.mask != mask => {
                "accesses of one size: atomics that touch the same bytes, and not all of them, are not \
                 atomic for each other"
                    .into()
            }
            None if before.is_atomic() && is_atomic(access.op) => format!(
                "a scope that holds both lanes: one has {} scope, the other {} scope",
                scope_name(before.scope),
                scope_name(access.scope)
            ),
            None if two_launches => {
                "an event that the queue of the first launch records and that of the second waits for, \
                 one queue for both, in a graph an edge, or a wait of the host between the two (or, where \
                 both are to run at the same time, a release by the first lane after its access, and an \
                 acquire that sees it by the second before its own)"
                    .into()
            }
            None => {
                let (blocks, kinds) = (&self.blocks, &self.kinds);
                let last = |is: &dyn Fn(&Miss) -> bool| misses.iter().rev().find(|miss| is(miss));
                let earlier = last(&|miss| miss.is_by(slot, blocks)).map_or(String::new(), |miss| {
                    format!("; what it saw, {}, came before that access", miss.seen(kinds))
                });
                // One lane of a block mostly waits for all.
                let of_block = self.lanes.iter().filter(|lane| lane.who.block == own.block);
                let of_others = of_block.flat_map(|lane| lane.misses.iter().rev());
                let mut all = misses.iter().rev().chain(of_others);
                let over_others = all.find(|miss| miss.is_open(slot, clock, blocks));
                let over_others = over_others.map_or(String::new(), |miss| {
                    format!("; or, where it is to come by way of other lanes, {}", miss.words(kinds))
                });
                // Work of devices mostly runs at the same time, and yet not all of it is to.
                let launches = match (&finding.here, &finding.other) {
                    (Some(here), Some(other)) if here.launch != other.launch => {
                        "; or, where one launch is to come after the other, an event that its queue waits \
                         for, or a wait of the host before it is enqueued"
                    }
                    _ => "",
                };
                format!(
                    "a release by the first lane after its access, and an acquire that sees it by the \
                     second before its own{earlier}{over_others}; or the same the other way round, where \
                     the second is to come first (or a barrier that both come to){launches}"
                )
            }
        });
        finding
    }
}

pub(super) fn is_atomic(op: Op) -> bool {
    matches!(op, Op::AtomicLoad | Op::AtomicStore | Op::AtomicRmw)
}

/// An access that is compared to earlier ones.
struct New<'a> {
    blocks: &'a [BlockInfo],
    kinds: &'a Kinds,
    /// The lane's.
    clock: &'a Clock,
    stamp: Stamp,
    kind: Kind,
}

impl New<'_> {
    #[inline]
    fn knows(&self, before: &Stamp) -> bool {
        self.clock.knows(before.slot(self.blocks), before.time)
    }

    /// Whether nothing orders the two, and they have to be ordered.
    #[inline]
    fn races(&self, before: &Stamp) -> bool {
        if self.knows(before) {
            return false;
        }
        let (kind, blocks) = (self.kinds.get(before.kind), self.blocks);
        let (by, earlier) = (self.stamp.who(), before.who());
        // Of the same bytes and no others, by lanes in each other's scopes.
        let strong = kind.mask == self.kind.mask
            && kind.is_atomic()
            && self.kind.is_atomic()
            && includes(blocks, kind.scope, earlier, by)
            && includes(blocks, self.kind.scope, by, earlier);
        kind.mask & self.kind.mask != 0 && !strong
    }

    /// Whether all that race with an earlier access race with this one too.
    #[inline]
    fn covers(&self, before: &Stamp) -> bool {
        let kind = self.kinds.get(before.kind);
        kind.mask & !self.kind.mask == 0 && !is_safer(&self.kind, &kind) && self.knows(before)
    }
}

/// Whether an access goes together with accesses of others that one before it does not.
fn is_safer(access: &Kind, before: &Kind) -> bool {
    access.is_atomic()
        && (!before.is_atomic() || narrower(access.scope, before.scope) != access.scope)
}

/// The scope that is in both.
pub(super) fn narrower(a: ScopeKind, b: ScopeKind) -> ScopeKind {
    match (a, b) {
        (ScopeKind::Cta, _) | (_, ScopeKind::Cta) => ScopeKind::Cta,
        (ScopeKind::Gpu, _) | (_, ScopeKind::Gpu) => ScopeKind::Gpu,
        _ => ScopeKind::Sys,
    }
}

//! Accesses, one by one: whether there is such memory, whether anything orders them against what others
//! did before, and what they see.
//!
//! The rules are those of the PTX memory model as far as the project's forms need them
//! (docs/src/memory-model.md). Atomic accesses of the same bytes do not race with each other if each one's
//! scope holds the other's lane. All others have to be ordered: see `orders`.

use std::num::NonZeroU32;

use mscclrs_device::arch::host::{Access, Bits, Op, read_raw, write_raw};
use mscclrs_device::{OrderKind, ScopeKind};

use super::cells::Stamp;
use super::decisions::Effect;
use super::finding::{Finding, FindingKind, Site};
use super::memory::{Found, MemoryOwner};
use super::mode::Check;
use super::moves::MoveInfo;
use super::orders::chain;
use super::trace::Event;
use super::watch::{LaneState, State, includes};

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
    pub(super) offset: u64,
    pub(super) owner: MemoryOwner,
}

/// The cells that an access touches: their offsets and which of their bytes.
pub(super) fn parts(offset: u64, size: u32) -> impl Iterator<Item = (u64, u8)> {
    let first = (0xff_u16 >> (8 - size.min(8))) << (offset % 8);
    let second = (size == 16).then_some((offset + 8, 0xff));
    std::iter::once((offset & !7, first as u8)).chain(second)
}

impl State {
    fn locate(&mut self, who: u32, access: &Access) -> Checked<At> {
        self.refresh();
        let (address, size) = (access.address as u64, u64::from(access.size));
        // Sizes are powers of two.
        if address & (size - 1) != 0 {
            let what = format!("{size} bytes at {address:#x}, which is not a multiple of {size}");
            return Err(self.about(FindingKind::Misaligned, what, who, access, None).into());
        }
        let (kind, what) = match self.view.find(address, size) {
            Found::In { object, offset, owner } => return Ok(At { object, offset, owner }),
            Found::Past { offset, bytes } => (
                FindingKind::Outside,
                format!("{size} bytes at byte {offset} of memory that has {bytes}"),
            ),
            Found::Gone { offset, bytes } => (
                FindingKind::Released,
                format!("{size} bytes at byte {offset} of {bytes} bytes that have been released"),
            ),
            Found::Nowhere => {
                (FindingKind::Outside, format!("{size} bytes at {address:#x}: there is no memory"))
            }
        };
        Err(self.about(kind, what, who, access, None).into())
    }

    pub(super) fn stamp(&mut self, who: u32, access: &Access, mask: u8) -> Stamp {
        let LaneState { who, clock, .. } = &self.lanes[who as usize];
        let (who, slot, time) = (*who, clock.slot, clock.time);
        let line = self.line(access.from);
        Stamp::new(who, (slot, time), line, mask, access)
    }

    fn trace(&mut self, who: u32, access: &Access, at: At, bits: Bits, effect: Effect) {
        let (line, object) = (self.line(access.from), self.cells.number(at.object));
        let Access { op, order, scope, .. } = *access;
        let (who_did, offset, bits) = (self.who(who), at.offset, bits[0]);
        if let Some(decisions) = self.decisions.as_mut().filter(|_| !self.in_vain) {
            decisions.accessed(who, access, effect);
        }
        let (who, in_vain) = (who_did, self.in_vain);
        let event = Event { step: 0, who, line, object, offset, bits, op, order, scope, in_vain };
        self.trace.add(event);
    }

    pub(super) fn load(&mut self, who: u32, access: Access) -> Checked<Bits> {
        let at = self.locate(who, &access)?;
        if at.owner == MemoryOwner::Device {
            self.compare_all(who, &access, (at.object, at.offset))?;
        }
        let bits = if at.owner == MemoryOwner::Device && self.mode.check == Check::Weak {
            self.load_late(who, &access, at.object, at.offset)
        } else {
            // SAFETY: the view has the memory, and the address is a multiple of the size.
            unsafe { read_raw(access.address, access.size) }
        };
        let is_late = at.owner == MemoryOwner::Device && self.mode.check == Check::Weak;
        if access.op == Op::AtomicLoad && !is_late {
            self.synchronize(who, &access, at);
        }
        self.trace(who, &access, at, bits, Effect::Read);
        Ok(bits)
    }

    pub(super) fn store(&mut self, who: u32, access: Access, bits: Bits) -> Checked<()> {
        let at = self.locate(who, &access)?;
        if at.owner == MemoryOwner::Device {
            self.compare_all(who, &access, (at.object, at.offset))?;
            if self.mode.check == Check::Weak {
                self.keep_value(at.object, at.offset, access.size, access.address);
            }
        }
        // SAFETY: the view has the memory, and the address is a multiple of the size.
        unsafe { write_raw(access.address, access.size, bits) };
        if self.mode.check != Check::Ordered {
            let release = self.release(who, &access, at);
            self.add_value(who, &access, at, release);
        }
        self.trace(who, &access, at, bits, Effect::Changed);
        Ok(())
    }

    /// The value before, and whether it was changed.
    pub(super) fn modify(
        &mut self,
        who: u32,
        access: Access,
        change: &dyn Fn(u64) -> Option<u64>,
    ) -> Checked<(u64, bool)> {
        let at = self.locate(who, &access)?;
        let watched = self.mode.check != Check::Ordered;
        if watched && at.owner == MemoryOwner::Device {
            self.compare_all(who, &access, (at.object, at.offset))?;
            if self.mode.check == Check::Weak {
                self.keep_value(at.object, at.offset, access.size, access.address);
            }
        }
        // SAFETY: the view has the memory, and the address is a multiple of the size.
        let before = unsafe { read_raw(access.address, access.size) }[0];
        let after = change(before);
        let earlier = watched.then(|| self.handed_on(who, &access, at)).flatten();
        if watched {
            self.synchronize(who, &access, at);
        }
        if let Some(after) = after {
            // SAFETY: as above. Only lanes of this thread write device memory; what the host writes
            // at the same time may be lost, as a GPU's atomics are none for the CPU.
            unsafe { write_raw(access.address, access.size, [after, 0]) };
            if watched {
                let own = self.release(who, &access, at);
                let release = chain(earlier, own);
                self.add_value(who, &access, at, release);
            }
        }
        let effect = match after {
            None => Effect::Read,
            Some(after) if after == before => Effect::Rewrote,
            Some(_) => Effect::Changed,
        };
        self.trace(who, &access, at, [after.unwrap_or(before), 0], effect);
        Ok((before, effect == Effect::Changed))
    }

    pub(super) fn shared(
        &mut self,
        who: u32,
        object: u64,
        bytes: u32,
        access: Access,
    ) -> Checked<()> {
        let (offset, size) = (access.address as u64, access.size);
        if !offset.is_multiple_of(size.into()) {
            let what = format!(
                "{size} bytes at byte {offset} of a block's shared memory, which is not a multiple of {size}"
            );
            return Err(self.about(FindingKind::Misaligned, what, who, &access, None).into());
        }
        if offset + u64::from(size) > u64::from(bytes) {
            let what = format!("byte {offset} of a block's shared memory, which has {bytes}");
            return Err(self.about(FindingKind::Outside, what, who, &access, None).into());
        }
        self.compare_all(who, &access, (object, offset))
    }

    /// Compares an access to the earlier ones of its cells, and remembers it, in checked mode.
    fn compare_all(
        &mut self,
        who: u32,
        access: &Access,
        (object, offset): (u64, u64),
    ) -> Checked<()> {
        if self.mode.check != Check::Checked {
            return Ok(());
        }
        for (offset, mask) in parts(offset, access.size) {
            self.compare(who, access, (object, offset, mask))?;
        }
        Ok(())
    }

    /// Compares an access to the earlier ones of the cell, and remembers it.
    fn compare(
        &mut self,
        who: u32,
        access: &Access,
        (object, offset, mask): (u64, u64, u8),
    ) -> Checked<()> {
        // After a wait has ended early, data is missing, and what would have ordered it.
        let spoilt = self.spoilt;
        let stamp = self.stamp(who, access, mask);
        let (blocks, moves, by) = (&self.blocks, &self.moves, stamp.who());
        let cell = self.cells.cell(object, offset);
        let unwritten = cell.written & mask != mask;
        let clock = &self.lanes[who as usize].clock;
        let races = |before: &&Stamp| {
            // Of the same bytes and no others, by lanes in each other's scopes.
            let strong = before.mask == mask
                && before.is_atomic()
                && stamp.is_atomic()
                && includes(blocks, before.scope, before.who(), by)
                && includes(blocks, stamp.scope, by, before.who());
            !spoilt && before.mask & mask != 0 && !strong && !clock.knows(before.slot, before.time)
        };
        let writes = stamp.writes();
        let reads = cell.reads().filter(|_| writes);
        let before = cell.writes().chain(reads).find(races).copied();
        if let Some(before) = before {
            return Err(self.race(who, access, (object, offset, mask), before).into());
        }
        if (cell.moved_to.is_some() || cell.moved_from().is_some()) && !spoilt {
            let moved = |&number: &NonZeroU32| {
                let MoveInfo { slot, time, .. } = moves[number.get() as usize - 1];
                !clock.knows(slot, time)
            };
            let read = cell.moved_from().filter(|_| writes);
            if let Some(number) = cell.moved_to.filter(moved).or(read.filter(moved)) {
                return Err(self.race_with_move(who, access, (object, offset), number).into());
            }
            if writes && mask == 0xff {
                cell.moved_to = None;
                cell.set_moved_from(None);
            }
        }
        if unwritten && access.op == Op::Load && !spoilt {
            let what = "these bytes were never written, by a kernel, a copy or the host, or came by a \
                        copy from such; memory is 0 at first, so this reads zeros that nobody put there";
            let place = Some((object, offset));
            return Err(self.about(FindingKind::Unwritten, what.into(), who, access, place).into());
        }
        let covered = |before: &Stamp| {
            before.mask & !mask == 0
                && !is_safer(&stamp, before)
                && (before.slot == stamp.slot || clock.knows(before.slot, before.time))
        };
        if writes {
            cell.written |= mask;
            cell.forget(covered);
            cell.add_write(stamp);
        } else {
            // A read that everybody knows of who knows of this one says nothing new.
            cell.add_read(stamp, covered);
        }
        Ok(())
    }

    fn race_with_move(
        &mut self,
        who: u32,
        access: &Access,
        place: (u64, u64),
        number: NonZeroU32,
    ) -> Finding {
        let MoveInfo { device, name, .. } = self.move_info(number);
        let what = format!(
            "a kernel comes to memory after the {name} of a queue of device {device}, at byte {:#x} of memory \
             {}, and nothing orders the two",
            place.1,
            self.cells.number(place.0)
        );
        let finding = self.about(FindingKind::Race, what, who, access, Some(place));
        Finding { missing: Some(super::moves::MISSING.into()), ..finding }
    }

    fn race(
        &mut self,
        who: u32,
        access: &Access,
        (object, offset, mask): (u64, u64, u8),
        before: Stamp,
    ) -> Finding {
        let what = format!(
            "two accesses to the same memory, byte {offset:#x} of memory {}, and nothing orders them",
            self.cells.number(object)
        );
        let mut finding = self.about(FindingKind::Race, what, who, access, Some((object, offset)));
        let text = words(before.op, before.order, before.scope);
        let line = self.line_texts[before.line as usize].to_string();
        finding.other = Some(self.site(before.who(), line, text));
        let place = (self.cells.number(object), offset);
        finding.steps = self.interleaving(&[self.who(who), before.who()], Some(place));
        let misses = &self.lanes[who as usize].misses;
        // Two launches of one device have an order if their queue or an event gives it.
        let place = |site: &Option<Site>| site.as_ref().map(|site| (site.device, site.launch));
        let two_launches = match (place(&finding.here), place(&finding.other)) {
            (Some(here), Some(other)) => here.0 == other.0 && here.1 != other.1,
            _ => false,
        };
        let near = misses.iter().rev().find(|m| m.slot == before.slot && m.time >= before.time);
        finding.missing = Some(match near {
            Some(miss) => miss.why.clone(),
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
                "an event that the queue of the first launch records and that of the second waits for, or \
                 one queue for both (or, while both run, a release by the first lane after its access, \
                 and an acquire that sees it by the second before its own)"
                    .into()
            }
            None => {
                "a release by the first lane after its access, and an acquire that sees it by the \
                     second before its own (or a barrier that both come to)"
                    .into()
            }
        });
        finding
    }
}

pub(super) fn is_atomic(op: Op) -> bool {
    matches!(op, Op::AtomicLoad | Op::AtomicStore | Op::AtomicRmw)
}

/// Whether an access goes together with accesses of others that one before it does not.
fn is_safer(access: &Stamp, before: &Stamp) -> bool {
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

//! Accesses, one by one: whether there is such memory, whether anything orders them against what others
//! did before, and what they see.
//!
//! The rules are those of the PTX memory model as far as the project's forms need them. Atomic accesses
//! do not race with each other if each one's scope holds the other's lane. A release store and an
//! acquire load that sees it, or a read-modify-write after it, order what came before the one before
//! what comes after the other; so do fences with relaxed atomics, barriers, and the order of launches in
//! a queue. A relaxed load orders nothing.

use mscclrs_device::arch::host::{Access, Bits, Op, read_raw, write_raw};
use mscclrs_device::{OrderKind, ScopeKind};

use super::cells::{Release, Stamp};
use super::clock::join;
use super::finding::{Finding, FindingKind};
use super::memory::{Found, MemoryOwner};
use super::mode::Check;
use super::trace::Event;
use super::watch::{Miss, State, includes};

/// Atomic loads that a lane remembers to have ordered nothing.
const MISSES: usize = 8;

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

fn acquires(order: OrderKind) -> bool {
    matches!(order, OrderKind::Acquire | OrderKind::AcqRel)
}

fn releases(order: OrderKind) -> bool {
    matches!(order, OrderKind::Release | OrderKind::AcqRel)
}

/// Where an access goes: a piece of memory and the byte in it.
#[derive(Clone, Copy)]
struct At {
    object: u64,
    offset: u64,
    owner: MemoryOwner,
}

/// The cells that an access touches: their offsets and which of their bytes.
fn parts(offset: u64, size: u32) -> impl Iterator<Item = (u64, u8)> {
    let first = (0xff_u16 >> (8 - size.min(8))) << (offset % 8);
    let second = (size == 16).then_some((offset + 8, 0xff));
    std::iter::once((offset & !7, first as u8)).chain(second)
}

impl State {
    fn locate(&mut self, who: u32, access: &Access) -> Checked<At> {
        self.refresh();
        let (address, size) = (access.address as u64, u64::from(access.size));
        if address % size != 0 {
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
        let clock = &self.lanes[who as usize].clock;
        let (slot, time) = (clock.slot, clock.time);
        let line = self.line(access.from);
        let Access { op, order, scope, .. } = *access;
        Stamp { who, slot, time, line, mask, op, order, scope }
    }

    fn trace(&mut self, who: u32, access: &Access, at: At, bits: Bits) {
        let (line, object) = (self.line(access.from), self.cells.number(at.object));
        let Access { op, order, scope, .. } = *access;
        let (offset, bits) = (at.offset, bits[0]);
        self.trace.add(Event { step: 0, who, line, object, offset, bits, op, order, scope });
    }

    pub(super) fn load(&mut self, who: u32, access: Access) -> Checked<Bits> {
        let at = self.locate(who, &access)?;
        if at.owner == MemoryOwner::Device {
            for (offset, mask) in parts(at.offset, access.size) {
                self.compare(who, &access, (at.object, offset, mask))?;
            }
        }
        let bits = if at.owner == MemoryOwner::Device && self.mode.check == Check::Weak {
            self.load_late(who, &access, at.object, at.offset)
        } else {
            // SAFETY: the view has the memory, and the address is a multiple of the size.
            unsafe { read_raw(access.address, access.size) }
        };
        if at.owner == MemoryOwner::Device
            && access.op == Op::AtomicLoad
            && self.mode.check == Check::Checked
        {
            self.synchronize(who, &access, at.object, at.offset);
        }
        self.trace(who, &access, at, bits);
        Ok(bits)
    }

    pub(super) fn store(&mut self, who: u32, access: Access, bits: Bits) -> Checked<()> {
        let at = self.locate(who, &access)?;
        let watched = at.owner == MemoryOwner::Device;
        if watched {
            for (offset, mask) in parts(at.offset, access.size) {
                self.compare(who, &access, (at.object, offset, mask))?;
            }
            if self.mode.check == Check::Weak {
                self.keep_value(at.object, at.offset, access.size, access.address);
            }
        }
        // SAFETY: the view has the memory, and the address is a multiple of the size.
        unsafe { write_raw(access.address, access.size, bits) };
        if watched && self.mode.check != Check::Ordered {
            let release = self.release(who, &access);
            self.add_value(who, &access, at.object, at.offset, release);
        }
        self.trace(who, &access, at, bits);
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
        let watched = at.owner == MemoryOwner::Device && self.mode.check != Check::Ordered;
        if watched {
            for (offset, mask) in parts(at.offset, access.size) {
                self.compare(who, &access, (at.object, offset, mask))?;
            }
            if self.mode.check == Check::Weak {
                self.keep_value(at.object, at.offset, access.size, access.address);
            }
        }
        // SAFETY: the view has the memory, and the address is a multiple of the size.
        let before = unsafe { read_raw(access.address, access.size) }[0];
        let after = change(before);
        let earlier = watched.then(|| self.latest_release(at.object, at.offset)).flatten();
        if watched {
            self.synchronize(who, &access, at.object, at.offset);
        }
        if let Some(after) = after {
            // SAFETY: as above. Only lanes of this thread write device memory; what the host writes
            // at the same time may be lost, as a GPU's atomics are none for the CPU.
            unsafe { write_raw(access.address, access.size, [after, 0]) };
            if watched {
                let own = self.release(who, &access);
                let release = chain(earlier, own);
                self.add_value(who, &access, at.object, at.offset, release);
            }
        }
        self.trace(who, &access, at, [after.unwrap_or(before), 0]);
        Ok((before, after.is_some()))
    }

    pub(super) fn fence(&mut self, who: u32, scope: ScopeKind) {
        if self.mode.check == Check::Ordered {
            return;
        }
        let lane = &mut self.lanes[who as usize];
        let pending = std::mem::take(&mut lane.pending);
        for (release, load_scope) in pending {
            if self.includes(narrower(scope, load_scope), who, release.who) {
                self.lanes[who as usize].clock.acquire(&release.known);
            }
        }
        let known = self.lanes[who as usize].clock.release();
        self.lanes[who as usize].fence = Some((known, scope));
    }

    pub(super) fn shared(
        &mut self,
        who: u32,
        object: u64,
        bytes: u32,
        access: Access,
    ) -> Checked<()> {
        if self.mode.check == Check::Ordered {
            return Ok(());
        }
        let (offset, size) = (access.address as u64, access.size);
        if offset + u64::from(size) > u64::from(bytes) {
            let what = format!("byte {offset} of a block's shared memory, which has {bytes}");
            return Err(self.about(FindingKind::Outside, what, who, &access, None).into());
        }
        for (offset, mask) in parts(offset, size) {
            self.compare(who, &access, (object, offset, mask))?;
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
        if self.mode.check != Check::Checked {
            return Ok(());
        }
        let stamp = self.stamp(who, access, mask);
        let (whos, launches) = (&self.whos, &self.launches);
        let cell = self.cells.cell(object, offset);
        let unwritten = cell.written & mask != mask;
        let clock = &self.lanes[who as usize].clock;
        let races = |before: &&Stamp| {
            let strong = before.is_atomic()
                && stamp.is_atomic()
                && includes(whos, launches, before.scope, before.who, who)
                && includes(whos, launches, stamp.scope, who, before.who);
            before.mask & mask != 0 && !strong && !clock.knows(before.slot, before.time)
        };
        let reads = if stamp.writes() { cell.reads.as_slice() } else { &[] };
        if let Some(&before) = cell.writes.iter().chain(reads).find(races) {
            return Err(self.race(who, access, (object, offset), before).into());
        }
        if unwritten && access.op == Op::Load {
            let what = "these bytes were never written, by a kernel, a copy or the host; memory is 0 at \
                        first, so this reads zeros that nobody put there";
            let place = Some((object, offset));
            return Err(self.about(FindingKind::Unwritten, what.into(), who, access, place).into());
        }
        let cell = self.cells.cell(object, offset);
        let clock = &self.lanes[who as usize].clock;
        let covered = |before: &Stamp| {
            before.mask & !mask == 0
                && (before.slot == stamp.slot || clock.knows(before.slot, before.time))
        };
        if stamp.writes() {
            cell.written |= mask;
            cell.writes.retain(|before| !covered(before));
            cell.reads.retain(|before| !covered(before));
            cell.writes.push(stamp);
        } else {
            // A read that everybody knows of who knows of this one says nothing new.
            let recent = cell.reads.len().saturating_sub(4);
            match cell.reads[recent..].iter().position(covered) {
                Some(at) => cell.reads[recent + at] = stamp,
                None => {
                    if cell.reads.len() > 64 {
                        cell.reads.retain(|before| !covered(before));
                    }
                    cell.reads.push(stamp);
                }
            }
        }
        Ok(())
    }

    fn race(
        &mut self,
        who: u32,
        access: &Access,
        (object, offset): (u64, u64),
        before: Stamp,
    ) -> Finding {
        let what = format!(
            "two accesses to the same memory, byte {offset:#x} of memory {}, and nothing orders them",
            self.cells.number(object)
        );
        let mut finding = self.about(FindingKind::Race, what, who, access, Some((object, offset)));
        let text = words(before.op, before.order, before.scope);
        let line = self.line_texts[before.line as usize].to_string();
        finding.other = Some(self.site(before.who, line, text));
        let place = (self.cells.number(object), offset);
        finding.steps = self.steps(&[who, before.who], Some(place));
        let misses = &self.lanes[who as usize].misses;
        let near = misses.iter().rev().find(|m| m.slot == before.slot && m.time >= before.time);
        finding.missing = Some(match near {
            Some(miss) => miss.why.clone(),
            None if before.is_atomic() && is_atomic(access.op) => format!(
                "a scope that holds both lanes: one has {} scope, the other {} scope",
                scope_name(before.scope),
                scope_name(access.scope)
            ),
            None => {
                "a release by the first lane after its access, and an acquire that sees it by the \
                     second before its own (or a barrier that both come to)"
                    .into()
            }
        });
        finding
    }

    /// What a store makes known to who acquires it.
    fn release(&mut self, who: u32, access: &Access) -> Option<Release> {
        if !is_atomic(access.op) {
            return None;
        }
        let lane = &mut self.lanes[who as usize];
        if releases(access.order) {
            return Some(Release { known: lane.clock.release(), scope: access.scope, who });
        }
        let (known, scope) = lane.fence.clone()?;
        Some(Release { known, scope: narrower(scope, access.scope), who })
    }

    /// What an atomic load learns from the value that it sees.
    fn synchronize(&mut self, who: u32, access: &Access, object: u64, offset: u64) {
        let cell = self.cells.cell(object, offset & !7);
        let Some(value) = cell.values.last() else { return };
        let (release, by) = (value.release.clone(), value.by);
        self.learn(who, access, release, by);
    }

    /// What an atomic load learns from a value.
    pub(super) fn learn(
        &mut self,
        who: u32,
        access: &Access,
        release: Option<Release>,
        by: Option<Stamp>,
    ) {
        let Some(by) = by.filter(|by| by.who != who) else { return };
        let reaches = release.as_ref().is_some_and(|release| {
            self.includes(release.scope, release.who, who)
                && self.includes(access.scope, who, release.who)
        });
        match release {
            Some(release) if reaches && acquires(access.order) => {
                self.lanes[who as usize].clock.acquire(&release.known);
                return;
            }
            Some(release) if reaches => {
                let pending = &mut self.lanes[who as usize].pending;
                // The newest of each lane is enough.
                pending.retain(|(before, _)| before.who != release.who);
                pending.push((release, access.scope));
            }
            _ => {}
        }
        if self.mode.check != Check::Checked
            || self.lanes[who as usize]
                .misses
                .iter()
                .any(|miss| (miss.slot, miss.time) == (by.slot, by.time))
        {
            return;
        }
        let (load, store) = (access.from, self.line_texts[by.line as usize]);
        let why = if !releases(by.order) && !reaches && by.scope == ScopeKind::Sys {
            format!(
                "a release: the {} at {load} saw the {} at {store}, which orders nothing",
                words(access.op, access.order, access.scope),
                words(by.op, by.order, by.scope)
            )
        } else if !reaches {
            format!(
                "a scope that holds both lanes: the {} at {load} saw the {} at {store}",
                words(access.op, access.order, access.scope),
                words(by.op, by.order, by.scope)
            )
        } else {
            format!(
                "an acquire: the {} at {load} saw the {} at {store}, but orders nothing",
                words(access.op, access.order, access.scope),
                words(by.op, by.order, by.scope)
            )
        };
        let misses = &mut self.lanes[who as usize].misses;
        if misses.len() == MISSES {
            misses.pop_front();
        }
        misses.push_back(Miss { slot: by.slot, time: by.time, why });
    }
}

pub(super) fn is_atomic(op: Op) -> bool {
    matches!(op, Op::AtomicLoad | Op::AtomicStore | Op::AtomicRmw)
}

/// The scope that is in both.
fn narrower(a: ScopeKind, b: ScopeKind) -> ScopeKind {
    match (a, b) {
        (ScopeKind::Cta, _) | (_, ScopeKind::Cta) => ScopeKind::Cta,
        (ScopeKind::Gpu, _) | (_, ScopeKind::Gpu) => ScopeKind::Gpu,
        _ => ScopeKind::Sys,
    }
}

/// A read-modify-write hands on what was released before it.
fn chain(earlier: Option<Release>, own: Option<Release>) -> Option<Release> {
    match (earlier, own) {
        (Some(earlier), Some(mut own)) => {
            join(&mut own.known, &earlier.known);
            own.scope = narrower(own.scope, earlier.scope);
            Some(own)
        }
        (earlier, own) => own.or(earlier),
    }
}

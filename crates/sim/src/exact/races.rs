//! Accesses, one by one: whether there is such memory, whether anything orders them against what others
//! did before, and what they see.
//!
//! The rules are those of the PTX memory model as far as the project's forms need them
//! (docs/src/memory-model.md). Atomic accesses do not race with each other if each one's scope holds the
//! other's lane. A release store and an acquire load that sees it order what came before the one before
//! what comes after the other. Between the two may be read-modify-writes, later stores of the same lane to
//! the word, and earlier loads of the same lane of it. So do fences with relaxed atomics, barriers, and the
//! order of launches in a queue. A relaxed load alone orders nothing.

use std::collections::VecDeque;

use mscclrs_device::arch::host::{Access, Bits, Op, read_raw, write_raw};
use mscclrs_device::{OrderKind, ScopeKind};

use super::cells::{Release, Stamp};
use super::clock::join;
use super::finding::{Finding, FindingKind};
use super::memory::{Found, MemoryOwner};
use super::mode::Check;
use super::trace::Event;
use super::watch::{Miss, OfWord, State, includes};

/// Atomic loads that a lane remembers to have ordered nothing.
const MISSES: usize = 8;
/// Words of which a lane remembers what it released last, and what it saw last.
const WORDS: usize = 4;

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
pub(super) fn parts(offset: u64, size: u32) -> impl Iterator<Item = (u64, u8)> {
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
        if let Some(decisions) = self.decisions.as_mut().filter(|_| !self.in_vain) {
            decisions.accessed(who, access);
        }
        let in_vain = self.in_vain;
        self.trace.add(Event {
            step: 0,
            who,
            line,
            object,
            offset,
            bits,
            op,
            order,
            scope,
            in_vain,
        });
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
            self.synchronize(who, &access, at);
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
            let release = self.release(who, &access, at);
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
        lane.seen.clear();
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
                && !is_safer(&stamp, before)
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
        finding.steps = self.interleaving(&[who, before.who], Some(place));
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
    fn release(&mut self, who: u32, access: &Access, at: At) -> Option<Release> {
        if !is_atomic(access.op) {
            return None;
        }
        let lane = &mut self.lanes[who as usize];
        let (place, scope) = ((at.object, at.offset), access.scope);
        if releases(access.order) {
            let release = Release { known: lane.clock.release(), scope, who, also: None };
            lane.released.retain(|(before, _)| *before != place);
            lane.released.truncate(WORDS - 1);
            lane.released.push_front((place, release.clone()));
            return Some(release);
        }
        let fence = lane.fence.clone().map(|(known, fence_scope)| Release {
            known,
            scope: narrower(fence_scope, scope),
            who,
            also: None,
        });
        // A release of a word goes on in the lane's later stores to it.
        let before = lane.released.iter().find(|(before, _)| *before == place);
        let before = before.map(|(_, release)| Release {
            scope: narrower(release.scope, scope),
            ..release.clone()
        });
        chain(before, fence)
    }

    /// What was released before a read-modify-write and goes on in what it writes.
    fn handed_on(&mut self, who: u32, access: &Access, at: At) -> Option<Release> {
        let (cell, mask) = parts(at.offset, access.size).next()?;
        let earlier = self.latest_release(at.object, cell, mask)?;
        let reaching = earlier.all().filter(|release| self.reaches(release, access, who));
        reaching
            .cloned()
            .map(|release| Release { also: None, ..release })
            .fold(None, |a, b| chain(a, Some(b)))
    }

    /// Whether the scopes of a release and of a load hold each other's lanes.
    fn reaches(&self, release: &Release, access: &Access, who: u32) -> bool {
        self.includes(release.scope, release.who, who)
            && self.includes(access.scope, who, release.who)
    }

    /// What an atomic load learns from the newest value.
    fn synchronize(&mut self, who: u32, access: &Access, at: At) {
        for (cell, mask) in parts(at.offset, access.size) {
            let value = self.cells.cell(at.object, cell).values.last();
            let write = value.and_then(|value| value.write(mask));
            let write = write.map(|(by, release)| (by, release.clone()));
            self.learn(who, access, (at.object, cell, mask), write);
        }
    }

    /// What an atomic load learns from a value.
    pub(super) fn learn(
        &mut self,
        who: u32,
        access: &Access,
        (object, at, mask): (u64, u64, u8),
        write: Option<(Stamp, Option<Release>)>,
    ) {
        let place = (object, at + u64::from(mask.trailing_zeros()));
        if acquires(access.order) {
            self.learn_seen(who, access, place);
        }
        let Some((by, release)) = write else { return };
        if by.who == who || !by.is_atomic() {
            return;
        }
        let mut reaches = false;
        for release in release.iter().flat_map(Release::all) {
            if !self.reaches(release, access, who) {
                continue;
            }
            reaches = true;
            let (lane, load_scope) = (&mut self.lanes[who as usize], access.scope);
            if acquires(access.order) {
                lane.clock.acquire(&release.known);
                continue;
            }
            let same = |(before, scope): &&mut (Release, ScopeKind)| {
                (before.who, before.scope, *scope) == (release.who, release.scope, load_scope)
            };
            match lane.pending.iter_mut().find(same) {
                Some((before, _)) => join(&mut before.known, &release.known),
                None => lane.pending.push((release.clone(), load_scope)),
            }
            remember(&mut lane.seen, OfWord { place, release: release.clone(), load_scope });
        }
        if (reaches && acquires(access.order))
            || self.mode.check != Check::Checked
            || self.lanes[who as usize]
                .misses
                .iter()
                .any(|miss| (miss.slot, miss.time) == (by.slot, by.time))
        {
            return;
        }
        let (load, store) = (access.from, self.line_texts[by.line as usize]);
        let scopes_meet =
            self.includes(by.scope, by.who, who) && self.includes(access.scope, who, by.who);
        let (missing, so) = match () {
            () if reaches => ("an acquire", ", but orders nothing"),
            () if scopes_meet && release.is_none() => ("a release", ", which orders nothing"),
            () => ("a scope that holds both lanes", ""),
        };
        let why = format!(
            "{missing}: the {} at {load} saw the {} at {store}{so}",
            words(access.op, access.order, access.scope),
            words(by.op, by.order, by.scope)
        );
        let misses = &mut self.lanes[who as usize].misses;
        if misses.len() == MISSES {
            misses.pop_front();
        }
        misses.push_back(Miss { slot: by.slot, time: by.time, why });
    }

    /// An acquire of a word learns what the lane's relaxed loads of it saw.
    fn learn_seen(&mut self, who: u32, access: &Access, place: (u64, u64)) {
        let lane = &mut self.lanes[who as usize];
        if !lane.seen.iter().any(|seen| seen.place == place) {
            return;
        }
        let seen = std::mem::take(&mut lane.seen);
        let (here, elsewhere) = seen.into_iter().partition(|seen| seen.place == place);
        lane.seen = elsewhere;
        let here: VecDeque<OfWord> = here;
        for OfWord { release, load_scope, .. } in here {
            if self.includes(narrower(access.scope, load_scope), who, release.who) {
                self.lanes[who as usize].clock.acquire(&release.known);
            }
        }
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
fn narrower(a: ScopeKind, b: ScopeKind) -> ScopeKind {
    match (a, b) {
        (ScopeKind::Cta, _) | (_, ScopeKind::Cta) => ScopeKind::Cta,
        (ScopeKind::Gpu, _) | (_, ScopeKind::Gpu) => ScopeKind::Gpu,
        _ => ScopeKind::Sys,
    }
}

/// Both: those of one scope are one.
fn chain(earlier: Option<Release>, own: Option<Release>) -> Option<Release> {
    let (earlier, mut own) = match (earlier, own) {
        (Some(earlier), Some(own)) => (earlier, own),
        (earlier, own) => return own.or(earlier),
    };
    let mut next = Some(Box::new(earlier));
    while let Some(mut release) = next {
        next = release.also.take();
        own.add(release);
    }
    Some(own)
}

/// What was seen of a few words stays.
fn remember(words: &mut VecDeque<OfWord>, new: OfWord) {
    let same = |old: &&mut OfWord| {
        (old.place, old.load_scope) == (new.place, new.load_scope)
            && (old.release.who, old.release.scope) == (new.release.who, new.release.scope)
    };
    match words.iter_mut().find(same) {
        Some(old) => join(&mut old.release.known, &new.release.known),
        None => {
            if words.len() == WORDS {
                words.pop_front();
            }
            words.push_back(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_one_scope_are_one_and_those_of_others_stay() {
        let release = |scope, slot: usize| {
            let mut known = vec![0; 3];
            known[slot] = 1;
            Some(Release { known: known.into(), scope, who: 0, also: None })
        };
        let (gpu, sys) = (ScopeKind::Gpu, ScopeKind::Sys);
        let all = chain(chain(release(sys, 0), release(gpu, 1)), release(sys, 2)).unwrap();
        let parts: Vec<_> = all.all().map(|part| (part.scope, part.known.to_vec())).collect();
        assert_eq!(parts, [(sys, vec![1, 0, 1]), (gpu, vec![0, 1, 0])]);
    }
}

//! Values that loads may see late, in weak mode.
//!
//! A cell keeps the values that it held lately. A load may see any of them that is not older than one
//! which the lane knows of: one that was written, or seen by somebody, before something that the lane
//! has acquired. So plain and relaxed stores become visible in any order until a release, loads may be
//! early, and 16 bytes may come as two halves of different age; but a lane never sees a cell go back,
//! and read-modify-writes see the newest value. Memory itself holds the newest values.

use std::rc::Rc;

use mscclrs_device::ScopeKind;
use mscclrs_device::arch::host::{Access, Bits, Op, read_raw};

use super::cells::{MOST_VALUES, Release, Value};
use super::memory::MemoryOwner;
use super::mode::Check;
use super::races::At;
use super::watch::State;

/// Late values that a lane sees one after the other, at most: what is stored is seen in the end.
const MOST_LATE: u8 = 4;

impl State {
    /// Before a store in weak mode: what the cells hold is a value that may still be seen.
    pub(super) fn keep_value(&mut self, object: u64, offset: u64, size: u32, address: usize) {
        let (mut at, end) = (offset & !7, offset + u64::from(size));
        let base = address as u64 - offset;
        while at < end {
            // SAFETY: it lies in the same aligned 8 bytes as the access.
            let bits = unsafe { word(base + at) };
            let cell = self.cells.cell(object, at);
            // Something else than a kernel has written it.
            if cell.values.last().is_none_or(|value| value.bits != bits) {
                cell.values.set(Some(Value::of(bits)));
            }
            at += 8;
        }
    }

    /// After a store: the newest value, and what an acquire that sees it learns.
    pub(super) fn add_value(
        &mut self,
        who: u32,
        access: &Access,
        At { object, offset, owner }: At,
        release: Option<Release>,
    ) {
        let weak = self.mode.check == Check::Weak;
        let of_host = owner == MemoryOwner::Host;
        if let (true, Some(release)) = (of_host, &release) {
            // The host may look at any time.
            let reaching = release.all().filter(|release| release.scope == ScopeKind::Sys);
            reaching.for_each(|release| release.known.add_to(&mut self.host));
        }
        let release = release.map(Rc::new);
        let base = access.address as u64 - offset;
        for (at, mask) in super::races::parts(offset, access.size) {
            let stamp = self.stamp(who, access, mask);
            let bits = if weak || of_host {
                // SAFETY: it lies in the same aligned 8 bytes as the access.
                unsafe { word(base + at) }
            } else {
                0
            };
            let cell = self.cells.cell(object, at);
            let beside = if mask == 0xff {
                None
            } else {
                let half = if mask & 0xf == 0 { 0xf } else { 0xf0 };
                let write = cell.values.last().and_then(|value| value.write(half));
                write.map(|(by, release)| Box::new((by, release.clone())))
            };
            let is_kept = weak || of_host || beside.is_some() || super::races::is_atomic(access.op);
            let value = is_kept.then(|| {
                let (by, release) = (Some(stamp), release.clone());
                Value { by, release, beside, ..Value::of(bits) }
            });
            match value {
                Some(value) if weak && !of_host => {
                    if cell.values.len() == MOST_VALUES {
                        cell.values.forget_oldest();
                    }
                    cell.values.push(value);
                }
                value => cell.values.set(value),
            }
        }
    }

    /// What the newest value of a cell makes known.
    pub(super) fn latest_release(&mut self, object: u64, at: u64, mask: u8) -> Option<Rc<Release>> {
        self.cells.cell(object, at).values.last()?.write(mask)?.1.clone()
    }

    /// A load in weak mode.
    pub(super) fn load_late(
        &mut self,
        who: u32,
        access: &Access,
        object: u64,
        offset: u64,
    ) -> Bits {
        let base = access.address as u64 - offset;
        let mut bits = [0; 2];
        for (at, mask) in super::races::parts(offset, access.size) {
            let late = self.word_late(who, access, (object, at, mask), base);
            let shift = 8 * (offset.saturating_sub(at)) as u32;
            let keep = if access.size >= 8 { u64::MAX } else { (1 << (8 * access.size)) - 1 };
            bits[(at > offset) as usize] = (late >> shift) & keep;
        }
        bits
    }

    fn word_late(
        &mut self,
        who: u32,
        access: &Access,
        (object, at, mask): (u64, u64, u8),
        base: u64,
    ) -> u64 {
        // SAFETY: it lies in the same aligned 8 bytes as the access.
        let newest = unsafe { word(base + at) };
        let lane = &self.lanes[who as usize];
        let cell = self.cells.cell(object, at);
        if cell.values.last().is_some_and(|value| value.bits != newest) {
            cell.values.set(None);
        }
        let Some(last) = cell.values.len().checked_sub(1) else { return newest };
        let known = |value: &Value| {
            value.by.is_none_or(|by| lane.clock.knows(by.slot, by.time))
                || value.seen.iter().any(|&(slot, time)| lane.clock.knows(slot, time))
        };
        let first = cell.values.latest(known).unwrap_or(0);
        let mut chosen = last;
        if first < last && lane.late < MOST_LATE {
            let values = (last - first + 1) as u32;
            if let Some(decisions) = &mut self.decisions {
                let late = if self.in_vain { 0 } else { decisions.how_late(who, values) };
                chosen = last - late as usize;
            } else if self.random.once_in(2) {
                chosen = first + self.random.below(values.into()) as usize;
            }
        }
        let (slot, time) = (lane.clock.slot, lane.clock.time);
        let Some(value) = cell.values.get_mut(chosen) else { return newest };
        match value.seen.iter_mut().find(|seen| seen.0 == slot) {
            Some(seen) => seen.1 = seen.1.min(time),
            None => value.seen.push((slot, time)),
        }
        let bits = value.bits;
        let write = value.write(mask).map(|(by, release)| (by, release.clone()));
        let lane = &mut self.lanes[who as usize];
        lane.late = if chosen < last { lane.late + 1 } else { 0 };
        if access.op == Op::AtomicLoad {
            self.learn(who, access, (object, at, mask), write);
        }
        bits
    }
}

/// The 8 bytes at an address.
///
/// # Safety
/// They are mapped, and the address is a multiple of 8.
pub(super) unsafe fn word(address: u64) -> u64 {
    // SAFETY: the caller's promise.
    let [bits, _] = unsafe { read_raw(address as usize, 8) };
    bits
}

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

use super::cells::Place;
use super::memory::MemoryOwner;
use super::mode::Check;
use super::orders::Release;
use super::races::{At, first_mask};
use super::stamps::Stamp;
use super::watch::State;

/// Late values that a lane sees one after the other, at most: what is stored is seen in the end.
const MOST_LATE: u8 = 4;

/// Values of a cell that a late load may still see.
const MOST_VALUES: usize = 6;

/// A value that the cell held.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) bits: u64,
    /// Who wrote it, and which bytes of it; `None` is before everything.
    pub(super) by: Option<(Stamp, u8)>,
    pub(super) release: Option<Rc<Release>>,
    /// Who wrote the other 4 bytes last, where this write was of 4 only.
    pub(super) beside: Option<Box<Beside>>,
    /// Slots and times of lanes that have seen it: who knows of them sees nothing older.
    pub(super) seen: Vec<(u32, u32)>,
}

/// Who wrote some bytes of a value, which, and what that released.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    pub(super) by: (Stamp, u8),
    pub(super) release: Option<Rc<Release>>,
}

/// Values of a cell, oldest first: mostly one.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    /// None if there are no others.
    last: Option<Value>,
    earlier: Vec<Value>,
}

impl Values {
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

    /// Who wrote these bytes last, of those that are known.
    fn newest_write(&self, mask: u8) -> Option<Stamp> {
        let newest_first = self.last.iter().chain(self.earlier.iter().rev());
        newest_first.filter_map(|value| value.write(mask)).map(|(by, _)| by).next()
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
        Value { bits, by: None, release: None, beside: None, seen: Vec::new() }
    }

    /// Other bytes than these are not of it any more; whether it has any.
    pub(super) fn keep(&mut self, mask: u8) -> bool {
        self.beside.take_if(|beside| beside.by.1 & mask == 0);
        let Some((_, of_it)) = &mut self.by else { return false };
        *of_it &= mask;
        if *of_it == 0
            && let Some(beside) = self.beside.take()
        {
            (self.by, self.release) = (Some(beside.by), beside.release);
        }
        self.by.is_some_and(|(_, of_it)| of_it != 0)
    }

    /// Who wrote these bytes of it, and what that released.
    pub(super) fn write(&self, mask: u8) -> Option<(Stamp, &Option<Rc<Release>>)> {
        let (by, of_it) = self.by?;
        match &self.beside {
            Some(beside) if of_it & mask == 0 => Some((beside.by.0, &beside.release)),
            _ if of_it & mask == 0 => None,
            _ => Some((by, &self.release)),
        }
    }
}

impl State {
    /// Before a store in weak mode: what the cells hold is a value that may still be seen.
    pub(super) fn keep_value(&mut self, place: Place, offset: u64, size: u32, address: usize) {
        let (mut at, end) = (offset & !7, offset + u64::from(size));
        let base = address as u64 - offset;
        while at < end {
            // SAFETY: it lies in the same aligned 8 bytes as the access.
            let bits = unsafe { word(base + at) };
            let mut cell = self.cells.cell(place, at);
            let values = cell.values_mut(&self.kinds);
            // Something else than a kernel has written it.
            if values.last().is_none_or(|value| value.bits != bits) {
                values.set(Some(Value::of(bits)));
            }
            at += 8;
        }
    }

    /// Before a store: the host may look from then on, and learn this.
    pub(super) fn tell_host(&mut self, at: At, release: Option<&Release>) {
        if let (MemoryOwner::Host, Some(release)) = (at.owner, release) {
            let reaching = release.all().filter(|release| release.scope == ScopeKind::Sys);
            let mut reaching = reaching.map(|release| &release.known).peekable();
            if reaching.peek().is_some() {
                self.host.learn(reaching);
            }
        }
    }

    /// After a store: the newest value, and what an acquire that sees it learns.
    pub(super) fn add_value(
        &mut self,
        who: u32,
        access: &Access,
        At { place, offset, owner, .. }: At,
        release: Option<Release>,
    ) {
        let weak = self.mode.check == Check::Weak;
        let of_host = owner == MemoryOwner::Host;
        let release = release.map(Rc::new);
        let base = access.address as u64 - offset;
        for (at, mask) in super::races::parts(offset, access.size) {
            let stamp = self.stamp(who, access, mask);
            let mut cell = self.cells.cell(place, at);
            let half = if mask & 0xf == 0 { 0xf } else { 0xf0 };
            let other = (mask != 0xff).then(|| cell.last_write(half, &self.kinds)).flatten();
            let is_atomic = super::races::is_atomic(access.op);
            if !weak && !of_host && other.is_none() {
                match (is_atomic, &release) {
                    (false, _) => cell.forget_values(),
                    // The comparison before has remembered the write.
                    (true, None) => cell.set_value_of_write(),
                    (true, Some(_)) => {
                        let (by, release) = (Some((stamp, mask)), release.clone());
                        let value = Value { by, release, ..Value::of(0) };
                        cell.values_mut(&self.kinds).set(Some(value));
                    }
                }
                continue;
            }
            let bits = if weak || of_host {
                // SAFETY: it lies in the same aligned 8 bytes as the access.
                unsafe { word(base + at) }
            } else {
                0
            };
            let beside = other.map(|(by, release)| Box::new(Beside { by: (by, half), release }));
            let (by, release) = (Some((stamp, mask)), release.clone());
            let value = Value { by, release, beside, ..Value::of(bits) };
            let values = cell.values_mut(&self.kinds);
            if weak && !of_host {
                if values.len() == MOST_VALUES {
                    values.forget_oldest();
                }
                values.push(value);
            } else {
                values.set(Some(value));
            }
        }
    }

    /// What the newest value of a cell makes known.
    pub(super) fn latest_release(
        &mut self,
        place: Place,
        at: u64,
        mask: u8,
    ) -> Option<Rc<Release>> {
        self.cells.cell(place, at).last_write(mask, &self.kinds)?.1
    }

    /// A load in weak mode.
    pub(super) fn load_late(&mut self, who: u32, access: &Access, whole: At) -> Bits {
        let offset = whole.offset;
        let (mut bits, mut missed) = ([0; 2], None);
        for (at, mask) in super::races::parts(offset, access.size) {
            let (late, new) = self.word_late(who, access, whole, (at, mask));
            missed = missed.or(new);
            let shift = 8 * (offset.saturating_sub(at)) as u32;
            let keep = if access.size >= 8 { u64::MAX } else { (1 << (8 * access.size)) - 1 };
            bits[(at > offset) as usize] = (late >> shift) & keep;
        }
        // How often lanes look in vain depends on the host, and after a wait that ended early all may
        // be late.
        if let Some(missed) = missed.filter(|_| !self.in_vain && !self.spoilt) {
            let kind = self.kinds.of(access, first_mask(offset, access.size));
            let load = (self.who(who), kind);
            self.late.add(load, access.op == Op::AtomicLoad, missed);
        }
        bits
    }

    /// What a load sees of a word, and the newest write that it does not see, if there is one.
    fn word_late(
        &mut self,
        who: u32,
        access: &Access,
        whole: At,
        (at, mask): (u64, u8),
    ) -> (u64, Option<Stamp>) {
        let base = access.address as u64 - whole.offset;
        // SAFETY: it lies in the same aligned 8 bytes as the access.
        let newest = unsafe { word(base + at) };
        let (lane, blocks) = (&self.lanes[who as usize], &self.blocks);
        let mut cell = self.cells.cell(whole.place, at);
        let Some(values) = cell.values(&self.kinds) else { return (newest, None) };
        if values.last().is_some_and(|value| value.bits != newest) {
            values.set(None);
        }
        let Some(last) = values.len().checked_sub(1) else { return (newest, None) };
        let known = |value: &Value| {
            value.by.is_none_or(|(by, _)| lane.clock.knows(by.slot(blocks), by.time))
                || value.seen.iter().any(|&(slot, time)| lane.clock.knows(slot, time))
        };
        let first = values.latest(known).unwrap_or(0);
        let mut chosen = last;
        if first < last && lane.late < MOST_LATE {
            let count = (last - first + 1) as u32;
            if let Some(decisions) = &mut self.decisions {
                let late = if self.in_vain { 0 } else { decisions.how_late(who, count) };
                chosen = last - late as usize;
            } else if self.random.once_in(2) {
                chosen = first + self.random.below(count.into()) as usize;
            }
        }
        let (slot, time) = (lane.clock.slot, lane.clock.time);
        let Some(value) = values.get_mut(chosen) else { return (newest, None) };
        match value.seen.iter_mut().find(|seen| seen.0 == slot) {
            Some(seen) => seen.1 = seen.1.min(time),
            None => value.seen.push((slot, time)),
        }
        let bits = value.bits;
        let write = value.write(mask).map(|(by, release)| (by, release.clone()));
        // Other bytes of the word may be all that is newer.
        let other = mask & bytes_of(bits ^ newest);
        let missed = (other != 0).then(|| values.newest_write(other)).flatten();
        let lane = &mut self.lanes[who as usize];
        lane.late = if chosen < last { lane.late + 1 } else { 0 };
        if access.op == Op::AtomicLoad {
            self.learn(who, access, (whole.object, at, mask), write);
        }
        (bits, missed)
    }
}

/// In which of its bytes a word has any bits.
fn bytes_of(bits: u64) -> u8 {
    bits.to_le_bytes().iter().rev().fold(0, |mask, &byte| mask << 1 | u8::from(byte != 0))
}

/// The bits of these bytes of a word.
pub(super) fn bits_of(mask: u8) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| 0xff * (mask >> byte & 1)))
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

//! What a lane knows of what others did: releases, acquires and fences, and the patterns of them.
//!
//! A release store and an acquire load that sees it order what came before the one before what comes after
//! the other. Between the two may be read-modify-writes, later stores of the same lane to the word, and
//! earlier loads of the same lane of it. So do fences with relaxed atomics. A relaxed load alone orders
//! nothing.

use std::collections::VecDeque;
use std::rc::Rc;

use mscclrs_device::arch::host::Access;
use mscclrs_device::{OrderKind, ScopeKind};

use super::clock::{Clock, Moment};
use super::memory::MemoryOwner;
use super::mode::Check;
use super::races::{At, is_atomic, narrower, parts};
use super::stamps::{KindId, Kinds, Stamp};
use super::values::{bits_of, word};
use super::watch::{BlockInfo, OfWord, State, Who};

/// Atomic loads that a lane remembers to have ordered nothing.
const MISSES: usize = 8;
/// Words of which a lane remembers what it released last, and what it saw last.
const WORDS: usize = 16;

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

    /// Adds what a later one of the same lane and scope knew.
    fn know(&mut self, later: &Release) {
        // The host forgets nothing.
        match self.who == Who::HOST {
            true => self.known = later.known.clone(),
            false => self.known.join(&later.known),
        }
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

/// What an atomic load would have had to see, or to be, to order anything.
#[derive(Clone, Copy, Debug)]
pub(super) enum Missing {
    Acquire,
    Release,
    Scope,
}

/// An atomic load that saw what it would have had to acquire.
#[derive(Clone, Debug)]
pub(super) struct Miss {
    /// What it saw.
    by: Stamp,
    /// What that releases.
    release: Option<Rc<Release>>,
    load: KindId,
    missing: Missing,
}

impl Miss {
    /// Whether it would have ordered what was done in `slot` at `time`. What comes after a release is none of
    /// it, though it is of the same lane.
    pub(super) fn is_of(&self, slot: u32, time: u32, blocks: &[BlockInfo]) -> bool {
        match &self.release {
            Some(release) => release.all().any(|release| release.known.knows(slot, time)),
            None => self.by.slot(blocks) == slot && self.by.time >= time,
        }
    }

    /// Whether it saw a release by a lane of this slot.
    pub(super) fn is_by(&self, slot: u32, blocks: &[BlockInfo]) -> bool {
        self.release.is_some() && self.by.slot(blocks) == slot
    }

    /// Whether it may be why something that another lane learnt of did not come here: nothing brought
    /// it since.
    pub(super) fn is_open(&self, slot: u32, clock: &Clock, blocks: &[BlockInfo]) -> bool {
        let is_known = |release: &Release| release.known.is_known_by(clock);
        let came = self.release.as_ref().is_some_and(|release| release.all().all(is_known));
        self.by.slot(blocks) != slot && !came
    }

    /// What it saw, in words.
    pub(super) fn seen(&self, kinds: &Kinds) -> String {
        format!("the {} at {}", kinds.get(self.by.kind).words(), kinds.place(self.by.kind))
    }

    /// What was missing there, in words.
    pub(super) fn words(&self, kinds: &Kinds) -> String {
        let (missing, so) = match self.missing {
            Missing::Acquire => ("an acquire", ", but orders nothing"),
            Missing::Release => ("a release", ", which orders nothing"),
            Missing::Scope => ("a scope that holds both lanes", ""),
        };
        let (load, at) = (kinds.get(self.load).words(), kinds.place(self.load));
        format!("{missing}: the {load} at {at} saw {}{so}", self.seen(kinds))
    }
}

fn acquires(order: OrderKind) -> bool {
    matches!(order, OrderKind::Acquire | OrderKind::AcqRel)
}

fn releases(order: OrderKind) -> bool {
    matches!(order, OrderKind::Release | OrderKind::AcqRel)
}

impl State {
    pub(super) fn fence(&mut self, who: u32, scope: ScopeKind) {
        if self.mode.check == Check::Ordered {
            return;
        }
        let own = self.who(who);
        let lane = &mut self.lanes[who as usize];
        let pending = std::mem::take(&mut lane.pending);
        let seen = std::mem::take(&mut lane.seen);
        // A later fence of a wider scope may still reach who released it.
        let wider = |load_scope| scope != load_scope && narrower(scope, load_scope) == scope;
        for (release, load_scope) in pending {
            if self.includes(narrower(scope, load_scope), own, release.who) {
                self.lanes[who as usize].clock.acquire(&release.known);
            } else if wider(load_scope) {
                self.lanes[who as usize].pending.push((release, load_scope));
            }
        }
        let is_left = |word: &OfWord| {
            let held = narrower(scope, word.load_scope);
            !self.includes(held, own, word.release.who) && wider(word.load_scope)
        };
        let seen = seen.into_iter().filter(is_left).collect();
        let lane = &mut self.lanes[who as usize];
        lane.seen = seen;
        let known = lane.clock.release();
        lane.fences[..=width(scope)].fill(Some(known));
    }

    /// What a store makes known to who acquires it.
    pub(super) fn release(&mut self, who: u32, access: &Access, at: At) -> Option<Release> {
        let lane = &mut self.lanes[who as usize];
        // A fence of any scope is one of block scope.
        let had_fence = lane.fences[0].is_some();
        let releases_nothing = !releases(access.order) && !had_fence && lane.released.is_empty();
        if releases_nothing || !is_atomic(access.op) {
            return None;
        }
        let (who, place, scope) = (lane.who, (at.object, at.offset), access.scope);
        if releases(access.order) {
            let release = Release { known: lane.clock.release(), scope, who, also: None };
            lane.released.retain(|(before, _)| *before != place);
            lane.released.truncate(WORDS - 1);
            lane.released.push_front((place, release.clone()));
            return Some(release);
        }
        // The last of at least the store's scope, and each later one that is narrower.
        let mut fence: Option<Release> = None;
        for (known, scope) in lane.fences.iter().zip(SCOPES).take(width(scope) + 1).rev() {
            let Some(known) = known.clone() else { continue };
            let old = fence.as_ref().is_some_and(|wider| wider.known.is(&known));
            if !old {
                fence = chain(fence, Some(Release { known, scope, who, also: None }));
            }
        }
        // A release of a word goes on in the lane's later stores to it.
        let before = lane.released.iter().find(|(before, _)| *before == place);
        let before = before.map(|(_, release)| Release {
            scope: narrower(release.scope, scope),
            ..release.clone()
        });
        chain(before, fence)
    }

    /// What was released before a read-modify-write and goes on in what it writes.
    pub(super) fn handed_on(&mut self, who: u32, access: &Access, at: At) -> Option<Release> {
        let (cell, mask) = parts(at.offset, access.size).next()?;
        let earlier = self.latest_release(at.place, cell, mask)?;
        let who = self.who(who);
        let reaching = earlier.all().filter(|release| self.reaches(release, access, who));
        reaching
            .cloned()
            .map(|release| Release { also: None, ..release })
            .fold(None, |a, b| chain(a, Some(b)))
    }

    /// Whether the scopes of a release and of a load hold each other's lanes.
    fn reaches(&self, release: &Release, access: &Access, who: Who) -> bool {
        self.includes(release.scope, release.who, who)
            && self.includes(access.scope, who, release.who)
    }

    /// What an atomic load learns from the newest value.
    pub(super) fn synchronize(&mut self, who: u32, access: &Access, at: At) {
        if self.mode.check == Check::Ordered {
            return;
        }
        for (cell, mask) in parts(at.offset, access.size) {
            if at.owner == MemoryOwner::Host {
                self.learn_from_host(who, access, (at.object, cell, mask));
                if self.is_of_host(access, at, (cell, mask)) {
                    continue;
                }
            }
            let write = self.cells.cell(at.place, cell).last_write(mask, &self.kinds);
            self.learn(who, access, (at.object, cell, mask), write);
        }
    }

    /// What an atomic load of the host's memory learns: the host may have written it at any moment until now,
    /// the same value again too, and may have done anything before.
    fn learn_from_host(&mut self, who: u32, access: &Access, place: (u64, u64, u8)) {
        if self.in_vain {
            self.lanes[who as usize].note();
        }
        let (known, scope, of) = (Moment::of(self.host.now()), ScopeKind::Sys, Who::HOST);
        let release = Release { known, scope, who: of, also: None };
        self.learn_release(who, access, place, &release);
    }

    /// Whether these bytes are not what a kernel wrote last.
    fn is_of_host(&mut self, access: &Access, at: At, (cell, mask): (u64, u8)) -> bool {
        // SAFETY: it lies in the same aligned 8 bytes as the access.
        let bits = unsafe { word(access.address as u64 - at.offset + cell) };
        let mut cell = self.cells.cell(at.place, cell);
        let last = cell.values(&self.kinds).and_then(|values| values.last());
        last.is_none_or(|value| (value.bits ^ bits) & bits_of(mask) != 0)
    }

    /// What an atomic load learns from a value.
    pub(super) fn learn(
        &mut self,
        who: u32,
        access: &Access,
        (object, at, mask): (u64, u64, u8),
        write: Option<(Stamp, Option<Rc<Release>>)>,
    ) {
        let word = (object, at + u64::from(mask.trailing_zeros()));
        if acquires(access.order) {
            self.learn_seen(who, access, word);
        }
        let Some((by, release)) = write else { return };
        let (own, of_write) = (self.who(who), self.kinds.get(by.kind));
        if by.who() == own || !of_write.is_atomic() {
            return;
        }
        let mut reaches = false;
        for release in release.iter().flat_map(|release| release.all()) {
            if !self.reaches(release, access, own) {
                continue;
            }
            reaches = true;
            self.learn_release(who, access, (object, at, mask), release);
        }
        if (reaches && acquires(access.order))
            || self.mode.check != Check::Checked
            || self.lanes[who as usize].misses.iter().any(|miss| miss.by == by)
        {
            return;
        }
        let scopes_meet = self.includes(of_write.scope, by.who(), own)
            && self.includes(access.scope, own, by.who());
        let missing = match () {
            () if reaches => Missing::Acquire,
            () if scopes_meet && release.is_none() => Missing::Release,
            () => Missing::Scope,
        };
        let load = self.kinds.of(access, mask);
        let misses = &mut self.lanes[who as usize].misses;
        if misses.len() == MISSES {
            misses.pop_front();
        }
        misses.push_back(Miss { by, release, load, missing });
    }

    /// What an atomic load learns from a release that it has in its scope.
    fn learn_release(
        &mut self,
        who: u32,
        access: &Access,
        (object, at, mask): (u64, u64, u8),
        release: &Release,
    ) {
        let place = (object, at + u64::from(mask.trailing_zeros()));
        let (lane, load_scope) = (&mut self.lanes[who as usize], access.scope);
        if acquires(access.order) {
            lane.clock.acquire(&release.known);
            return;
        }
        let same = |(before, scope): &&mut (Release, ScopeKind)| {
            (before.who, before.scope, *scope) == (release.who, release.scope, load_scope)
        };
        match lane.pending.iter_mut().find(same) {
            Some((before, _)) => before.know(release),
            None => lane.pending.push((release.clone(), load_scope)),
        }
        remember(&mut lane.seen, OfWord { place, release: release.clone(), load_scope });
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
            if self.includes(narrower(access.scope, load_scope), self.who(who), release.who) {
                self.lanes[who as usize].clock.acquire(&release.known);
            }
        }
    }
}

/// From the narrowest on.
const SCOPES: [ScopeKind; 3] = [ScopeKind::Cta, ScopeKind::Gpu, ScopeKind::Sys];

/// Where a scope is among them.
fn width(scope: ScopeKind) -> usize {
    scope as usize
}

/// Both: those of one scope are one.
pub(super) fn chain(earlier: Option<Release>, own: Option<Release>) -> Option<Release> {
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
        Some(old) => old.release.know(&new.release),
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
    use super::super::clock::Known;
    use super::*;

    #[test]
    fn releases_of_one_scope_are_one_and_those_of_others_stay() {
        let release = |scope, slot: usize| {
            let mut known = vec![0; 3];
            known[slot] = 1;
            let known = Moment::of(known.into());
            Some(Release { known, scope, who: Who::default(), also: None })
        };
        let (gpu, sys) = (ScopeKind::Gpu, ScopeKind::Sys);
        let all = chain(chain(release(sys, 0), release(gpu, 1)), release(sys, 2)).unwrap();
        let known = |part: &Release| {
            let mut known = Known::default();
            part.known.add_to(&mut known);
            known.to_vec()
        };
        let parts: Vec<_> = all.all().map(|part| (part.scope, known(part))).collect();
        assert_eq!(parts, [(sys, vec![1, 0, 1]), (gpu, vec![0, 1, 0])]);
    }
}

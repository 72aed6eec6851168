//! What lanes go through at every access: the state of a world, and when a lane makes room for others.
//!
//! Invariant: no borrow of the state is held while a lane is suspended. All lanes of a world and its
//! scheduler are on one thread.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::panic::Location;

use mscclrs_device::ScopeKind;
use mscclrs_device::arch::host::{Access, Bits, Op};

use super::cells::Cells;
use super::clock::{Clock, Known, join, meet};
use super::decisions::Decisions;
use super::finding::{Finding, FindingKind, Site};
use super::memory::View;
use super::mode::{Check, Mode, Schedule};
use super::random::{Random, mix};
use super::trace::Trace;

/// Accesses without a store after which those who poll poll in vain.
const ENDLESS: u64 = 1_000_000;
/// Nanoseconds of the world's clock an access takes.
const ACCESS_NS: u64 = 5;

/// A launch, for reports and for what lies in the same grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchInfo {
    pub(super) kernel: &'static str,
    pub(super) device: u32,
}

/// A lane of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) launch: u32,
    pub(super) block: u32,
    pub(super) lane: u32,
}

/// An atomic load that saw what it would have had to acquire.
#[derive(Clone, Debug)]
pub(super) struct Miss {
    /// Slot and time of the store.
    pub(super) slot: u32,
    pub(super) time: u32,
    pub(super) why: String,
}

/// What a relaxed load of a word saw.
#[derive(Clone, Debug)]
pub(super) struct OfWord {
    /// Its memory and the byte in it.
    pub(super) place: (u64, u64),
    pub(super) release: super::cells::Release,
    pub(super) load_scope: ScopeKind,
}

/// A lane's own state.
#[derive(Default)]
pub(super) struct LaneState {
    pub(super) clock: Clock,
    /// What relaxed stores after a fence release.
    pub(super) fence: Option<(Known, ScopeKind)>,
    /// What an acquire fence will learn: what relaxed loads saw, and their scope.
    pub(super) pending: Vec<(super::cells::Release, ScopeKind)>,
    /// What it released by a word, of which memory and byte: its later relaxed stores to the word do too.
    pub(super) released: VecDeque<((u64, u64), super::cells::Release)>,
    /// What its relaxed loads of a word saw: its later acquires of that word learn that too.
    pub(super) seen: VecDeque<OfWord>,
    pub(super) misses: VecDeque<Miss>,
    /// Late values seen one after the other.
    pub(super) late: u8,
}

pub(super) struct State {
    pub(super) mode: Mode,
    pub(super) random: Random,
    /// Where departures from the default are what makes the run.
    pub(super) decisions: Option<Decisions>,
    /// The lane that makes the access was woken by a timer only, and looks at what it waits for. How often
    /// lanes do so may depend on the host: nothing is decided by it, and it is no part of what happened.
    pub(super) in_vain: bool,
    pub(super) cells: Cells,
    pub(super) view: View,
    pub(super) launches: Vec<LaunchInfo>,
    pub(super) whos: Vec<Who>,
    pub(super) lanes: Vec<LaneState>,
    lines: HashMap<*const Location<'static>, u32>,
    pub(super) line_texts: Vec<&'static Location<'static>>,
    /// The last time in each slot.
    slots: Vec<u32>,
    pub(super) trace: Trace,
    pub(super) finding: Option<Finding>,
}

/// One for the devices of a world.
pub(crate) struct Watch {
    pub(super) state: RefCell<State>,
    schedule: Schedule,
    failed: Cell<bool>,
    quantum: Cell<u32>,
    clock_ns: Cell<u64>,
    since_store: Cell<u64>,
}

impl Watch {
    pub(super) fn new(mode: Mode, keep_trace: bool) -> Watch {
        let schedule = mode.schedule();
        let decisions = match &schedule {
            Schedule::Departures(departures) => Some(Decisions::new(departures.clone())),
            _ => None,
        };
        Watch {
            quantum: Cell::new(if decisions.is_some() { u32::MAX } else { 1 }),
            state: RefCell::new(State {
                random: Random::new(mode.seed),
                decisions,
                in_vain: false,
                mode,
                cells: Cells::default(),
                view: View::default(),
                launches: Vec::new(),
                whos: Vec::new(),
                lanes: Vec::new(),
                lines: HashMap::new(),
                line_texts: Vec::new(),
                slots: Vec::new(),
                trace: Trace::new(keep_trace),
                finding: None,
            }),
            schedule,
            failed: Cell::new(false),
            clock_ns: Cell::new(1),
            since_store: Cell::new(0),
        }
    }

    pub(crate) fn check(&self) -> Check {
        self.state.borrow().mode.check
    }

    /// Nanoseconds of the world's own clock.
    pub(crate) fn now(&self) -> u64 {
        self.clock_ns.get()
    }

    fn pass(&self, ns: u64) {
        self.clock_ns.set(self.clock_ns.get() + ns);
    }

    /// Every lane waits, and so none polls without end; time goes on.
    pub(super) fn all_wait(&self, ns: u64) {
        self.since_store.set(0);
        self.pass(ns);
    }

    /// Whether something was found: all lanes stay where they are.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.get()
    }

    pub(super) fn finding(&self) -> Option<Finding> {
        self.state.borrow().finding.clone()
    }

    /// The first finding stays.
    fn found(&self, state: &mut State, finding: Finding) {
        self.failed.set(true);
        state.finding.get_or_insert(finding);
    }

    /// A fault that is not about two accesses; `steps` come before who did what in which order.
    pub(crate) fn report(&self, kind: FindingKind, what: String, mut steps: Vec<String>) {
        let mut state = self.state.borrow_mut();
        let order = state.whole_interleaving();
        if !steps.is_empty() && !order.is_empty() {
            steps.push("and this came before:".into());
        }
        steps.extend(order);
        let (here, other, missing, mode) = (None, None, None, state.mode.clone());
        self.found(&mut state, Finding { kind, what, here, other, missing, steps, mode });
    }

    /// A fault of a lane, seen at a place of the source.
    pub(crate) fn report_at(
        &self,
        kind: FindingKind,
        what: String,
        (who, from): (u32, Option<&'static Location<'static>>),
        other: Option<(u32, Option<&'static Location<'static>>)>,
    ) {
        let mut state = self.state.borrow_mut();
        let site = |state: &State, (who, from): (u32, Option<&'static Location<'static>>)| {
            let line = from.map_or("its end".into(), |from| from.to_string());
            state.site(who, line, "arrives".into())
        };
        let whos: Vec<u32> =
            std::iter::once((who, from)).chain(other).map(|(who, _)| who).collect();
        let here = Some(site(&state, (who, from)));
        let other = other.map(|other| site(&state, other));
        let (missing, mode) = (None, state.mode.clone());
        let steps = state.interleaving(&whos, None);
        self.found(&mut state, Finding { kind, what, here, other, missing, steps, mode });
    }

    /// A lane has made an access: whether it makes room for others now.
    pub(crate) fn is_turn_over(&self) -> bool {
        self.pass(ACCESS_NS);
        let left = self.quantum.get() - 1;
        self.quantum.set(left);
        if left == 0 {
            self.new_turn();
        }
        left == 0
    }

    /// The order of lanes.
    pub(super) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Whether it is a decision who goes on before such an access.
    pub(crate) fn decides_before(&self, op: Op) -> bool {
        matches!(self.schedule, Schedule::Departures(_)) && super::races::is_atomic(op)
    }

    /// How many accesses the next lane makes before others get their turn.
    pub(super) fn new_turn(&self) {
        let mut state = self.state.borrow_mut();
        let quantum = match self.schedule {
            Schedule::RoundRobin => 4,
            Schedule::OneFar | Schedule::Departures(_) => u32::MAX,
            Schedule::Random | Schedule::SlowestLast => match state.random.below(8) {
                0 | 1 => 1,
                2 | 3 => 2 + state.random.below(6) as u32,
                4..=6 => 8 + state.random.below(56) as u32,
                _ => 64 + state.random.below(2048) as u32,
            },
        };
        self.quantum.set(quantum);
    }

    /// Lanes of a block begin; gives the first one's number. They come after all that is in `known`.
    pub(crate) fn begin_block(&self, launch: u32, block: u32, slots: &[u32], known: &Known) -> u32 {
        let state = &mut *self.state.borrow_mut();
        let first = state.whos.len() as u32;
        for (lane, &slot) in (0..).zip(slots) {
            let time = state.slots[slot as usize] + 1;
            state.whos.push(Who { launch, block, lane });
            let clock = Clock::new(slot, time, known.clone());
            state.lanes.push(LaneState { clock, ..Default::default() });
            let LaunchInfo { kernel, device } = state.launches[launch as usize];
            if let Some(decisions) = &mut state.decisions {
                let who = first + lane;
                decisions.begin_lane(who, (kernel, device), (launch, block, lane));
            }
        }
        first
    }

    /// Lanes of a block have ended; adds what they did to `known`.
    pub(crate) fn end_block(&self, first: u32, lanes: u32, known: &mut Known) {
        let state = &mut *self.state.borrow_mut();
        for who in first..first + lanes {
            let mut lane = std::mem::take(&mut state.lanes[who as usize]);
            join(known, &lane.clock.release());
            state.slots[lane.clock.slot as usize] = lane.clock.time;
        }
        self.since_store.set(0);
    }

    pub(crate) fn begin_launch(&self, kernel: &'static str, device: u32) -> u32 {
        let state = &mut *self.state.borrow_mut();
        state.launches.push(LaunchInfo { kernel, device });
        state.launches.len() as u32 - 1
    }

    pub(crate) fn new_slot(&self) -> u32 {
        let state = &mut *self.state.borrow_mut();
        state.slots.push(0);
        state.slots.len() as u32 - 1
    }

    /// Lanes meet: their accesses before are ordered before their accesses after.
    pub(crate) fn meet(&self, whos: impl Iterator<Item = u32>) {
        let state = &mut *self.state.borrow_mut();
        if state.mode.check == Check::Ordered {
            return;
        }
        let lanes = &mut state.lanes;
        let mut chosen: Vec<u32> = whos.collect();
        chosen.sort_unstable();
        let mut clocks: Vec<&mut Clock> = Vec::with_capacity(chosen.len());
        let mut rest: &mut [LaneState] = lanes;
        let mut at = 0;
        for who in chosen {
            let (_, tail) = std::mem::take(&mut rest).split_at_mut((who - at) as usize);
            let Some((lane, tail)) = tail.split_first_mut() else { break };
            clocks.push(&mut lane.clock);
            rest = tail;
            at = who + 1;
        }
        meet(clocks.into_iter());
        self.since_store.set(0);
    }

    /// A queue wrote memory.
    pub(crate) fn wrote(&self, address: u64, bytes: u64) {
        let state = &mut *self.state.borrow_mut();
        state.refresh();
        if let super::memory::Found::In { object, offset, .. } =
            state.view.find(address, bytes.max(1))
        {
            state.cells.overwrite(object, offset, bytes);
        }
    }

    /// `in_vain`: only a timer woke the lane.
    pub(crate) fn load(&self, who: u32, access: Access, in_vain: bool) -> Bits {
        let polls = self.since_store.get() + 1;
        self.since_store.set(polls);
        let mut state = self.state.borrow_mut();
        state.in_vain = in_vain;
        let loaded = state.load(who, access);
        if polls > ENDLESS && !self.failed.get() {
            let what = "nothing has been stored for a long time, and this lane goes on reading; a poll \
                        needs a guard, which ends it on an abort or at its time limit";
            let finding = state.about(FindingKind::EndlessPoll, what.into(), who, &access, None);
            self.found(&mut state, finding);
        }
        loaded.unwrap_or_else(|finding| {
            self.found(&mut state, *finding);
            [0; 2]
        })
    }

    pub(crate) fn store(&self, who: u32, access: Access, bits: Bits) {
        self.since_store.set(0);
        let mut state = self.state.borrow_mut();
        state.in_vain = false;
        if let Err(finding) = state.store(who, access, bits) {
            self.found(&mut state, *finding);
        }
    }

    pub(crate) fn modify(
        &self,
        who: u32,
        access: Access,
        change: &dyn Fn(u64) -> Option<u64>,
    ) -> u64 {
        let mut state = self.state.borrow_mut();
        state.in_vain = false;
        match state.modify(who, access, change) {
            Ok((before, changed)) => {
                self.since_store.set(if changed { 0 } else { self.since_store.get() + 1 });
                before
            }
            Err(finding) => {
                self.found(&mut state, *finding);
                0
            }
        }
    }

    pub(crate) fn fence(&self, who: u32, scope: ScopeKind) {
        self.state.borrow_mut().fence(who, scope);
    }

    /// An access to shared memory of a block, which is an object of its own.
    pub(crate) fn shared(&self, who: u32, object: u64, bytes: u32, access: Access) {
        let mut state = self.state.borrow_mut();
        if let Err(finding) = state.shared(who, object, bytes, access) {
            self.found(&mut state, *finding);
        }
    }
}

impl State {
    pub(super) fn refresh(&mut self) {
        if self.view.refresh() {
            let view = &self.view;
            // Shared memory of blocks is not in the view; its numbers never come again.
            self.cells.retain(|object| object >> 62 == 1 || view.holds(object));
        }
    }

    pub(super) fn line(&mut self, from: &'static Location<'static>) -> u32 {
        let texts = &mut self.line_texts;
        *self.lines.entry(from).or_insert_with(|| {
            texts.push(from);
            texts.len() as u32 - 1
        })
    }

    /// Whether a scope of lane `a` has lane `b` in it.
    pub(super) fn includes(&self, scope: ScopeKind, a: u32, b: u32) -> bool {
        includes(&self.whos, &self.launches, scope, a, b)
    }

    pub(super) fn site(&self, who: u32, line: String, what: String) -> Site {
        let Who { launch, block, lane } = self.whos[who as usize];
        let LaunchInfo { kernel, device } = self.launches[launch as usize];
        Site { what, kernel, line, device, block, lane, launch }
    }

    /// A finding at an access.
    pub(super) fn about(
        &mut self,
        kind: FindingKind,
        what: String,
        who: u32,
        access: &Access,
        object: Option<(u64, u64)>,
    ) -> Finding {
        let text = super::races::words(access.op, access.order, access.scope);
        let here = Some(self.site(who, access.from.to_string(), text));
        let place = object.map(|(object, offset)| (self.cells.number(object), offset & !7));
        let steps = self.interleaving(&[who], place);
        let mode = self.mode.clone();
        Finding { kind, what, here, other: None, missing: None, steps, mode }
    }
}

/// Whether a scope of lane `a` has lane `b` in it.
pub(super) fn includes(
    whos: &[Who],
    launches: &[LaunchInfo],
    scope: ScopeKind,
    a: u32,
    b: u32,
) -> bool {
    let (a, b) = (&whos[a as usize], &whos[b as usize]);
    match scope {
        ScopeKind::Sys => true,
        ScopeKind::Gpu => launches[a.launch as usize].device == launches[b.launch as usize].device,
        ScopeKind::Cta => a.launch == b.launch && a.block == b.block,
    }
}

/// Whether lanes like this one are held back in a run of this seed.
pub(super) fn is_slow(seed: u64, device: u32, block: u32, lane: u32) -> bool {
    let whom = mix(seed ^ 0x510_7e57);
    let chosen = |of: u64, once_in: u64| mix(seed.wrapping_mul(31) ^ of).is_multiple_of(once_in);
    match whom % 3 {
        0 => chosen(u64::from(device), 2),
        1 => chosen(u64::from(device) << 32 | u64::from(block), 2),
        _ => chosen(u64::from(device) << 40 | u64::from(block) << 20 | u64::from(lane), 8),
    }
}

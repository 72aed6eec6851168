//! What lanes go through at every access: the state of a world, and when a lane makes room for others.
//!
//! Invariant: no borrow of the state is held while a lane is suspended. All lanes of a world and its
//! scheduler are on one thread.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::Location;
use std::sync::Arc;

use mscclrs_device::ScopeKind;
use mscclrs_device::arch::host::{Access, Bits, Op};

use super::ahead::Ahead;
use super::cells::{Cells, Place};
use super::clock::{Clock, Moment, meet};
use super::decisions::Decisions;
use super::finding::{Finding, FindingKind, Site};
use super::host_knowledge::HostKnowledge;
use super::late::Late;
use super::memory::{Found, View};
use super::mode::{Check, Mode, Schedule};
use super::moves::MoveInfo;
use super::polls::{POLLED, Polls};
use super::random::{Random, mix};
use super::seen::Link;
use super::slots::FreeSlots;
use super::stamps::Kinds;
use super::trace::Trace;

/// Nanoseconds of the world's clock an access takes.
const ACCESS_NS: u64 = 5;
/// And a look at the clock: what only waits for time to pass gets there.
const CLOCK_NS: u64 = 50;

/// A launch, for reports and for what lies in the same grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchInfo {
    pub(super) kernel: &'static str,
    pub(super) device: u32,
    /// Lanes of the grid.
    pub(super) lanes: u32,
    /// Once it has ended: the first launch that had not begun by then.
    pub(super) ended: Option<u32>,
}

/// A block of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockInfo {
    pub(super) launch: u32,
    /// Its index in the grid.
    pub(super) index: u32,
    pub(super) device: u32,
    /// The first lane's slot; those of the others follow it.
    pub(super) first_slot: u32,
}

/// A lane of any block that ran: memory of what it did outlives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Who {
    /// The block's number among all of the world.
    pub(super) block: u32,
    pub(super) lane: u32,
}

impl Who {
    /// The host.
    pub(super) const HOST: Who = Who { block: u32::MAX, lane: 0 };
}

/// What a relaxed load of a word saw.
#[derive(Clone, Debug)]
pub(super) struct OfWord {
    /// Its memory and the byte in it.
    pub(super) place: (u64, u64),
    pub(super) release: super::orders::Release,
    pub(super) load_scope: ScopeKind,
}

/// A lane's own state, from the beginning of its block to its end.
#[derive(Default)]
pub(super) struct LaneState {
    pub(super) who: Who,
    pub(super) clock: Clock,
    /// Lanes of its grid: lanes mostly go on by so many elements.
    pub(super) step: u64,
    /// What relaxed stores after fences release: after fences of at least block, GPU and system scope.
    pub(super) fences: [Option<Moment>; 3],
    /// What an acquire fence will learn: what relaxed loads saw, and their scope.
    pub(super) pending: Vec<(super::orders::Release, ScopeKind)>,
    /// What it released by a word, of which memory and byte: its later relaxed stores to the word do too.
    pub(super) released: VecDeque<((u64, u64), super::orders::Release)>,
    /// What its relaxed loads of a word saw: its later acquires of that word learn that too.
    pub(super) seen: VecDeque<OfWord>,
    pub(super) misses: VecDeque<super::orders::Miss>,
    /// What it read last, in a ring: addresses, and of shared memory the object and the byte.
    pub(super) read: [u64; POLLED],
    pub(super) next_read: u8,
    /// Late values seen one after the other.
    pub(super) late: u8,
    /// `pending` and `seen` as they were before it looked at what it waits for.
    pub(super) before_look: Option<Box<BeforeLook>>,
}

pub(super) type BeforeLook = (Vec<(super::orders::Release, ScopeKind)>, VecDeque<OfWord>);

impl LaneState {
    /// It looks in vain, perhaps: what it learns so depends on how often that is done.
    pub(super) fn note(&mut self) {
        if self.before_look.is_none() {
            self.before_look = Some(Box::new((self.pending.clone(), self.seen.clone())));
        }
    }
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
    pub(super) ahead: Ahead,
    pub(super) view: View,
    // These grow with each launch, block and move, by some bytes; all else is used again.
    pub(super) launches: Vec<LaunchInfo>,
    pub(super) blocks: Vec<BlockInfo>,
    /// Names of all that were launched.
    pub(super) kernels: BTreeSet<&'static str>,
    pub(super) moves: Vec<MoveInfo>,
    /// By their numbers: those of a block follow each other.
    pub(super) lanes: Vec<LaneState>,
    /// First numbers of lanes of blocks that have ended, by how many there is room for.
    pub(super) free_lanes: BTreeMap<u32, Vec<u32>>,
    pub(super) kinds: Kinds,
    /// The last time in each slot.
    pub(super) slots: Vec<u32>,
    /// Slots that no queue holds.
    pub(super) free_slots: FreeSlots,
    pub(super) trace: Trace,
    pub(super) finding: Option<Finding>,
    pub(super) late: Late,
    pub(super) host: HostKnowledge,
    /// A wait ended early and its launch, or a peer's, goes on without what it would have brought.
    pub(super) spoilt: bool,
}

/// Where the choices of a run are.
pub(super) struct Choices {
    random: Random,
    quantum: u32,
    trace: (u64, u64),
}

/// One for the devices of a world.
pub(crate) struct Watch {
    pub(super) state: RefCell<State>,
    schedule: Schedule,
    /// Whether who goes on is a decision.
    decides: bool,
    failed: Cell<bool>,
    quantum: Cell<u32>,
    clock_ns: Cell<u64>,
    pub(super) polls: Polls,
}

impl Watch {
    pub(super) fn new(mode: Mode, keep_trace: bool, link: Arc<Link>) -> Watch {
        let (schedule, check) = (mode.schedule(), mode.check);
        let decisions = match &schedule {
            Schedule::Departures(departures) => Some(Decisions::new(departures.clone())),
            _ => None,
        };
        Watch {
            decides: decisions.is_some(),
            quantum: Cell::new(if decisions.is_some() { u32::MAX } else { 1 }),
            state: RefCell::new(State {
                random: Random::new(mode.seed),
                decisions,
                in_vain: false,
                mode,
                cells: Cells::default(),
                ahead: Ahead::default(),
                view: View::default(),
                launches: Vec::new(),
                blocks: Vec::new(),
                kernels: BTreeSet::new(),
                moves: Vec::new(),
                lanes: Vec::new(),
                free_lanes: BTreeMap::new(),
                kinds: Kinds::default(),
                slots: Vec::new(),
                free_slots: FreeSlots::default(),
                trace: Trace::new(keep_trace),
                finding: None,
                late: Late::default(),
                host: HostKnowledge::new(link, check),
                spoilt: false,
            }),
            schedule,
            failed: Cell::new(false),
            clock_ns: Cell::new(1),
            polls: Polls::default(),
        }
    }

    pub(crate) fn check(&self) -> Check {
        self.state.borrow().mode.check
    }

    /// Nanoseconds of the world's own clock.
    pub(crate) fn now(&self) -> u64 {
        self.clock_ns.get()
    }

    /// A lane looks at the clock: whether it makes room for others now.
    pub(crate) fn is_turn_over_at_clock(&self, who: u32) -> bool {
        self.pass(CLOCK_NS);
        self.polled_clock(who);
        self.is_turn_over()
    }

    fn pass(&self, ns: u64) {
        self.clock_ns.set(self.clock_ns.get() + ns);
    }

    /// Every lane waits, and so none polls without end; time goes on.
    pub(super) fn all_wait(&self, ns: u64) {
        self.stored();
        self.pass(ns);
    }

    pub(super) fn stored(&self) {
        self.polls.end();
    }

    pub(super) fn choices(&self) -> Choices {
        let state = self.state.borrow();
        let (random, quantum, trace) =
            (state.random.clone(), self.quantum.get(), state.trace.sum());
        Choices { random, quantum, trace }
    }

    /// Back to there.
    pub(super) fn choose_again(&self, Choices { random, quantum, trace }: Choices) {
        let mut state = self.state.borrow_mut();
        state.random = random;
        state.trace.take_back(trace);
        self.quantum.set(quantum);
    }

    /// A wait of a lane ends early, or a lane learns that one has.
    pub(crate) fn wait_ended_early(&self) {
        self.state.borrow_mut().spoilt = true;
    }

    /// Whether lanes may lack what a wait that ended early would have brought.
    pub(crate) fn is_spoilt(&self) -> bool {
        self.state.borrow().spoilt
    }

    /// No lane is left that may miss what others did not do.
    pub(super) fn nothing_runs(&self) {
        self.state.borrow_mut().spoilt = false;
    }

    /// What the host may know; not to be kept while lanes run.
    pub(crate) fn host(&self) -> RefMut<'_, HostKnowledge> {
        RefMut::map(self.state.borrow_mut(), |state| &mut state.host)
    }

    /// Whether something was found: all lanes stay where they are.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.get()
    }

    pub(super) fn finding(&self) -> Option<Finding> {
        self.state.borrow().finding.clone()
    }

    /// The first finding stays.
    pub(super) fn found(&self, state: &mut State, finding: Finding) {
        self.failed.set(true);
        state.finding.get_or_insert(finding);
    }

    /// The number of the memory that an address lies in, and the byte there.
    pub(super) fn place(&self, address: u64) -> Option<(u32, u64)> {
        let state = &mut *self.state.borrow_mut();
        let Found::In { object, offset, .. } = state.view.find(address, 1) else { return None };
        let place = state.cells.place(object);
        Some((state.cells.number(place), offset))
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

    /// A lane that cannot go on.
    pub(crate) fn report_failure(&self, kind: FindingKind, what: String, lane: u32) {
        let mut state = self.state.borrow_mut();
        let who = state.who(lane);
        let here = Some(state.site(who, state.last_line(who), "stops".into()));
        let steps = state.interleaving(&[who], None);
        let (other, missing, mode) = (None, None, state.mode.clone());
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
            let line = match from {
                Some(from) => from.to_string(),
                None => "its end".into(),
            };
            state.site(state.who(who), line, "arrives".into())
        };
        let lanes = std::iter::once(who).chain(other.map(|(who, _)| who));
        let whos: Vec<Who> = lanes.map(|lane| state.who(lane)).collect();
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
        let is_over = left == 0 || self.polls_in_vain();
        if is_over {
            self.new_turn();
        }
        is_over
    }

    /// The order of lanes.
    pub(super) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Whether it is a decision who goes on before such an access.
    #[inline]
    pub(crate) fn decides_before(&self, access: &Access) -> bool {
        self.decides && super::races::is_atomic(access.op)
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
        self.stored();
    }

    /// A lane waits; `again`: it has looked in vain, and learns nothing of it.
    pub(crate) fn waits(&self, who: u32, again: bool) {
        let lane = &mut self.state.borrow_mut().lanes[who as usize];
        if let (Some(before), true) = (lane.before_look.take(), again) {
            (lane.pending, lane.seen) = *before;
        }
    }

    /// `in_vain`: only a timer woke the lane.
    pub(crate) fn load(&self, who: u32, access: &Access, in_vain: bool) -> Bits {
        let mut state = self.state.borrow_mut();
        state.in_vain = in_vain;
        let loaded = state.load(who, access);
        self.polled(&mut state, who, 0, access);
        loaded.unwrap_or_else(|finding| {
            self.found(&mut state, *finding);
            [0; 2]
        })
    }

    pub(crate) fn store(&self, who: u32, access: &Access, bits: Bits) {
        self.stored();
        let mut state = self.state.borrow_mut();
        state.in_vain = false;
        if let Err(finding) = state.store(who, access, bits) {
            self.found(&mut state, *finding);
        }
    }

    pub(crate) fn modify(
        &self,
        who: u32,
        access: &Access,
        change: &dyn Fn(u64) -> Option<u64>,
    ) -> u64 {
        let mut state = self.state.borrow_mut();
        state.in_vain = false;
        match state.modify(who, access, change) {
            Ok((before, changed)) => {
                match changed {
                    true => self.stored(),
                    false => self.polled(&mut state, who, 0, access),
                }
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
    pub(crate) fn shared(&self, who: u32, object: u64, bytes: u32, access: &Access) {
        let mut state = self.state.borrow_mut();
        match access.op {
            Op::Load => self.polled(&mut state, who, object, access),
            _ => self.stored(),
        }
        if let Err(finding) = state.shared(who, object, bytes, access) {
            self.found(&mut state, *finding);
        }
    }
}

impl State {
    pub(super) fn refresh(&mut self) {
        if self.view.refresh() {
            let live = self.view.objects();
            // Shared memory of blocks is not in the view: it goes with its block.
            self.cells.retain(|object| object >> 62 == 1 || live.contains(&object));
        }
    }

    pub(super) fn who(&self, lane: u32) -> Who {
        self.lanes[lane as usize].who
    }

    /// Whether a scope of lane `a` has lane `b` in it.
    pub(super) fn includes(&self, scope: ScopeKind, a: Who, b: Who) -> bool {
        includes(&self.blocks, scope, a, b)
    }

    pub(super) fn site(&self, who: Who, line: String, what: String) -> Site {
        let BlockInfo { launch, index: block, device, .. } = self.blocks[who.block as usize];
        let LaunchInfo { kernel, .. } = self.launches[launch as usize];
        Site { what, kernel, line, device, block, lane: who.lane, launch }
    }

    /// Where a lane is, as far as its accesses tell.
    fn last_line(&self, who: Who) -> String {
        let last = self.trace.recent().find(|event| event.who == who);
        last.map_or("a place before its first access".to_owned(), |event| {
            format!("a place after its last access, {}", self.kinds.place(event.kind))
        })
    }

    /// A finding at an access.
    pub(super) fn about(
        &mut self,
        kind: FindingKind,
        what: String,
        who: u32,
        access: &Access,
        at: Option<(Place, u64)>,
    ) -> Finding {
        let text = super::races::words(access.op, access.order, access.scope);
        let who = self.who(who);
        let here = Some(self.site(who, access.from.to_string(), text));
        let place = at.map(|(place, offset)| (self.cells.number(place), offset & !7));
        let steps = self.interleaving(&[who], place);
        let mode = self.mode.clone();
        Finding { kind, what, here, other: None, missing: None, steps, mode }
    }
}

/// Whether a scope of lane `a` has lane `b` in it.
pub(super) fn includes(blocks: &[BlockInfo], scope: ScopeKind, a: Who, b: Who) -> bool {
    // The host is in no block.
    let device = |who: Who| blocks.get(who.block as usize).map(|block| block.device);
    match scope {
        ScopeKind::Sys => true,
        ScopeKind::Gpu => device(a) == device(b),
        ScopeKind::Cta => a.block == b.block,
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

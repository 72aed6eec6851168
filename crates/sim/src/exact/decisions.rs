//! The decisions of a run that takes defaults but for its departures: what was decided, and in which
//! state of the run.
//!
//! A decision is which lane makes its access next, where several are about to make one that others can
//! take part in synchronising by, or which block begins, or which value a load of weak mode sees. All other
//! accesses commute with what other lanes do as long as nothing races, so their order is no decision; races
//! are found by clocks, in any order.
//!
//! Invariant: two moments with the same state go on in the same way if the same alternatives are taken. A
//! lane's state is the history of its accesses, each with the history of what it read; where words and
//! lanes stand follows from these. It does not depend on the order of accesses that have nothing to do
//! with each other: so an exploration sees that it has been there, by another way.

use std::collections::HashMap;
use std::fmt;

use mscclrs_device::arch::host::{Access, Op};

use super::departures::{Departure, Departures};
use super::polls::POLLED;
use super::random::mix;

/// Decisions that are remembered; later ones are made but not told of.
pub(super) const MOST: usize = 1 << 20;

/// A decision that a run met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How many alternatives there were: two or more.
    pub alternatives: u32,
    /// Stands for all that happened before, as far as it can matter for what comes after.
    pub state: u64,
}

/// A departure that a run has not come to: if the run has ended, it is not the one that the list is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// The first such departure.
    pub departure: Departure,
    /// How many decisions the run has met.
    pub decisions: u64,
}

/// A departure that was not possible: the run is not the one that the list is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Impossible {
    pub(super) departure: Departure,
    pub(super) alternatives: u32,
}

/// 8 bytes: the number of their memory, however often that is mapped, and the byte in it.
pub(super) type Word = (u32, u64);

#[derive(Clone, Default)]
struct LaneHistory {
    /// Of all its accesses.
    history: u64,
    /// What it has read since it last changed anything: words, and the histories that they had.
    read: Vec<(Word, u64)>,
    /// How often, one after the other, it has read what it had read before and nobody had written since.
    again: u32,
    /// Whether the last access before this one read the same, both atomically.
    twice: bool,
    last: Option<(Word, u64)>,
}

impl LaneHistory {
    /// It finds a word with one history and leaves it with another, which may be the same.
    fn reads(&mut self, word: Word, (held, left): (u64, u64), is_atomic: bool) {
        let (seen, this) = ((word, held), (word, left));
        self.twice = is_atomic && self.last == Some(seen);
        self.last = is_atomic.then_some(this);
        match self.read.iter_mut().find(|(known, _)| *known == word) {
            Some(known) if *known == seen => {
                (*known, self.again) = (this, self.again.saturating_add(1))
            }
            Some(known) => (*known, self.again) = (this, 0),
            None => {
                // A poll goes through few words; what was read first is no part of it then.
                if self.read.len() == POLLED {
                    self.read.remove(0);
                }
                self.read.push(this);
                self.again = 0;
            }
        }
    }

    fn changes(&mut self) {
        self.read.clear();
        (self.again, self.twice, self.last) = (0, false, None);
    }

    /// Whether it seems to go round: it has read one word twice in a row, or several in two rounds.
    fn goes_round(&self) -> bool {
        self.twice || self.again >= 2 * (self.read.len() as u32).max(1)
    }

    /// What it reads round and round.
    fn round(&self) -> &[(Word, u64)] {
        match &self.last {
            Some(last) if self.twice => std::slice::from_ref(last),
            _ => &self.read,
        }
    }
}

/// What an access did to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It left it as it was: a load, or a read-modify-write that did not write.
    Read,
    /// It wrote the value that was there: some poll so.
    Rewrote,
    /// It wrote.
    Changed,
}

pub(super) struct Decisions {
    departures: Departures,
    next: usize,
    count: u64,
    met: Vec<Decision>,
    impossible: Option<Impossible>,
    lanes: Vec<LaneHistory>,
    /// The history of the last write of each 8 bytes.
    words: HashMap<Word, u64>,
    /// Of all lanes.
    sum: u64,
}

impl Decisions {
    pub(super) fn new(departures: Departures) -> Decisions {
        Decisions {
            departures,
            next: 0,
            count: 0,
            met: Vec::new(),
            impossible: None,
            lanes: Vec::new(),
            words: HashMap::new(),
            sum: 0,
        }
    }

    /// Those that it met.
    pub(super) fn met(&self) -> &[Decision] {
        &self.met
    }

    /// The first departure that it has not come to.
    pub(super) fn unreached(&self) -> Option<Unreached> {
        let departure = *self.departures.list().get(self.next)?;
        Some(Unreached { departure, decisions: self.count })
    }

    /// The first departure that was not possible.
    pub(super) fn impossible(&self) -> Option<Impossible> {
        self.impossible
    }

    /// A lane with a number begins: of which kernel on which device, and which launch, block and lane.
    pub(super) fn begin_lane(
        &mut self,
        who: u32,
        (kernel, device): (&str, u32),
        (launch, block, lane): (u32, u32, u32),
    ) {
        let who = who as usize;
        let named = |sum: u64, part: u64| mix(sum.rotate_left(9) ^ part);
        let parts = [device, launch, block, lane].map(u64::from);
        let name = kernel.bytes().map(u64::from).chain(parts).fold(1, named);
        if self.lanes.len() <= who {
            self.lanes.resize_with(who + 1, LaneHistory::default);
        }
        self.lanes[who] = LaneHistory { history: name, ..Default::default() };
        self.sum = self.sum.wrapping_add(mix(self.lanes[who].history));
    }

    /// Which of the lanes that are about to make an access makes it: 0 is the default.
    pub(super) fn which_lane(&mut self, current: Option<u32>, lanes: u32) -> u32 {
        let current = current.and_then(|who| self.lanes.get(who as usize));
        self.decide(lanes, current.map_or(1, |lane| mix(lane.history ^ 0x1a9e)))
    }

    /// How much older than the newest value is what a load sees, in values.
    pub(super) fn how_late(&mut self, who: u32, values: u32) -> u32 {
        let history = self.lanes.get(who as usize).map_or(0, |lane| lane.history);
        let late = self.decide(values, mix(history ^ 0x1a7e));
        if late > 0 {
            self.add(who, u64::from(late));
        }
        late
    }

    fn decide(&mut self, alternatives: u32, of: u64) -> u32 {
        if alternatives < 2 {
            return 0;
        }
        let decision = self.count;
        self.count += 1;
        if self.met.len() < MOST {
            self.met.push(Decision { alternatives, state: mix(self.sum ^ of) });
        }
        let departure = self.departures.list().get(self.next).copied();
        let Some(departure) = departure.filter(|departure| departure.decision == decision) else {
            return 0;
        };
        self.next += 1;
        if departure.alternative >= alternatives {
            self.impossible.get_or_insert(Impossible { departure, alternatives });
            return 0;
        }
        departure.alternative
    }

    /// A lane has made an access, from this byte of a piece of memory on.
    pub(super) fn accessed(
        &mut self,
        who: u32,
        access: &Access,
        (object, offset): Word,
        effect: Effect,
    ) {
        let first = (object, offset & !7);
        let second = if access.size == 16 { (object, offset + 8) } else { first };
        let words = [first, second];
        let held = words.map(|word| self.words.get(&word).copied().unwrap_or(0));
        let line = u64::from(access.from.line()) << 32 | u64::from(access.from.column());
        self.add(who, mix(held[0]) ^ mix(held[1].wrapping_mul(3)) ^ line << 3 ^ access.op as u64);
        let Some(lane) = self.lanes.get_mut(who as usize) else { return };
        let history = lane.history;
        if effect != Effect::Read {
            self.words.extend(words.map(|word| (word, history)));
        }
        match effect {
            Effect::Changed => lane.changes(),
            Effect::Read => lane.reads(first, (held[0], held[0]), access.op != Op::Load),
            // Its own write is what it finds when it comes again.
            Effect::Rewrote => lane.reads(first, (held[0], history), true),
        }
    }

    /// Whether a lane does nothing but read words that nobody has written meanwhile: a wait that does
    /// not say so.
    pub(super) fn polls(&self, who: u32) -> bool {
        let Some(lane) = self.lanes.get(who as usize) else { return false };
        let holds = |word: &Word| self.words.get(word).copied().unwrap_or(0);
        lane.goes_round() && lane.round().iter().all(|(word, seen)| holds(word) == *seen)
    }

    fn add(&mut self, who: u32, what: u64) {
        let Some(lane) = self.lanes.get_mut(who as usize) else { return };
        self.sum = self.sum.wrapping_sub(mix(lane.history));
        lane.history = mix(lane.history.rotate_left(7) ^ what);
        self.sum = self.sum.wrapping_add(mix(lane.history));
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unreached { departure: Departure { decision, alternative }, decisions } = self;
        write!(f, "the departure {decision}={alternative} was not reached: the run has ")?;
        match decisions {
            0 => f.write_str("no decisions"),
            1 => f.write_str("one decision, 0"),
            _ => write!(f, "the decisions 0 to {}", decisions - 1),
        }
    }
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Impossible { departure: Departure { decision, alternative }, alternatives } = self;
        write!(
            f,
            "the departure {decision}={alternative} is not possible here: at decision {decision} there \
             are the alternatives 0 to {}; the program is not the one that the departures are of",
            alternatives - 1
        )
    }
}

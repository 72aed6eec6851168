//! Which outcomes of a litmus test the PTX memory model allows, from its axioms: the relations of "Memory
//! Consistency Model" in the PTX ISA, tried for every choice of who reads what and in which order the
//! writes of a location come.
//!
//! Programs are a handful of operations, so all choices are tried. Every location is written by one lane,
//! or by writes of which the order is one of all; fences are acquire-release fences.

use std::collections::BTreeSet;

use super::program::{Kind, Lanes, Order, Outcome};

/// An operation of a lane, or the write that a location begins with.
#[derive(Clone, Copy)]
struct Event {
    /// `None`: before all lanes.
    lane: Option<usize>,
    kind: Kind,
    order: Order,
}

impl Event {
    fn location(&self) -> Option<u8> {
        match self.kind {
            Kind::Write(at, _) | Kind::Read(at) | Kind::Add(at, _) => Some(at),
            Kind::Fence => None,
        }
    }

    fn writes(&self) -> bool {
        matches!(self.kind, Kind::Write(..) | Kind::Add(..))
    }

    fn reads(&self) -> bool {
        matches!(self.kind, Kind::Read(_) | Kind::Add(..))
    }

    fn releases(&self) -> bool {
        matches!(self.order, Order::Release | Order::AcqRel)
    }

    fn acquires(&self) -> bool {
        matches!(self.order, Order::Acquire | Order::AcqRel)
    }
}

/// A relation between events.
#[derive(Clone)]
struct Relation(Vec<Vec<bool>>);

impl Relation {
    fn of(count: usize, holds: impl Fn(usize, usize) -> bool) -> Relation {
        Relation((0..count).map(|a| (0..count).map(|b| holds(a, b)).collect()).collect())
    }

    fn has(&self, a: usize, b: usize) -> bool {
        self.0[a][b]
    }

    /// With all that follows by going on.
    fn closed(mut self) -> Relation {
        let count = self.0.len();
        for via in 0..count {
            for a in 0..count {
                for b in 0..count {
                    self.0[a][b] |= self.0[a][via] && self.0[via][b];
                }
            }
        }
        self
    }

    fn has_cycle(self) -> bool {
        let closed = self.closed();
        (0..closed.0.len()).any(|a| closed.has(a, a))
    }
}

/// A program, and one choice of who reads what.
struct Candidate<'a> {
    events: &'a [Event],
    /// Whether each lane's scope has the others in it.
    held: bool,
    /// For each event that reads: which write.
    from: Vec<Option<usize>>,
    /// For each write: its place in the order of its location.
    place: Vec<usize>,
}

/// All outcomes that the model allows.
pub(super) fn allowed(lanes: Lanes<'_>, held: bool) -> BTreeSet<Outcome> {
    outcomes(lanes, |candidate| candidate.is_allowed(), held)
}

/// Those of them that weak mode makes: it runs the operations of a lane one after the other, a word has one
/// order of writes which no lane sees go back, and read-modify-writes are atomic whatever their scopes.
pub(super) fn made(lanes: Lanes<'_>, held: bool) -> BTreeSet<Outcome> {
    outcomes(lanes, |candidate| candidate.is_allowed() && candidate.is_made(), held)
}

/// All outcomes that there would be if every read saw any write.
pub(super) fn imaginable(lanes: Lanes<'_>) -> BTreeSet<Outcome> {
    outcomes(lanes, |_| true, true)
}

fn outcomes(
    lanes: Lanes<'_>,
    keep: impl Fn(&Candidate<'_>) -> bool,
    held: bool,
) -> BTreeSet<Outcome> {
    let mut events: Vec<Event> = Vec::new();
    for (lane, operations) in lanes.iter().enumerate() {
        let of_lane = |op: &super::program::Operation| Event {
            lane: Some(lane),
            kind: op.kind,
            order: op.order,
        };
        events.extend(operations.iter().map(of_lane));
    }
    let locations: BTreeSet<u8> = events.iter().filter_map(Event::location).collect();
    for &at in &locations {
        events.push(Event { lane: None, kind: Kind::Write(at, 0), order: Order::Relaxed });
    }
    let writes_of = |at: u8| -> Vec<usize> {
        let is = |&index: &usize| events[index].writes() && events[index].location() == Some(at);
        (0..events.len()).filter(is).collect()
    };
    let mut sources: Vec<Vec<Option<usize>>> = vec![Vec::new()];
    for event in &events {
        let choices: Vec<Option<usize>> = match event.location().filter(|_| event.reads()) {
            Some(at) => writes_of(at).into_iter().map(Some).collect(),
            None => vec![None],
        };
        sources = product(&sources, &choices);
    }
    let mut places: Vec<Vec<usize>> = vec![vec![0; events.len()]];
    for &at in &locations {
        let mut writes = writes_of(at);
        // What the location begins with is its first write.
        let first = writes.pop();
        let mut longer = Vec::new();
        for before in &places {
            for order in permutations(&writes) {
                let mut place = before.clone();
                let all = first.iter().chain(&order);
                all.enumerate().for_each(|(nth, &write)| place[write] = nth);
                longer.push(place);
            }
        }
        places = longer;
    }
    let mut found = BTreeSet::new();
    for from in &sources {
        for place in &places {
            let (from, place) = (from.clone(), place.clone());
            let candidate = Candidate { events: &events, held, from, place };
            if let Some(outcome) = candidate.outcome().filter(|_| keep(&candidate)) {
                found.insert(outcome);
            }
        }
    }
    found
}

impl Candidate<'_> {
    /// What the reads see, in the order of the program; `None` if values come out of thin air.
    fn outcome(&self) -> Option<Outcome> {
        let reads = (0..self.events.len()).filter(|&event| self.events[event].reads());
        reads.map(|event| self.value(self.from[event]?, 0)).collect()
    }

    fn value(&self, write: usize, depth: usize) -> Option<u64> {
        match self.events[write].kind {
            _ if depth > self.events.len() => None,
            Kind::Write(_, value) => Some(value),
            Kind::Add(_, value) => Some(self.value(self.from[write]?, depth + 1)? + value),
            Kind::Read(_) | Kind::Fence => None,
        }
    }

    fn program_order(&self, a: usize, b: usize) -> bool {
        let (first, second) = (self.events[a].lane, self.events[b].lane);
        (first.is_none() && second.is_some()) || (first.is_some() && first == second && a < b)
    }

    fn overlap(&self, a: usize, b: usize) -> bool {
        self.events[a].location().is_some()
            && self.events[a].location() == self.events[b].location()
    }

    fn morally_strong(&self, a: usize, b: usize) -> bool {
        let (first, second) = (&self.events[a], &self.events[b]);
        let both_strong = first.order != Order::Plain && second.order != Order::Plain;
        let related = self.program_order(a, b) || self.program_order(b, a);
        let fences = first.location().is_none() || second.location().is_none();
        (related || (both_strong && self.held)) && (fences || self.overlap(a, b))
    }

    /// Whether one is a write and the other sees it, or a read-modify-write that saw it.
    fn observed(&self) -> Relation {
        Relation::of(self.events.len(), |write, read| {
            self.from[read] == Some(write) && self.morally_strong(write, read)
        })
        // Going on is through read-modify-writes only: nothing else has both ends.
        .closed()
    }

    /// For each release pattern, its first operation and its write.
    fn releases(&self) -> Vec<(usize, usize)> {
        let strong_write = |event: &Event| event.writes() && event.order != Order::Plain;
        let mut found = Vec::new();
        for (a, first) in self.events.iter().enumerate() {
            let fence = matches!(first.kind, Kind::Fence);
            if first.writes() && first.releases() {
                found.push((a, a));
            }
            for (b, write) in self.events.iter().enumerate() {
                let begins = fence || (first.writes() && first.releases() && self.overlap(a, b));
                if begins && strong_write(write) && self.program_order(a, b) {
                    found.push((a, b));
                }
            }
        }
        found
    }

    /// For each acquire pattern, its read and its last operation.
    fn acquires(&self) -> Vec<(usize, usize)> {
        let strong_read = |event: &Event| event.reads() && event.order != Order::Plain;
        let mut found = Vec::new();
        for (b, last) in self.events.iter().enumerate() {
            let fence = matches!(last.kind, Kind::Fence);
            if last.reads() && last.acquires() {
                found.push((b, b));
            }
            for (a, read) in self.events.iter().enumerate() {
                let ends = fence || (last.reads() && last.acquires() && self.overlap(a, b));
                if ends && strong_read(read) && self.program_order(a, b) {
                    found.push((a, b));
                }
            }
        }
        found
    }

    fn is_allowed(&self) -> bool {
        let count = self.events.len();
        let observed = self.observed();
        let mut base = Relation::of(count, |a, b| self.program_order(a, b));
        for &(first, write) in &self.releases() {
            for &(read, last) in &self.acquires() {
                let lanes_differ = self.events[first].lane != self.events[last].lane;
                if lanes_differ && observed.has(write, read) && self.morally_strong(first, last) {
                    base.0[first][last] = true;
                }
            }
        }
        let base = base.closed();
        let causality = Relation::of(count, |a, b| {
            base.has(a, b) || (0..count).any(|via| observed.has(a, via) && base.has(via, b))
        });
        let later = |a: usize, b: usize| self.later(a, b);
        let writes = |event: usize| self.events[event].writes();
        // Coherence.
        let pairs = || (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        if pairs().any(|(a, b)| {
            writes(a) && writes(b) && self.overlap(a, b) && causality.has(a, b) && !later(a, b)
        }) {
            return false;
        }
        // Atomicity.
        let between = |source: usize, own: usize| {
            (0..count).any(|other| {
                writes(other)
                    && other != own
                    && self.morally_strong(other, own)
                    && later(source, other)
                    && later(other, own)
            })
        };
        for own in (0..count).filter(|&own| matches!(self.events[own].kind, Kind::Add(..))) {
            let Some(source) = self.from[own] else { return false };
            if between(source, own) || !later(source, own) {
                return false;
            }
        }
        // Causality.
        for read in 0..count {
            let Some(source) = self.from[read] else { continue };
            if causality.has(read, source) {
                return false;
            }
            let hidden = |write: usize| {
                writes(write)
                    && self.overlap(write, read)
                    && causality.has(write, read)
                    && later(source, write)
            };
            if (0..count).any(hidden) {
                return false;
            }
        }
        // Sequential consistency of a location.
        !self.of_a_location(|a, b| self.morally_strong(a, b)).has_cycle()
    }

    /// Program order and communication within a location, between operations for which `counts` holds.
    fn of_a_location(&self, counts: impl Fn(usize, usize) -> bool) -> Relation {
        let writes = |event: usize| self.events[event].writes();
        Relation::of(self.events.len(), |a, b| {
            let seen = self.from[b] == Some(a);
            let follows = writes(a) && writes(b) && self.later(a, b);
            let hidden = |source| a != b && self.later(source, b);
            let before = writes(b) && self.from[a].is_some_and(hidden);
            let ordered = self.overlap(a, b) && self.program_order(a, b);
            counts(a, b) && (ordered || seen || follows || before)
        })
    }

    fn is_made(&self) -> bool {
        let count = self.events.len();
        let runs = Relation::of(count, |a, b| {
            let writes = self.events[a].writes() && self.events[b].writes();
            self.program_order(a, b) || self.from[b] == Some(a) || (writes && self.later(a, b))
        });
        // A read-modify-write is one event: a write between it and what it saw is a cycle here.
        !runs.has_cycle() && !self.of_a_location(|_, _| true).has_cycle()
    }

    /// Whether of two writes of one location `b` is the later one.
    fn later(&self, a: usize, b: usize) -> bool {
        self.overlap(a, b) && self.place[a] < self.place[b]
    }
}

fn product<T: Clone>(lists: &[Vec<T>], choices: &[T]) -> Vec<Vec<T>> {
    let longer = |list: &Vec<T>| {
        let list = list.clone();
        choices.iter().map(move |choice| {
            let mut list = list.clone();
            list.push(choice.clone());
            list
        })
    };
    lists.iter().flat_map(longer).collect()
}

fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, &first) in items.iter().enumerate() {
        let mut rest = items.to_vec();
        rest.remove(at);
        for mut tail in permutations(&rest) {
            tail.insert(0, first);
            all.push(tail);
        }
    }
    all
}

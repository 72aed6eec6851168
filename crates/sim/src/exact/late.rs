//! Loads that saw what memory held before a write, in weak mode: where results are wrong, one of them is why.

use std::fmt;

use super::finding::Site;
use super::stamps::{Kind, KindId, Stamp};
use super::watch::{State, Who};

/// Pairs of a load and a write that are told apart, at most.
const MOST: usize = 16;
/// Pairs that are shown.
const SHOWN: usize = 4;

/// Loads of a line that did not see what a line wrote. Its text is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateLoad {
    /// The first of these loads.
    pub load: Site,
    /// The newest write that it did not see.
    pub missed: Site,
    /// How many of them there were.
    pub times: u64,
    /// Whether the load is a plain one: then nothing orders the two, and no program may do so.
    pub is_plain: bool,
}

impl LateLoad {
    /// What they have to do with a wrong result, for people; `ended` says whether all kernels had ended
    /// by then.
    pub fn told(all: &[LateLoad], ended: bool) -> String {
        let Some(first) = all.first() else {
            if !ended {
                return "  no load is known to have seen an old value, but kernels still ran"
                    .into();
            }
            return "  no load saw an old value: it would be as wrong if every write were seen at once"
                .into();
        };
        let mut text = String::from(match first.is_plain {
            true => "  loads that nothing orders after a write saw what was there before it:",
            false => "  atomic loads saw old values, as they may where nothing orders them:",
        });
        let of_its_kind = all.iter().filter(|late| late.is_plain == first.is_plain);
        for late in of_its_kind.take(SHOWN) {
            text.push_str(&format!("\n{late}"));
        }
        text
    }
}

impl fmt::Display for LateLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = if self.times == 1 { "once".into() } else { format!("{} times", self.times) };
        write!(f, "    {}\n    saw, {times}, what was there before\n    {}", self.load, self.missed)
    }
}

/// The first of loads of one kind that did not see writes of one kind.
struct First {
    load: (Who, KindId),
    missed: Stamp,
    times: u64,
}

/// Plain loads, and then atomic ones: each in the order in which they were first seen.
#[derive(Default)]
pub(super) struct Late {
    plain: Vec<First>,
    atomic: Vec<First>,
}

impl Late {
    pub(super) fn len(&self) -> usize {
        self.plain.len() + self.atomic.len()
    }

    /// A load saw an older value than that of this write.
    pub(super) fn add(&mut self, load: (Who, KindId), is_atomic: bool, missed: Stamp) {
        let all = if is_atomic { &mut self.atomic } else { &mut self.plain };
        let same = |first: &&mut First| first.load.1 == load.1 && first.missed.kind == missed.kind;
        if let Some(first) = all.iter_mut().find(same) {
            first.times += 1;
        } else if all.len() < MOST {
            all.push(First { load, missed, times: 1 });
        }
    }
}

impl State {
    /// Loads that saw old values, plain ones first.
    pub(super) fn late_loads(&self) -> Vec<LateLoad> {
        let site = |who: Who, kind: KindId| {
            self.site(who, self.kinds.place(kind), Kind::words(&self.kinds.get(kind)))
        };
        let late = |first: &First, is_plain| LateLoad {
            load: site(first.load.0, first.load.1),
            missed: site(first.missed.who(), first.missed.kind),
            times: first.times,
            is_plain,
        };
        let Late { plain, atomic } = &self.late;
        plain
            .iter()
            .map(|first| late(first, true))
            .chain(atomic.iter().map(|first| late(first, false)))
            .collect()
    }
}

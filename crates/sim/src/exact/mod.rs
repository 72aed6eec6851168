//! Runs that can be had again, and that look for faults: the exact engine.
//!
//! A [`World`] has one thread for all its devices. Which lane runs, for how many accesses, and in weak
//! mode what each load sees follows from its seed, or from a list of departures from the default.
//! `explore` makes all runs that few departures make. `watch` is what lanes go through at each access,
//! and `launches` where they begin and end; `races` compares accesses, of which `stamps` are kept, and
//! `moves` those of queues; `orders` sees to what orders them, `clock` has who knows what, in which of
//! the `slots`, `host_knowledge` what of it hosts have `seen`, `values` keeps what late loads may see,
//! `late` which did, `cells` and `memory` have what memory there is, and `ahead` asks for it early.
//! `worker` is the thread that runs the lanes of a `world`: `turns` chooses whose turn it is, `hosts`
//! are waited for, `polls` tells those without end, `quiet` lets time go on while all wait, `decisions`
//! has what was to be decided, and `answers` what hosts ask.

mod ahead;
mod answers;
mod cells;
mod clock;
mod decisions;
mod departures;
mod explore;
mod finding;
mod host_knowledge;
mod hosts;
mod interleaving;
mod late;
mod launches;
mod listeners;
mod memory;
mod mode;
mod moves;
mod orders;
mod polls;
mod quiet;
mod races;
mod random;
mod seen;
mod slots;
mod stamps;
mod test_memory;
mod trace;
mod turns;
mod values;
mod watch;
mod worker;
mod world;

pub use answers::{RunningKernel, Unanswered};
pub(crate) use clock::{Known, Moment, join};
pub use decisions::{Decision, Unreached};
pub use departures::{Departure, Departures};
pub use explore::{
    Exploration, ExploreError, Found, Outcome, Ran, Tried, explore, search, shorten,
};
pub use finding::{Finding, FindingKind, Site};
pub use late::LateLoad;
pub use listeners::{Listeners, OnDecisions, OnProgress, OnTimeline, Progress};
pub use memory::{MappedMemory, MemoryOwner};
pub use mode::{Check, Mode, ModeError, Schedule};
pub(crate) use seen::{Link, Seen, Watched};
pub(crate) use slots::{FreeSlots, SlotRun};
pub use test_memory::TestMemory;
pub(crate) use watch::Watch;
pub use world::{Hold, World};

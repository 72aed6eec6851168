//! The CPU device's engine: GPU threads ("lanes") as fibers, one scheduler thread a device.
//!
//! A lane runs until it has to wait: for its block, for its warp, or for a word in memory. Waits for
//! memory name the word, so the scheduler looks at it itself and switches only to lanes that can go
//! on. Kernels of all queues of a device are interleaved on its one thread, so that several ranks on
//! one device make progress together; devices of a process run beside each other.
//!
//! `block` and `lane` know what a block of lanes is; `scheduler` has a device's queues and launches, and
//! decides who runs when; `exact` runs them in an order that follows from a seed, and looks for faults.

mod block;
mod device;
mod error;
mod exact;
mod fork;
mod inbox;
mod lane;
mod point;
mod reaper;
mod report;
mod scheduler;
mod stack;
mod work;

pub use device::{Device, DeviceConfig, Queue, release_after_work, waiting_reports};
pub use error::{LaunchError, Stopped};
pub use exact::{
    Check, Decision, Departure, Departures, Exploration, ExploreError, Finding, FindingKind, Found,
    Hold, LateLoad, Listeners, MappedMemory, MemoryOwner, Mode, ModeError, OnDecisions, OnProgress,
    OnTimeline, Outcome, Progress, Ran, RunningKernel, Schedule, Site, TestMemory, Tried,
    Unanswered, Unreached, World, explore, search, shorten,
};
pub use point::Point;
pub use reaper::release_later;
pub use report::{WaitingReport, WaitingRow};
pub use work::{Graph, Launch, Node, Work};

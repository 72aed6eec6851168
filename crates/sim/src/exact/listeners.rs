//! Who hears of a world while it runs, and what.

use super::decisions::{Decision, Unreached};
use super::finding::Finding;
use super::late::LateLoad;

/// What gets all steps of a world, as Perfetto reads them, when lanes have run and none can go on.
pub type OnTimeline = Box<dyn Fn(&str) + Send + Sync>;

/// What gets how far a world is: when that has changed, and before any host thread learns that a launch
/// has ended or that something was found.
pub type OnProgress = Box<dyn Fn(&Progress) + Send + Sync>;

/// What gets the decisions that a world has met since the last call, where its schedule is one of departures;
/// at most a million in all. Called before [`OnProgress`] tells how many they are.
pub type OnDecisions = Box<dyn Fn(&[Decision]) + Send + Sync>;

/// Who hears of a world while it runs. All are called on its thread, and lanes wait meanwhile.
#[derive(Default)]
pub struct Listeners {
    /// Without it steps are not kept.
    pub timeline: Option<OnTimeline>,
    /// Gets every decision.
    pub decisions: Option<OnDecisions>,
    /// Gets every change.
    pub progress: Option<OnProgress>,
}

/// How far a world is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Devices that it ever had.
    pub devices: u64,
    /// Launches that have begun.
    pub launches: u64,
    /// Those of them that have not ended.
    pub running: u64,
    /// Accesses of lanes.
    pub steps: u64,
    /// Decisions that were told.
    pub decisions: u64,
    /// The first departure of its schedule that it has not come to.
    pub unreached: Option<Unreached>,
    /// In weak mode: loads that saw old values, plain ones first.
    pub late: Vec<LateLoad>,
    /// What was found.
    pub finding: Option<Finding>,
}

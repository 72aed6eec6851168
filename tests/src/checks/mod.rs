//! The checks. A check gets a device, and an error of it says what was wrong.

mod collectives;
mod graphs;
mod ground;
mod long;
mod loss;
mod mixture;
mod numbers;
mod places;
mod processes;
mod timeouts;
mod turns;

use std::time::Duration;

use anyhow::Result;
use mscclrs_gpu::{BackendKind, Device};

use crate::soak;

/// A named check.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) limit: Duration,
    /// The only kind of device that it is for.
    only: Option<BackendKind>,
    pub(crate) run: fn(&Device) -> Result<()>,
}

impl Check {
    /// Whether it is for this kind of device.
    pub(crate) fn is_for(&self, kind: BackendKind) -> bool {
        self.only.is_none_or(|only| only == kind)
    }
}

const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: Duration = Duration::from_secs(180);

const fn check(name: &'static str, run: fn(&Device) -> Result<()>) -> Check {
    Check { name, limit: MINUTE, only: None, run }
}

const fn soak(name: &'static str, run: fn(&Device) -> Result<()>) -> Check {
    Check { limit: MINUTES, ..check(name, run) }
}

/// All of them.
pub(crate) const CHECKS: &[Check] = &[
    check("ground::contract", ground::contract),
    check("ground::replay", ground::replay),
    check("collectives::fault", collectives::an_injected_fault_is_seen),
    check("collectives::order", collectives::calls_follow_each_other),
    check("collectives::lap", collectives::flags_survive_the_lap),
    check("collectives::replays", collectives::replays_are_exact),
    check("collectives::all_gather", collectives::all_gather_is_exact),
    check("collectives::all_reduce", collectives::all_reduce_is_exact),
    check("numbers::float_sums", numbers::float_sums),
    check("numbers::special_floats", numbers::special_floats),
    check("numbers::integers", numbers::integers),
    check("places::one_rank", places::one_rank),
    check("places::mixed", places::mixed),
    check("places::registered", places::registered),
    check("places::shared_device", places::shared_device),
    check("long::rounds", long::rounds),
    Check {
        limit: MINUTES,
        only: Some(BackendKind::Cuda),
        ..check("long::beyond_4_gib", long::beyond_4_gib)
    },
    check("mixture::launched", mixture::launched),
    check("mixture::replayed", mixture::replayed),
    check("mixture::communicators", mixture::communicators),
    check("graphs::outlive", graphs::outlive),
    check("graphs::in_place", graphs::in_place),
    check("turns::busy", turns::busy),
    check("timeouts::record", timeouts::record),
    check("timeouts::disagreement", timeouts::disagreement),
    check("timeouts::mismatch", timeouts::mismatch),
    check("timeouts::bad_table", timeouts::bad_table),
    check("loss::threads", loss::threads),
    check("loss::goodbye", loss::goodbye),
    check("loss::compute_goes_on", loss::compute_goes_on),
    check("loss::long_graph", loss::long_graph),
    check("processes::killed", processes::killed),
    soak("soak::rendezvous", |device| soak::check("rendezvous", device.kind())),
    soak("soak::communicators", |device| soak::check("communicators", device.kind())),
    soak("soak::connections", |device| soak::check("connections", device.kind())),
    soak("soak::semaphores", |device| soak::check("semaphores", device.kind())),
    soak("soak::buffers", |device| soak::check("buffers", device.kind())),
    soak("soak::flood", |device| soak::check("flood", device.kind())),
];

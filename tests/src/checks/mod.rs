//! The checks. A check gets a device, and an error of it says what was wrong.

mod collectives;
mod ground;

use std::time::Duration;

use anyhow::Result;
use mscclrs_gpu::Device;

/// A named check.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) limit: Duration,
    pub(crate) run: fn(&Device) -> Result<()>,
}

const MINUTE: Duration = Duration::from_secs(60);

/// All of them.
pub(crate) const CHECKS: &[Check] = &[
    Check { name: "ground::contract", limit: MINUTE, run: ground::contract },
    Check { name: "ground::replay", limit: MINUTE, run: ground::replay },
    Check {
        name: "collectives::fault",
        limit: MINUTE,
        run: collectives::an_injected_fault_is_seen,
    },
    Check { name: "collectives::order", limit: MINUTE, run: collectives::calls_follow_each_other },
    Check { name: "collectives::lap", limit: MINUTE, run: collectives::flags_survive_the_lap },
    Check { name: "collectives::replays", limit: MINUTE, run: collectives::replays_are_exact },
    Check { name: "collectives::all_gather", limit: MINUTE, run: collectives::all_gather_is_exact },
    Check { name: "collectives::all_reduce", limit: MINUTE, run: collectives::all_reduce_is_exact },
];

//! The checks. A check gets a device, and an error of it says what was wrong.

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
pub(crate) const CHECKS: [Check; 2] = [
    Check { name: "ground::contract", limit: MINUTE, run: ground::contract },
    Check { name: "ground::replay", limit: MINUTE, run: ground::replay },
];

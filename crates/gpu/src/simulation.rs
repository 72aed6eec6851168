//! CPU devices whose kernels run in an order that can be had again, and are looked at for faults.

use std::collections::BTreeSet;
use std::sync::Arc;

pub use mscclrs_sim::{Check, Finding, FindingKind, Mode, ModeError, Schedule, Site};
use mscclrs_sim::{DeviceConfig, Hold, World};

use crate::cpu::{self, CpuDevice};
pub use crate::report::{Report, ReportedFinding, ReportedSite};
use crate::{CpuConfig, Device, Error, Result};

/// Devices of one process, for ranks that are its threads. One thread runs all their kernels: which lane
/// is next, for how many accesses, and in weak mode what each load sees follows from the mode's seed.
///
/// The order is the same from run to run if what the host threads do between two waits does not depend
/// on time: work is taken when no lane can go on, and what comes within two milliseconds is begun together,
/// in the order of the devices. How long all lanes wait changes nothing. To be certain,
/// [`hold`](Simulation::hold) it.
///
/// After a finding every stream of its devices returns [`Error::Stopped`] with the report.
///
/// ```
/// use mscclrs_gpu::simulation::{Check, Mode, Simulation};
///
/// let simulation = Simulation::start(Mode::new(Check::Checked, 7))?;
/// let ranks = [simulation.device(0)?, simulation.device(1)?];
/// // Launch kernels on the ranks' streams and wait for them; then:
/// assert_eq!(simulation.finding().map(|finding| finding.to_string()), None);
/// # drop(ranks);
/// # Ok::<(), mscclrs_gpu::Error>(())
/// ```
pub struct Simulation {
    world: World,
    config: CpuConfig,
    timeline: bool,
}

impl Simulation {
    /// One whose devices have the limits that the environment says. An error if the system gives no
    /// thread.
    pub fn start(mode: Mode) -> Result<Simulation> {
        Simulation::with_config(mode, CpuConfig::from_env()?, false)
    }

    /// One whose devices have these limits. With `timeline` it keeps all accesses, at most two million.
    pub fn with_config(mode: Mode, config: CpuConfig, timeline: bool) -> Result<Simulation> {
        let system = |source| Error::System { call: "pthread_create", source };
        let world = World::start(mode, timeline).map_err(system)?;
        Ok(Simulation { world, config, timeline })
    }

    /// Its mode.
    pub fn mode(&self) -> Mode {
        self.world.mode()
    }

    /// A new device: another one at each call, so ask for each rank's once.
    pub fn device(&self, ordinal: u32) -> Result<Device> {
        let config = DeviceConfig {
            ordinal,
            multiprocessors: self.config.multiprocessors,
            threads: self.config.threads,
            shared_bytes: cpu::SHARED_BYTES,
            deadlock: self.config.deadlock,
        };
        let engine = self.world.device(config);
        Ok(Device::of(Arc::new(CpuDevice::with_engine(ordinal, &self.config, engine))))
    }

    /// Begins nothing until what this gives is dropped; then all that came begins together.
    pub fn hold(&self) -> Hold {
        self.world.hold()
    }

    /// What was found. Blocks while lanes run.
    pub fn finding(&self) -> Option<Finding> {
        self.world.finding()
    }

    /// How many accesses kernels made, and a number that stands for all of them and their order: two runs
    /// with equal ones were the same. Blocks while lanes run.
    pub fn trace_sum(&self) -> (u64, u64) {
        self.world.trace_sum()
    }

    /// Names of the kernels that were launched, for tests that want to be sure that theirs ran. Blocks while
    /// lanes run.
    pub fn kernels(&self) -> BTreeSet<&'static str> {
        self.world.kernels()
    }

    /// All accesses in their order, in the form that Perfetto and chrome://tracing read, if they are
    /// kept: a process a device, a thread a lane, a microsecond a step. Blocks while lanes run.
    pub fn timeline(&self) -> Option<String> {
        self.world.timeline().filter(|_| self.timeline)
    }
}

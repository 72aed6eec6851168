//! CPU devices whose kernels run in an order that can be had again, and are looked at for faults.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use mscclrs_sim::{
    Check, Decision, Departure, Departures, Exploration, ExploreError, Finding, FindingKind, Found,
    LateLoad, Mode, ModeError, Outcome, Ran, RunningKernel, Schedule, Site, Tried, Unanswered,
    Unreached, search,
};
use mscclrs_sim::{DeviceConfig, Hold, World};

use crate::cpu::{self, CpuDevice};
pub use crate::report::{Report, ReportedFinding, ReportedSite};
use crate::{CpuConfig, Device, Error, Result};

/// Devices of one process, for ranks that are its threads. One thread runs all their kernels: which lane
/// is next, for how many accesses, and in weak mode what each load sees follows from the mode's seed or
/// departures.
///
/// The order is the same from run to run if what the host threads do between two waits does not depend
/// on time: work is taken when no lane can go on, and begun, in the order of the devices, once each
/// thread of the process sleeps, or has had time on a processor and sent nothing: twenty milliseconds,
/// or two if it is older than the simulation, did not make it and has never sent anything; or once 4096
/// commands have come, or ten seconds have passed. How long all lanes wait changes nothing. To be
/// certain, [`hold`](Simulation::hold) it.
///
/// After a finding every stream of its devices returns [`Error::Stopped`] with the report.
///
/// ```
/// use mscclrs_gpu::simulation::{Check, Mode, Simulation};
///
/// let simulation = Simulation::start(Mode::new(Check::Checked, 7))?;
/// let ranks = [simulation.device(0)?, simulation.device(1)?];
/// // Launch kernels on the ranks' streams and wait for them; then:
/// assert_eq!(simulation.finding()?.map(|finding| finding.to_string()), None);
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
    pub fn mode(&self) -> &Mode {
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

    /// How long questions wait for lanes to come to rest; a minute if nobody says.
    pub fn set_answer_limit(&self, limit: Duration) {
        self.world.set_answer_limit(limit);
    }

    /// What was found. Blocks while lanes run, as all questions do; [`Error::Unanswered`] if they have not
    /// come to rest in time: then it is not known.
    pub fn finding(&self) -> Result<Option<Finding>> {
        Ok(self.world.finding()?)
    }

    /// In weak mode, loads that saw what memory held before a write: plain ones first, which nothing
    /// orders after it. Where a result is wrong in weak mode only, one of them is why. Loads of a line
    /// that did not see what a line wrote are one; of many such pairs it has the first. Blocks while
    /// lanes run.
    pub fn late_loads(&self) -> Result<Vec<LateLoad>> {
        Ok(self.world.late_loads()?)
    }

    /// The decisions that the run met, where its schedule is one of departures; at most a million.
    /// Blocks while lanes run.
    pub fn decisions(&self) -> Result<Vec<Decision>> {
        Ok(self.world.decisions()?)
    }

    /// The first departure of the mode that the run has not come to; if all its work has ended, the run is
    /// not the one that the mode is of. Blocks while lanes run.
    pub fn unreached(&self) -> Result<Option<Unreached>> {
        Ok(self.world.unreached()?)
    }

    /// How many accesses kernels made, and a number that stands for all of them and their order: two runs
    /// with equal ones were the same. Blocks while lanes run.
    pub fn trace_sum(&self) -> Result<(u64, u64)> {
        Ok(self.world.trace_sum()?)
    }

    /// Names of the kernels that were launched, for tests that want to be sure that theirs ran. Blocks while
    /// lanes run.
    pub fn kernels(&self) -> Result<BTreeSet<&'static str>> {
        Ok(self.world.kernels()?)
    }

    /// All accesses in their order, in the form that Perfetto and chrome://tracing read, if they are
    /// kept: a process a device, a thread a lane, a microsecond a step. Blocks while lanes run.
    pub fn timeline(&self) -> Result<Option<String>> {
        Ok(self.world.timeline()?.filter(|_| self.timeline))
    }
}

/// Runs a program once, on devices of a simulation of its own.
///
/// The program takes the simulation's devices, launches kernels and waits for them, on threads of its own
/// if it has several ranks, and leaves nothing behind: every run begins as the first one did. Its error is
/// what it finds wrong itself, a result for one. An error of this function is that a simulation could not
/// be started, or that its lanes still run after the program: then what there is to find is not known.
pub fn run_once<E: fmt::Display>(
    mode: &Mode,
    config: &CpuConfig,
    program: impl FnOnce(&Simulation) -> std::result::Result<(), E>,
) -> Result<Ran> {
    let simulation = Simulation::with_config(mode.clone(), config.clone(), false)?;
    let wrong = program(&simulation).err().map(|error| error.to_string());
    Ok(Ran {
        decisions: simulation.decisions()?,
        finding: simulation.finding()?,
        wrong,
        late: simulation.late_loads()?,
        unreached: simulation.unreached()?,
    })
}

/// Runs a small program in every order that few departures make, with fewer first, until a run is not
/// right, all are made, or as many as are allowed.
///
/// A run is a row of decisions: which lane goes on where several are about to make an access by which
/// others may synchronise, and in weak mode which of several values a load sees. By default a lane goes on
/// until it waits or ends, then the next one does, and loads see the newest value; a departure is a
/// decision of another kind. Orders that differ only in accesses that have nothing to do with each other
/// are one. So what is found first is a fault with the fewest departures, and its mode, in `MSCCLRS_SIM` or
/// in [`run_once`], is that run.
///
/// The program is as in [`run_once`]; that it does not repeat is an error.
///
/// ```
/// use mscclrs_gpu::CpuConfig;
/// use mscclrs_gpu::simulation::{Check, Exploration, explore};
///
/// let exploration = Exploration { check: Check::Checked, departures: 2, runs: 20_000 };
/// let outcome = explore(&exploration, &CpuConfig::default(), |simulation| {
///     let device = simulation.device(0)?;
///     // Launch kernels on the ranks' streams, wait for them, and look at what they wrote.
///     device.create_stream()?.synchronize()
/// })?;
/// assert_eq!(outcome.found, None);
/// assert!(outcome.exhausted);
/// # Ok::<(), mscclrs_gpu::simulation::ExploreError<mscclrs_gpu::Error>>(())
/// ```
pub fn explore<E: fmt::Display>(
    exploration: &Exploration,
    config: &CpuConfig,
    mut program: impl FnMut(&Simulation) -> std::result::Result<(), E>,
) -> std::result::Result<Outcome, ExploreError<Error>> {
    mscclrs_sim::explore(exploration, |mode| run_once(&mode, config, &mut program))
}

/// Looks for a run with the same kind of fault and the fewest departures, for a fault that was found with
/// a seed; gives the one from before if there is none within the exploration. What the exploration is to
/// check is left out of account: it is what was checked before.
pub fn shorten<E: fmt::Display>(
    found: Found,
    exploration: &Exploration,
    config: &CpuConfig,
    mut program: impl FnMut(&Simulation) -> std::result::Result<(), E>,
) -> std::result::Result<Found, ExploreError<Error>> {
    mscclrs_sim::shorten(found, exploration, |mode| run_once(&mode, config, &mut program))
}

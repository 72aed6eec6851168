//! How the ranks of a run come to be: as processes of this program, as threads of it, or, under a
//! launcher, as the one rank that this process is.

mod launcher;
mod processes;
mod threads;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use mscclrs_core::{Bootstrap, Communicator, LaunchEnvironment, env};
use mscclrs_gpu::{BackendKind, Device, Stream, default_backend, device_count};

use crate::options::{DeviceChoice, RankOptions};
use crate::usage::{Usage, usage};

/// Ranks on the CPU device when nobody says how many.
const CPU_RANKS: u32 = 8;

/// The longest wait for another rank, where no variable says otherwise: a run never hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long the other ranks may take to end after one has failed.
const GRACE: Duration = Duration::from_secs(5);

/// One rank, ready to measure.
pub(crate) struct Rank {
    pub(crate) communicator: Communicator,
    pub(crate) stream: Stream,
    /// "processes", "threads" or "a launcher's processes".
    pub(crate) form: &'static str,
}

impl Rank {
    fn new(bootstrap: Arc<dyn Bootstrap>, device: Device, form: &'static str) -> Result<Rank> {
        let communicator = Communicator::new(bootstrap, device)?;
        // The communicator follows the variable where it is set.
        if env::TIMEOUT.text().is_none() {
            communicator.set_timeout(Some(TIMEOUT));
        }
        let stream = communicator.device().create_stream()?;
        Ok(Rank { communicator, stream, form })
    }

    /// Runs `body`; a failure is told to the other ranks, which would wait for this one in vain.
    fn run(&self, body: &(dyn Fn(&Rank) -> Result<Verdict> + Sync)) -> Result<Verdict> {
        let end = body(self);
        if let Err(error) = &end {
            self.communicator.abort(&format!("{error:#}"));
        }
        end
    }

    /// Whether this rank prints.
    pub(crate) fn is_first(&self) -> bool {
        self.communicator.rank() == 0
    }
}

/// How a run ended, where nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    Wrong,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> ExitCode {
        match verdict {
            Verdict::Right => ExitCode::SUCCESS,
            Verdict::Wrong => ExitCode::from(1),
        }
    }
}

/// The exit status of an error: 2 for a mistake of the user's, 1 for anything else.
pub(crate) fn status(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<Usage>()) { 2 } else { 1 }
}

/// Which ranks a run has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) kind: BackendKind,
    ranks: u32,
    form: Form,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// This process is one of them.
    Launcher(LaunchEnvironment),
    Processes,
    Threads,
}

impl Plan {
    /// What the options and this machine come to. `only` is the one number that a measurement works
    /// with, if it does not work with any.
    pub(crate) fn new(options: &RankOptions, only: Option<u32>) -> Result<Plan> {
        let kind = match options.device {
            DeviceChoice::Auto => default_backend().map_err(|error| usage!("{error}"))?,
            DeviceChoice::Cpu => BackendKind::Cpu,
            DeviceChoice::Cuda => BackendKind::Cuda,
        };
        let devices = match kind {
            BackendKind::Cpu => u32::MAX,
            BackendKind::Cuda => {
                device_count(kind).ok().filter(|&count| count > 0).ok_or_else(|| {
                    usage!("--device: cuda finds no GPU here; allowed are auto and cpu")
                })?
            }
        };
        let launch = LaunchEnvironment::detect().map_err(|error| usage!("{error}"))?;
        let usual = match (&launch, kind) {
            (Some(launch), _) => launch.world_size,
            (None, BackendKind::Cpu) => CPU_RANKS,
            (None, BackendKind::Cuda) => devices,
        };
        let fixed = only.or(launch.as_ref().map(|launch| launch.world_size));
        if let (Some(fixed), Some(asked)) = (fixed, options.ranks)
            && fixed != asked
        {
            return Err(usage!("--ranks: {asked} is not possible here; allowed is {fixed}"));
        }
        let ranks = only.or(options.ranks).unwrap_or(usual);
        let here = match &launch {
            Some(launch) if launch.world_size != ranks => {
                return Err(usage!(
                    "{} started {} ranks, which is not possible here; allowed is {ranks}",
                    launch.launcher,
                    launch.world_size
                ));
            }
            Some(launch) => launch.local_world_size.unwrap_or(1),
            None => ranks,
        };
        if here > devices && !options.oversubscribe {
            return Err(usage!(
                "--ranks: {here} on this machine is more than its GPUs; allowed are 1 to {devices}, or \
                 any number with --oversubscribe"
            ));
        }
        let form = match (launch, options.threads) {
            (Some(launch), true) => {
                return Err(usage!(
                    "--threads: {} started this process as one rank of {}; allowed is one rank a \
                     process under a launcher",
                    launch.launcher,
                    launch.world_size
                ));
            }
            (Some(launch), false) => Form::Launcher(launch),
            (None, true) => Form::Threads,
            (None, false) => Form::Processes,
        };
        Ok(Plan { kind, ranks, form })
    }

    /// Whether this process is, starts, or holds the rank that writes results.
    pub(crate) fn writes(&self) -> bool {
        !matches!(&self.form, Form::Launcher(launch) if launch.rank > 0)
    }

    /// The device of a rank of this host.
    fn device(&self, local_rank: u32) -> Result<Device> {
        let ordinal = match self.kind {
            BackendKind::Cpu => local_rank,
            BackendKind::Cuda => local_rank % device_count(self.kind)?.max(1),
        };
        Ok(Device::open(self.kind, ordinal)?)
    }

    /// Runs `body` on every rank, and gives the exit status of the whole. Errors of ranks are printed
    /// by the ranks.
    pub(crate) fn run(&self, body: &(dyn Fn(&Rank) -> Result<Verdict> + Sync)) -> Result<ExitCode> {
        match &self.form {
            Form::Launcher(launch) => Ok(launcher::run(self, launch, body)),
            Form::Processes => processes::run(self.ranks, launcher::serve(self.ranks)?),
            Form::Threads => threads::run(self, body),
        }
    }
}

/// A rank's failure, as it is printed: one line.
fn print_failure(rank: u32, error: &anyhow::Error) {
    eprintln!("rank {rank}: {error:#}");
}

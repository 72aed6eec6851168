//! How the ranks of a run come to be: as processes of this program, as threads of it, or, under a
//! launcher, as the one rank that this process is.

mod processes;
mod threads;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use mscclrs_core::{Bootstrap, Communicator};
use mscclrs_gpu::{BackendKind, Device, Stream, available_backends, device_count};

use crate::options::{DeviceChoice, RankOptions};
use crate::usage::{Usage, usage};

/// Ranks on the CPU device when nobody says how many.
const CPU_RANKS: u32 = 8;

/// The longest wait for another rank: a run never hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long the other ranks may take to end after one has failed.
const GRACE: Duration = Duration::from_secs(5);

/// One rank, ready to measure.
pub(crate) struct Rank {
    pub(crate) communicator: Communicator,
    pub(crate) stream: Stream,
    /// "processes", "threads" or "a launcher's ranks".
    pub(crate) form: &'static str,
}

impl Rank {
    fn new(bootstrap: Arc<dyn Bootstrap>, device: Device, form: &'static str) -> Result<Rank> {
        let communicator = Communicator::new(bootstrap, device)?;
        communicator.set_timeout(Some(TIMEOUT));
        let stream = communicator.device().create_stream()?;
        Ok(Rank { communicator, stream, form })
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) kind: BackendKind,
    pub(crate) ranks: u32,
    threads: bool,
}

impl Plan {
    /// What the options and this machine come to. `only` is the one number that a measurement works
    /// with, if it does not work with any.
    pub(crate) fn new(options: &RankOptions, only: Option<u32>) -> Result<Plan> {
        let kind = match options.device {
            DeviceChoice::Auto => available_backends().first().copied().unwrap_or(BackendKind::Cpu),
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
        let usual = match kind {
            BackendKind::Cpu => CPU_RANKS,
            BackendKind::Cuda => devices,
        };
        if let (Some(only), Some(asked)) = (only, options.ranks)
            && only != asked
        {
            return Err(usage!("--ranks: {asked} is not possible here; allowed is {only}"));
        }
        let ranks = only.or(options.ranks).unwrap_or(usual);
        if ranks > devices && !options.oversubscribe {
            return Err(usage!(
                "--ranks: {ranks} is more than this machine's GPUs; allowed are 1 to {devices}, or any \
                 number with --oversubscribe"
            ));
        }
        Ok(Plan { kind, ranks, threads: options.threads })
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
        if self.threads {
            return threads::run(self, body);
        }
        processes::run(self.ranks, |_| Vec::new())
    }
}

/// A rank's failure, as it is printed: one line.
fn print_failure(rank: u32, error: &anyhow::Error) {
    eprintln!("rank {rank}: {error:#}");
}

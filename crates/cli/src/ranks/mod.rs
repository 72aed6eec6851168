//! How the ranks of a run come to be: as processes of this program, as threads of it, or, under a
//! launcher, as the one rank that this process is.

mod launcher;
mod processes;
mod started;
mod threads;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use mscclrs_core::{Bootstrap, Communicator, LaunchEnvironment, LossCause, check_environment, env};
use mscclrs_gpu::{BackendKind, Device, Stream, default_backend, device_count};

use crate::options::{DeviceChoice, PAIR, PairOptions, Placement};
use crate::output::{Closed, say, told};
use crate::usage::{Usage, usage};

/// Ranks on the CPU device when nobody says how many.
const CPU_RANKS: u32 = 8;

/// The longest wait for another rank, where no variable says otherwise: a run never hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long a rank that ended may take to say why.
const GOODBYE: Duration = Duration::from_millis(500);

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
    pub(crate) fn new(
        bootstrap: Arc<dyn Bootstrap>,
        device: Device,
        form: &'static str,
    ) -> Result<Rank> {
        let communicator = Communicator::new(bootstrap, device)?;
        // The communicator follows the variable where it is set.
        if env::TIMEOUT.text().is_none() {
            communicator.set_timeout(Some(TIMEOUT));
        }
        let stream = communicator.device().create_stream()?;
        Ok(Rank { communicator, stream, form })
    }

    /// Runs `body`; a failure is told to the other ranks, which would wait for this one in vain.
    pub(crate) fn run(&self, body: &(dyn Fn(&Rank) -> Result<Verdict> + Sync)) -> Result<Verdict> {
        let end = body(self).map_err(|error| self.explained(error));
        if let Err(error) = &end {
            self.communicator.abort(&told(error));
        }
        end
    }

    /// Where another rank ended and said why, that is the error: what it broke here says less.
    fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        let is_gone = |cause: &(dyn std::error::Error + 'static)| {
            matches!(cause.downcast_ref(), Some(mscclrs_core::Error::PeerGone { .. }))
        };
        let is_lost = |cause: &(dyn std::error::Error + 'static)| {
            matches!(cause.downcast_ref(), Some(mscclrs_core::Error::RankLost(_)))
        };
        // What a rank says on its way out may come after its connections ended.
        let patience = if error.chain().any(is_gone) { GOODBYE } else { Duration::ZERO };
        let since = Instant::now();
        loop {
            match self.communicator.check() {
                Err(mscclrs_core::Error::RankLost(lost)) => {
                    if lost.loss.cause == LossCause::Failed(Closed.to_string()) {
                        return Closed.into();
                    }
                    return match error.chain().any(is_lost) {
                        true => error,
                        false if patience.is_zero() => error,
                        false => mscclrs_core::Error::RankLost(lost).into(),
                    };
                }
                _ if since.elapsed() >= patience => return error,
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// A step of all ranks: gives what this rank has, or on every rank the error of the first that has
    /// one. A mistake of the user's stays one.
    pub(crate) fn agree<T>(&self, mine: Result<T>) -> Result<T> {
        let told = match &mine {
            Ok(_) => String::new(),
            Err(error) => format!("{}{}", status(error), told(error)),
        };
        let all = self.communicator.bootstrap().all_gather(told.as_bytes())?;
        let Some(first) = all.iter().position(|told| !told.is_empty()) else { return mine };
        let told = String::from_utf8_lossy(&all[first]);
        match told.strip_prefix(MISTAKE) {
            Some(mistake) => Err(Usage::of_all_ranks(mistake.into()).into()),
            None if first == self.communicator.rank() as usize => mine,
            None => Err(anyhow!("rank {first} failed: {}", told.get(1..).unwrap_or_default())),
        }
    }

    /// Whether this rank prints.
    pub(crate) fn is_first(&self) -> bool {
        self.communicator.rank() == 0
    }
}

/// How long ranks wait for each other during set-up.
pub(crate) fn set_up_limit() -> Result<Duration> {
    let limit = env::BOOTSTRAP_TIMEOUT.seconds().map_err(|error| usage!("{error}"))?;
    Ok(limit.unwrap_or(TIMEOUT))
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

/// The exit status of an error: 2 for a mistake of the user's, 1 for any failure.
pub(crate) fn status(error: &anyhow::Error) -> u8 {
    if error.is::<Closed>() {
        Closed::STATUS
    } else if error.chain().any(|cause| cause.is::<Usage>()) {
        2
    } else {
        1
    }
}

/// The exit status of a run: 0 if all ranks are right, 2 if every rank that failed says that the user
/// made a mistake, else 1; or that nobody reads the results, if a rank says so.
fn status_of_all(ranks: impl IntoIterator<Item = u8>) -> u8 {
    let failed = ranks.into_iter().filter(|&status| status != 0);
    let worst = |so_far, status| match (so_far, status) {
        (Closed::STATUS, _) | (_, Closed::STATUS) => Closed::STATUS,
        (2, 2) => 2,
        _ => 1,
    };
    failed.map(|status| worst(status, status)).reduce(worst).unwrap_or(0)
}

/// The exit status of a mistake of the user's.
const MISTAKE: char = '2';

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
    /// What the options and this machine come to; `asked` is a number of ranks that was asked for.
    pub(crate) fn new(options: &Placement, asked: Option<u32>) -> Result<Plan> {
        Plan::make(options, asked, None)
    }

    /// As [`Plan::new`], for what is measured between two ranks.
    pub(crate) fn of_a_pair(options: &PairOptions) -> Result<Plan> {
        Plan::make(&options.placement, None, Some(options.ranks.unwrap_or(PAIR)))
    }

    /// `only` is the one number that a measurement works with, if it does not work with any.
    fn make(options: &Placement, asked: Option<u32>, only: Option<u32>) -> Result<Plan> {
        check_environment().map_err(|error| usage!("{error}"))?;
        let kind = match options.device {
            DeviceChoice::Auto => default_backend().map_err(|error| usage!("{error}"))?,
            DeviceChoice::Cpu => BackendKind::Cpu,
            DeviceChoice::Cuda => BackendKind::Cuda,
        };
        let devices = match kind {
            BackendKind::Cpu => u32::MAX,
            BackendKind::Cuda => {
                let why = match device_count(kind) {
                    Ok(count) if count > 0 => Ok(count),
                    Ok(_) => Err(String::new()),
                    Err(error) => Err(format!(" ({error})")),
                };
                let asked = match options.device {
                    DeviceChoice::Cuda => "--device: cuda",
                    _ => "MSCCLRS_DEVICE=cuda",
                };
                why.map_err(|why| {
                    usage!("{asked} finds no GPU here{why}; allowed are auto and cpu")
                })?
            }
        };
        let launch = LaunchEnvironment::detect().map_err(|error| usage!("{error}"))?;
        let usual = match (&launch, kind) {
            (Some(launch), _) => launch.world_size,
            (None, BackendKind::Cpu) => CPU_RANKS,
            (None, BackendKind::Cuda) => devices,
        };
        let ranks = only.or(asked).unwrap_or(usual);
        let here = match &launch {
            Some(LaunchEnvironment { launcher, world_size, .. }) if *world_size != ranks => {
                return Err(match asked {
                    Some(asked) => usage!(
                        "--ranks: {asked} is not possible, since {launcher} started {world_size} \
                         ranks; allowed is {world_size}"
                    ),
                    None => usage!(
                        "{launcher} started {world_size} ranks, and this is measured between \
                         {ranks}; allowed is {ranks}"
                    ),
                });
            }
            Some(launch) => launch.local_world_size.unwrap_or(1),
            None => ranks,
        };
        if here > devices && !options.oversubscribe {
            let gpus = if devices == 1 { "1 GPU" } else { &format!("{devices} GPUs") };
            return Err(match only {
                Some(_) => usage!(
                    "--oversubscribe: {here} ranks need it on this machine, which has {gpus}; allowed \
                     are it, or --device cpu"
                ),
                None => usage!(
                    "--ranks: {here} on this machine are more than its {gpus}; allowed are 1 to \
                     {devices}, or any number with --oversubscribe"
                ),
            });
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
        let apart = !matches!(form, Form::Threads) && ranks > 1 && kind == BackendKind::Cpu;
        if let (Some(mode), true) = (env::SIM.text(), apart) {
            return Err(usage!(
                "MSCCLRS_SIM={mode}: a simulation sees the kernels of one process only; allowed are \
                 ranks as its threads, with --threads"
            ));
        }
        Ok(Plan { kind, ranks, form })
    }

    /// Number of ranks.
    pub(crate) fn ranks(&self) -> u32 {
        self.ranks
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

/// Prints a rank's failure in one line. `together` are ranks whose words reach the same person.
fn print_failure(rank: u32, error: &anyhow::Error, together: bool) {
    let of_all_ranks =
        error.chain().any(|cause| cause.downcast_ref().is_some_and(Usage::is_of_all_ranks));
    if error.is::<Closed>() {
        // Who does not want to know the results does not want to know this.
    } else if !(together && of_all_ranks) {
        say!("{}", of_rank(rank, &told(error)));
    } else if rank == 0 {
        say!("error: {}", told(error));
    }
}

/// What a rank says, with its number in front where it does not begin so.
fn of_rank(rank: u32, text: &str) -> String {
    // A line of the log says it itself, and one of JSON could not be read with more in front.
    if mscclrs_log::is_line(text) {
        return text.to_owned();
    }
    let mark = format!("rank {rank}");
    match text.strip_prefix(&mark) {
        Some(rest) if rest.starts_with([':', ' ', ',']) => text.to_owned(),
        _ => format!("{mark}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use mscclrs_core::LocalBootstrap;

    use super::*;

    /// What each of three ranks gets from a step in which they have these.
    fn agreed(mine: [fn() -> Result<u32>; 3]) -> Vec<Result<u32>> {
        let bootstraps = LocalBootstrap::create(3, Duration::from_secs(10));
        std::thread::scope(|scope| {
            let ranks: Vec<_> = bootstraps
                .into_iter()
                .zip(mine)
                .map(|(bootstrap, mine)| {
                    scope.spawn(move || {
                        let device = Device::open(BackendKind::Cpu, bootstrap.rank())?;
                        let rank = Rank::new(Arc::new(bootstrap), device, "threads")?;
                        rank.agree(mine())
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn a_mistake_that_one_rank_finds_is_one_of_all() {
        let ends = agreed([|| Ok(0), || Err(usage!("-e: too large")), || Err(anyhow!("broken"))]);
        for end in ends {
            let error = end.expect_err("a mistake");
            assert_eq!((error.to_string().as_str(), status(&error)), ("-e: too large", 2));
            assert!(error.downcast_ref().is_some_and(Usage::is_of_all_ranks));
        }
    }

    #[test]
    fn a_failure_of_one_rank_is_named_on_all() {
        let ends = agreed([|| Ok(0), || Ok(1), || Err(anyhow!("broken"))]);
        let texts: Vec<_> =
            ends.into_iter().map(|end| format!("{:#}", end.expect_err("a failure"))).collect();
        assert_eq!(texts, ["rank 2 failed: broken", "rank 2 failed: broken", "broken"]);
    }

    #[test]
    fn where_all_have_something_each_keeps_its_own() {
        let ends = agreed([|| Ok(7), || Ok(8), || Ok(9)]);
        let ends: Vec<_> = ends.into_iter().map(|end| end.expect("its own")).collect();
        assert_eq!(ends, [7, 8, 9]);
    }

    #[test]
    fn a_rank_is_named_once() {
        assert_eq!(of_rank(1, "rank 1 has waited"), "rank 1 has waited");
        assert_eq!(of_rank(1, "rank 1: broken"), "rank 1: broken");
        assert_eq!(of_rank(1, "rank 10 was lost"), "rank 1: rank 10 was lost");
        assert_eq!(of_rank(1, "broken"), "rank 1: broken");
    }

    #[test]
    fn the_worst_of_all_ranks_is_the_status() {
        for (ranks, status) in [
            (&[0, 0][..], 0),
            (&[2, 0, 2], 2),
            (&[2, 1], 1),
            (&[1, 141, 1], 141),
            (&[101], 1),
            (&[], 0),
        ] {
            assert_eq!(status_of_all(ranks.iter().copied()), status, "{ranks:?}");
        }
    }
}

//! The command line of `check`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Command, Subcommand, ValueEnum};
use mscclrs_gpu::simulation::{Check, Mode, Schedule};

use crate::bench::files;
use crate::bench::report::require_writable;
use crate::bench::sizes::{Step, Sweep, format_size, parse_size};
use crate::options::{Algorithm, DataOptions, number, parse_algorithm, parse_factor};
use crate::usage::usage;

/// How long one run of a command may take where nobody says: cargo may have to build it first.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Options of `check`.
#[derive(Args, Clone, Debug)]
#[command(subcommand_negates_reqs = true, allow_negative_numbers = true)]
pub(crate) struct CheckOptions {
    #[command(subcommand)]
    pub(super) own: Option<Own>,
    #[command(flatten)]
    pub(super) looks: Looks,
    /// Seconds that one run of COMMAND may take; then it is ended, which counts as a failure [default:
    /// 600].
    #[arg(long, value_name = "SECONDS", value_parser = parse_limit)]
    time_limit: Option<Duration>,
    /// A program whose ranks are threads, with its arguments: it is run once for each mode and seed, on
    /// CPU devices.
    #[arg(value_name = "COMMAND", last = true, required = true)]
    pub(super) command: Vec<OsString>,
}

/// What of the project's own is checked.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum Own {
    /// Check the algorithms of allreduce.
    #[command(allow_negative_numbers = true)]
    Allreduce(OwnOptions),
    /// Check the algorithms of allgather.
    #[command(allow_negative_numbers = true)]
    Allgather(OwnOptions),
}

/// What is looked for, how often, and where it is told.
#[derive(Args, Clone, Debug)]
pub(super) struct Looks {
    /// What is looked for.
    #[arg(
        long = "mode",
        value_enum,
        global = true,
        value_name = "MODES",
        value_delimiter = ',',
        default_value = "checked,weak"
    )]
    modes: Vec<Looking>,
    /// Seeds of each mode: each makes other choices [default: 10].
    #[arg(long, global = true, value_name = "N", value_parser = parse_seeds)]
    seeds: Option<u64>,
    /// The first seed; the others follow it [default: 0].
    #[arg(long, global = true, value_name = "SEED", value_parser = parse_seed)]
    first_seed: Option<u64>,
    /// In which order lanes run: one of these, or departures:12=1+40=2, which is one run and no seeds
    /// [default: each seed chooses].
    #[arg(long, global = true, value_name = "ORDER", value_parser = Schedules)]
    schedule: Option<Schedule>,
    /// Instead of seeds, run every order of lanes that at most so many departures from one order make, until
    /// one has a finding; for small cases [without a number: 2].
    #[arg(long, global = true, value_name = "DEPARTURES", num_args = 0..=1, require_equals = true,
        default_missing_value = "2", value_parser = parse_departures)]
    exhaustive: Option<u32>,
    /// Most runs of --exhaustive, for each mode and algorithm [default: 1000].
    #[arg(long, global = true, value_name = "N", value_parser = parse_runs)]
    max_runs: Option<u64>,
    /// Seconds to look for a shorter run with the same kind of fault, for each finding of a seed; 0 looks for
    /// none [default: 10].
    #[arg(long, global = true, value_name = "SECONDS", value_parser = parse_shorten)]
    shorten: Option<Duration>,
    /// Go on after a finding through all seeds and modes, and tell each finding once.
    #[arg(long, global = true)]
    pub(super) keep_going: bool,
    /// Write every access of the run with the first finding, in its order, for Perfetto; without a finding
    /// that of the run, if there is only one. Runs take longer.
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Write one JSON object a row to a file, when the check is whole; with - each row goes to standard
    /// output, and the table to standard error.
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Options of `check allreduce` and `check allgather`; as far as `bench` has them with the same meaning and
/// default, they are its own.
#[derive(Args, Clone, Debug)]
pub(super) struct OwnOptions {
    /// Only this algorithm, and its launch: direct, mesh, one-shot-ll16:2x64 (blocks x threads), ...; may
    /// be given several times [default: all, each 2x64].
    #[arg(long = "algorithm", value_name = "NAME[:BxT]", value_parser = parse_algorithm)]
    pub(super) algorithms: Vec<Algorithm>,
    /// Number of ranks, each with a CPU device of its own.
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse_ranks)]
    pub(super) ranks: u32,
    /// Smallest size in bytes: 8, 1K.
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "4",
        value_parser = parse_size)]
    pub(super) begin: u64,
    /// Largest size in bytes [default: 1K, or the smallest if that is larger].
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    pub(super) end: Option<u64>,
    /// Factor from one size to the next.
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value = "16",
        value_parser = parse_factor)]
    pub(super) factor: u64,
    #[command(flatten)]
    pub(super) data: DataOptions,
}

/// A word of `--mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Looking {
    /// Races, memory that nobody wrote or has, barriers and warps that do not meet.
    Checked,
    /// Writes are seen as late as their order allows, so that missing order shows in results.
    Weak,
    /// Nothing but what stops a run: deadlocks, endless polls, panics.
    Ordered,
    /// All of these.
    All,
}

impl CheckOptions {
    /// An error about what can be seen wrong before anything runs.
    pub(super) fn validate(&self) -> Result<()> {
        self.looks.validate()?;
        let Looks { json, trace, .. } = &self.looks;
        if self.own.is_some() && self.time_limit.is_some() {
            return Err(usage!(
                "--time-limit is for a command; allowed is mscclrs check --time-limit SECONDS -- COMMAND"
            ));
        }
        if let (Some(json), Some(trace)) = (json, trace)
            && files::is_same(json, trace)
        {
            return Err(usage!("--trace: names the file of --json; allowed is another one"));
        }
        if trace.as_deref().is_some_and(|trace| trace == Path::new("-")) {
            return Err(usage!("--trace: '-' is not a file; allowed is a file's name"));
        }
        require_writable(json.as_deref())?;
        trace.as_ref().map_or(Ok(()), |trace| files::require_writable("--trace", trace))
    }

    /// How long a run of the command may take.
    pub(super) fn time_limit(&self) -> Duration {
        self.time_limit.unwrap_or(TIME_LIMIT)
    }
}

impl Looks {
    fn validate(&self) -> Result<()> {
        let (seeds, first_seed) = (self.seeds(), self.first_seed());
        if first_seed.checked_add(seeds).is_none() {
            return Err(usage!(
                "--first-seed: {seeds} seeds from {first_seed} on pass the largest seed; allowed are 0 \
                 to {}",
                u64::MAX - seeds
            ));
        }
        let of_seeds = [
            ("--seeds", self.seeds.is_some()),
            ("--first-seed", self.first_seed.is_some()),
            ("--shorten", self.shorten.is_some()),
        ];
        let given = of_seeds.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name);
        if self.exhaustive.is_some() {
            let schedule = self.schedule.is_some().then_some("--schedule");
            if let Some(given) = given.or(schedule) {
                return Err(usage!(
                    "{given} and --exhaustive exclude each other; allowed is one of them"
                ));
            }
        } else if self.max_runs.is_some() {
            return Err(usage!("--max-runs is for --exhaustive; allowed is it beside that"));
        }
        if let Some(Schedule::Departures(_)) = &self.schedule {
            if let Some(given) = given {
                return Err(usage!(
                    "{given} and --schedule departures exclude each other; allowed is one of them"
                ));
            }
            if self.checks().len() != 1 {
                return Err(usage!(
                    "--schedule: departures are those of a run of one mode; allowed is --mode with one"
                ));
            }
        }
        Ok(())
    }

    /// Each mode once, in the order given.
    pub(super) fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for looking in &self.modes {
            let more: &[Check] = match looking {
                Looking::Checked => &[Check::Checked],
                Looking::Weak => &[Check::Weak],
                Looking::Ordered => &[Check::Ordered],
                Looking::All => &[Check::Checked, Check::Weak, Check::Ordered],
            };
            for check in more {
                if !checks.contains(check) {
                    checks.push(*check);
                }
            }
        }
        checks
    }

    /// The modes of a check, one a seed.
    pub(super) fn modes(&self, check: Check) -> impl Iterator<Item = Mode> + use<> {
        let schedule = self.schedule.clone();
        let seeds = self.first_seed()..self.first_seed().saturating_add(self.seeds());
        seeds.map(move |seed| Mode { check, seed, schedule: schedule.clone() })
    }

    /// How many of them.
    pub(super) fn seeds(&self) -> u64 {
        match self.schedule {
            Some(Schedule::Departures(_)) => 1,
            _ => self.seeds.unwrap_or(SEEDS),
        }
    }

    fn first_seed(&self) -> u64 {
        self.first_seed.unwrap_or(0)
    }

    /// Most departures, and most runs, where every order is run instead.
    pub(super) fn orders(&self) -> Option<(u32, u64)> {
        Some((self.exhaustive?, self.max_runs.unwrap_or(MOST_RUNS)))
    }

    /// Steps of so many subjects, each in each mode.
    pub(super) fn steps(&self, subjects: usize) -> u64 {
        let runs = self.orders().map_or(self.seeds(), |(_, runs)| runs);
        runs.saturating_mul((self.checks().len() * subjects) as u64)
    }

    /// How long a shorter run is looked for.
    pub(super) fn shorten(&self) -> Duration {
        self.shorten.unwrap_or(SHORTEN)
    }

    /// For people: "seeds 0 to 9", and what there are so many of in a row.
    pub(super) fn told(&self) -> (String, &'static str) {
        if let Some((departures, runs)) = self.orders() {
            let s = if departures == 1 { "" } else { "s" };
            let orders = format!("every order of up to {departures} departure{s}");
            return (format!("{orders}, at most {runs} runs"), "runs");
        }
        let first = self.first_seed();
        let last = first.saturating_add(self.seeds() - 1);
        let seeds = match self.seeds() {
            1 => format!("seed {last}"),
            _ => format!("seeds {first} to {last}"),
        };
        match &self.schedule {
            Some(departures @ Schedule::Departures(_)) => (departures.to_string(), "runs"),
            Some(schedule) => (format!("{seeds}, {}", schedule.name()), "seeds"),
            None => (seeds, "seeds"),
        }
    }
}

impl OwnOptions {
    pub(super) fn sweep(&self) -> Result<Sweep> {
        let end = self.end.unwrap_or(USUAL_END.max(self.begin));
        if self.begin > end {
            return Err(usage!(
                "-b: {} is larger than -e {}; allowed are sizes up to it",
                format_size(self.begin),
                format_size(end)
            ));
        }
        if end > LARGEST {
            return Err(usage!(
                "{}: {} is too much for a simulation; allowed are sizes up to {}",
                if self.end.is_some() { "-e" } else { "-b" },
                format_size(end),
                format_size(LARGEST)
            ));
        }
        Ok(Sweep { begin: self.begin, end, step: Step::Multiply(self.factor) })
    }
}

/// What holds where nobody says.
const SEEDS: u64 = 10;
const MOST_RUNS: u64 = 1000;
const SHORTEN: Duration = Duration::from_secs(10);

/// The largest size where nobody says.
const USUAL_END: u64 = 1 << 10;
/// Every access of every lane is looked at.
const LARGEST: u64 = 16 << 20;

/// The word of `--mode` for a check.
pub(super) fn word(check: Check) -> &'static str {
    match check {
        Check::Checked => "checked",
        Check::Ordered => "ordered",
        Check::Weak => "weak",
    }
}

/// Reads the name of an order that seeds choose from, or `departures:` with a list.
#[derive(Clone)]
struct Schedules;

impl Schedules {
    fn names() -> impl Iterator<Item = &'static str> {
        Schedule::ALL.map(|schedule| schedule.name()).into_iter().chain(["departures:none"])
    }
}

impl TypedValueParser for Schedules {
    type Value = Schedule;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Schedule, clap::Error> {
        let given = value.to_str().unwrap_or_default();
        if given.split(':').next() == Some("departures") {
            return parse_run.parse_ref(command, argument, value);
        }
        let names = PossibleValuesParser::new(Schedules::names());
        let name = names.parse_ref(command, argument, value)?;
        let all = Schedule::ALL.into_iter();
        // It is one of them.
        Ok(all.into_iter().find(|s| s.name() == name).unwrap_or(Schedule::Random))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Schedules::names().map(PossibleValue::new)))
    }
}

fn parse_run(text: &str) -> Result<Schedule, String> {
    let list = text.strip_prefix("departures:").and_then(|list| list.parse().ok());
    list.map(Schedule::Departures).ok_or_else(|| {
        format!(
            "'{text}' is no list of departures; allowed are departures:none and \
             departures:DECISION=ALTERNATIVE+..., decisions in their order and alternatives from 1"
        )
    })
}

fn parse_departures(text: &str) -> Result<u32, String> {
    number(text, "a number of departures", 0, 1000).map(|departures| departures as u32)
}

fn parse_runs(text: &str) -> Result<u64, String> {
    number(text, "a number of runs", 1, 10_000_000)
}

fn parse_shorten(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse().ok().filter(|seconds| (0.0..=86400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is not a time; allowed are 0 to 86400 seconds"))
}

fn parse_seeds(text: &str) -> Result<u64, String> {
    number(text, "a number of seeds", 1, 1_000_000)
}

fn parse_seed(text: &str) -> Result<u64, String> {
    number(text, "a seed", 0, u64::MAX)
}

fn parse_ranks(text: &str) -> Result<u32, String> {
    number(text, "a number of ranks in a simulation", 2, 64).map(|ranks| ranks as u32)
}

fn parse_limit(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse().ok().filter(|seconds| (0.001..=86400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is not a time limit; allowed are 0.001 to 86400 seconds"))
}

//! `check allreduce` and `check allgather`: the project's own algorithms, with ranks that are threads of
//! this process, several simulations side by side.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use anyhow::{Context, Result, anyhow};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, Shape, Tuning};
use mscclrs_core::{LocalBootstrap, check_environment};
use mscclrs_gpu::CpuConfig;
use mscclrs_gpu::simulation::{
    Check, Decision, LateLoad, Mode, ReportedFinding, Schedule, Simulation, Unreached,
};

use super::findings::{self, Found};
use super::options::{Looks, OwnOptions, word};
use super::orders::{self, Halt, Try};
use super::report::{Row, Table};
use crate::bench::check::Checker;
use crate::bench::collective::enqueue;
use crate::bench::files;
use crate::bench::lines::{Line, lines_of};
use crate::bench::memory::Memory;
use crate::bench::sizes::format_size;
use crate::bench::types::type_name;
use crate::options::{Algorithm, Buffers};
use crate::output::{say, told};
use crate::ranks::{Rank, Verdict, set_up_limit};
use crate::rival::{Call, Collective};
use crate::usage::usage;

/// Two blocks of two warps: enough for every barrier and hand-over, and few enough lanes to be quick.
const USUAL_SHAPE: Shape = Shape { blocks: 2, threads: 64 };

/// Calls out of place between two waits of the host: what one leaves in scratch meets the next.
const CALLS: u32 = 2;

/// Runs every algorithm in every mode with every seed, or until something is found.
pub(super) fn run(collective: Collective, own: &OwnOptions, looks: &Looks) -> Result<ExitCode> {
    check_environment().map_err(|error| usage!("{error}"))?;
    let config = CpuConfig::from_env().map_err(|error| usage!("{error}"))?;
    let sweep = own.sweep()?;
    let lines: Vec<Line> =
        lines_of(collective, (&own.data.types, &own.data.ops), sweep, own.ranks).collect();
    if lines.is_empty() {
        let sizes = own.data.types.0.iter().map(|t| collective.element(t.size(), own.ranks));
        return Err(usage!(
            "-e: no size of this check comes to one element{} on {} ranks; allowed are sizes from {} \
             bytes",
            collective.each(),
            own.ranks,
            sizes.min().unwrap_or_default()
        ));
    }
    let subjects = subjects(collective, &own.algorithms)?;
    let names: Vec<String> = subjects.iter().map(|subject| subject.name.clone()).collect();
    let checks = looks.checks();
    let steps = looks.steps(subjects.len());
    let (told, runs) = looks.told();
    let title = title(collective, own, &lines, &told);
    let mut table = Table::open(looks.json.as_deref(), steps, (&title, runs), &names);
    let mut all = Vec::new();
    let mut trace = None;
    for (subject, check) in
        subjects.iter().flat_map(|subject| checks.iter().map(move |check| (subject, *check)))
    {
        let case = Case {
            collective,
            own,
            subject,
            lines: &lines,
            config: &config,
            trace: match looks.trace {
                None => Trace::Nothing,
                Some(_) if steps == 1 => Trace::Everything,
                Some(_) => Trace::Findings,
            },
        };
        let mut new = Vec::new();
        let mut row = Row::new(collective.name(), Some(subject.name.clone()), word(check));
        let again = |mode: &Mode| again(collective, own, subject, mode);
        let outcomes = match looks.orders() {
            Some(most) => case.explore((check, most), &table, &mut row)?,
            None => case.run_all(looks, check, &table)?,
        };
        for (mode, outcome) in outcomes {
            row.seeds += u64::from(row.orders.is_none());
            row.accesses += outcome.accesses;
            trace = trace.or(outcome.timeline);
            let Some(first) = outcome.finding else { continue };
            row.findings += 1;
            let mut found = Found::new(first, &mode, again(&mode));
            if findings::is_new(&all, &found) {
                let short = Case { trace: Trace::Nothing, ..case };
                let run = |mode: &Mode, _| {
                    table.note(format!("{} {mode}", subject.name));
                    short.tried(mode).map(|(tried, _)| tried)
                };
                match orders::shorten(&mut found, &mode, looks.shorten(), again, run) {
                    Ok(()) => new.push(found.clone()),
                    Err(halt) => return halt.end(),
                }
            }
            findings::add(&mut row.found, found.clone());
            findings::add(&mut all, found);
        }
        table.add(&row)?;
        new.iter().try_for_each(|found| table.tell(found))?;
        if !all.is_empty() && !looks.keep_going {
            break;
        }
    }
    table.finish(&all)?;
    match (&looks.trace, trace) {
        (Some(path), Some(timeline)) => files::write(path, &timeline)?,
        (Some(path), None) => {
            say!("mscclrs: nothing was found, so '{}' was not written", path.display());
        }
        (None, _) => {}
    }
    Ok(ExitCode::from(u8::from(!all.is_empty())))
}

/// For people: what is checked.
fn title(collective: Collective, own: &OwnOptions, lines: &[Line], runs: &str) -> String {
    let types: Vec<_> = own.data.types.0.iter().map(|data_type| type_name(*data_type)).collect();
    // Sizes of less than an element are left out.
    let sizes = || lines.iter().map(|line| line.bytes);
    let (least, largest) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    format!(
        "{}, {} ranks, {} to {} bytes of {}: {runs}",
        collective.name(),
        own.ranks,
        format_size(least),
        format_size(largest),
        types.join(", ")
    )
}

/// An algorithm with its launch.
struct Subject {
    /// As `--algorithm` has it.
    name: String,
    tuning: Tuning,
}

/// The algorithms that were asked for, or all.
fn subjects(collective: Collective, asked: &[Algorithm]) -> Result<Vec<Subject>> {
    let all = |names: Vec<&str>| -> Vec<Algorithm> {
        names.into_iter().map(|name| Algorithm { name: name.into(), shape: None }).collect()
    };
    let chosen = match (asked, collective) {
        ([], Collective::AllGather) => all(AllGather::ALL.map(AllGather::name).to_vec()),
        ([], Collective::AllReduce) => all(AllReduce::ALL.map(AllReduce::name).to_vec()),
        (asked, _) => asked.to_vec(),
    };
    chosen
        .into_iter()
        .map(|algorithm| {
            let shape = algorithm.shape.unwrap_or(USUAL_SHAPE);
            let algorithm = Algorithm { shape: Some(shape), ..algorithm };
            let name = format!("{}:{}x{}", algorithm.name, shape.blocks, shape.threads);
            Ok(Subject { name, tuning: algorithm.tuning(collective)? })
        })
        .collect()
}

/// What a shell runs to see a mode's run again.
fn again(collective: Collective, own: &OwnOptions, subject: &Subject, mode: &Mode) -> String {
    let names = |names: Vec<&str>| names.join(",");
    let mut command = format!(
        "mscclrs check {} --algorithm {} --ranks {} -b {} -f {}",
        collective.name(),
        subject.name,
        own.ranks,
        own.begin,
        own.factor
    );
    if let Some(end) = own.end {
        command.push_str(&format!(" -e {end}"));
    }
    command.push_str(&format!(
        " -d {}",
        names(own.data.types.0.iter().map(|t| type_name(*t)).collect())
    ));
    if collective == Collective::AllReduce {
        command.push_str(&format!(
            " -o {}",
            names(own.data.ops.0.iter().map(|op| op.name()).collect())
        ));
    }
    if own.data.buffers == Buffers::Plain {
        command.push_str(" --buffers plain");
    }
    command.push_str(&format!(" --mode {}", word(mode.check)));
    match &mode.schedule {
        Some(departures @ Schedule::Departures(_)) => format!("{command} --schedule {departures}"),
        Some(order) => format!("{command} --schedule {order} --first-seed {} --seeds 1", mode.seed),
        None => format!("{command} --first-seed {} --seeds 1", mode.seed),
    }
}

/// What is simulated again and again.
#[derive(Clone, Copy)]
struct Case<'a> {
    collective: Collective,
    own: &'a OwnOptions,
    subject: &'a Subject,
    lines: &'a [Line],
    config: &'a CpuConfig,
    trace: Trace,
}

/// Which runs keep their timelines, which are large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trace {
    Everything,
    Findings,
    Nothing,
}

/// A wrong result.
struct Wrong {
    what: String,
    /// By this rank; otherwise it has heard of it.
    is_seen: bool,
}

const WRONG_RESULT: &str = "wrong result";

/// What one simulation came to.
struct Outcome {
    accesses: u64,
    finding: Option<ReportedFinding>,
    timeline: Option<String>,
    /// Where departures make the run.
    decisions: Vec<Decision>,
    unreached: Option<Unreached>,
}

impl Case<'_> {
    /// The outcomes of a mode by seed, up to the first finding if that is enough.
    fn run_all(&self, looks: &Looks, check: Check, table: &Table) -> Result<Vec<(Mode, Outcome)>> {
        let modes = Mutex::new(looks.modes(check));
        let stop = AtomicBool::new(false);
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let mut outcomes = BTreeMap::new();
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            for _ in 0..cores.min(looks.seeds()) {
                let sender = sender.clone();
                let (modes, stop) = (&modes, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        // Seeds are begun in their order, so the least with a finding is always run.
                        let next = modes.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(mode) = next else { break };
                        let outcome = self.run(&mode);
                        let is_last = outcome.as_ref().map_or(true, |o| o.finding.is_some());
                        if is_last && !looks.keep_going {
                            stop.store(true, Ordering::Relaxed);
                        }
                        // The receiver is gone only if the process ends.
                        let _ = sender.send((mode, outcome));
                    }
                });
            }
            drop(sender);
            for (mode, mut outcome) in receiver {
                table.step(format!("{} {mode}", self.subject.name));
                let has_timeline = |outcome: &Result<Outcome>| {
                    outcome.as_ref().is_ok_and(|outcome| outcome.timeline.is_some())
                };
                // Only the first is wanted in the end.
                let mut before = outcomes.range(..mode.seed).map(|(_, (_, outcome))| outcome);
                if has_timeline(&outcome)
                    && before.any(has_timeline)
                    && let Ok(outcome) = &mut outcome
                {
                    outcome.timeline = None;
                }
                outcomes.insert(mode.seed, (mode, outcome));
            }
        });
        let mut whole = Vec::new();
        for (mode, outcome) in outcomes.into_values() {
            let outcome = outcome.with_context(|| format!("{} in {mode}", self.subject.name))?;
            if let (Some(unreached), None) = (outcome.unreached, &outcome.finding) {
                return Err(orders::not_reached(&unreached.to_string()));
            }
            let is_last = outcome.finding.is_some() && !looks.keep_going;
            whole.push((mode, outcome));
            if is_last {
                break;
            }
        }
        Ok(whole)
    }

    /// The outcomes of every order that few departures make, up to the first finding: all accesses, and the
    /// run that has it.
    fn explore(
        &self,
        (check, (departures, runs)): (Check, (u32, u64)),
        table: &Table,
        row: &mut Row,
    ) -> Result<Vec<(Mode, Outcome)>> {
        let mut last = None;
        let explored = orders::explore((check, departures, runs), |mode| {
            table.step(format!("{} {mode}", self.subject.name));
            let (tried, mut outcome) = self.tried(mode)?;
            outcome.finding.clone_from(&tried.found);
            if let Some((_, Outcome { accesses, .. })) = last.take() {
                outcome.accesses += accesses;
            }
            last = Some((mode.clone(), outcome));
            Ok(tried)
        });
        let (orders, _) = explored.map_err(|halt| {
            halt.error().context(format!("{} in {} mode", self.subject.name, word(check)))
        })?;
        row.orders = Some(orders);
        Ok(last.into_iter().collect())
    }

    /// A run that departures make.
    fn tried(&self, mode: &Mode) -> Result<(Try, Outcome), Halt> {
        let mut outcome = self.run(mode).map_err(Halt::Failed)?;
        let decisions = std::mem::take(&mut outcome.decisions);
        Ok((Try { decisions, found: outcome.finding.take() }, outcome))
    }

    /// All calls in one simulation. An error if it could not be run.
    fn run(&self, mode: &Mode) -> Result<Outcome> {
        let is_kept = self.trace != Trace::Nothing;
        let simulation = Simulation::with_config(mode.clone(), self.config.clone(), is_kept)?;
        let bootstraps = LocalBootstrap::create(self.own.ranks, set_up_limit()?);
        let ends: Vec<Result<Option<Wrong>>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..)
                .zip(bootstraps)
                .map(|(rank, bootstrap)| {
                    let simulation = &simulation;
                    scope.spawn(move || self.rank(simulation, rank, bootstrap))
                })
                .collect();
            let panicked = |_| Err(anyhow!("a rank panicked"));
            ranks.into_iter().map(|rank| rank.join().unwrap_or_else(panicked)).collect()
        });
        let (accesses, _) = simulation.trace_sum()?;
        let timeline = |finding: &Option<ReportedFinding>| -> Result<Option<String>> {
            let is_wanted = self.trace == Trace::Everything || finding.is_some();
            Ok(if is_wanted { simulation.timeline()? } else { None })
        };
        let outcome = |finding: Option<ReportedFinding>| -> Result<Outcome> {
            Ok(Outcome {
                accesses,
                timeline: timeline(&finding)?,
                finding,
                decisions: simulation.decisions()?,
                unreached: simulation.unreached()?,
            })
        };
        if let Some(finding) = simulation.finding()? {
            // Every rank has an error that says the same.
            return outcome(Some(ReportedFinding::from(&finding)));
        }
        let mut wrong: Option<Wrong> = None;
        for (rank, end) in ends.into_iter().enumerate() {
            let end = end.map_err(|error| anyhow!("rank {rank} failed: {}", told(&error)))?;
            // Who has the wrong bytes says more than who has heard of them.
            if wrong.as_ref().is_none_or(|wrong| !wrong.is_seen) {
                wrong = end.or(wrong);
            }
        }
        let Some(wrong) = wrong else { return outcome(None) };
        let mut text = format!("{WRONG_RESULT}: {}", wrong.what);
        if mode.check == Check::Weak {
            text = format!("{text}\n{}", LateLoad::told(&simulation.late_loads()?, true));
        }
        let (kind, sites) = (WRONG_RESULT.to_owned(), Vec::new());
        outcome(Some(ReportedFinding { kind, text, sites }))
    }

    /// One rank's part; gives what is wrong with its results.
    fn rank(
        &self,
        simulation: &Simulation,
        rank: u32,
        bootstrap: LocalBootstrap,
    ) -> Result<Option<Wrong>> {
        let rank = Rank::new(Arc::new(bootstrap), simulation.device(rank)?, "threads")?;
        let wrong = Mutex::new(None);
        rank.run(&|rank| {
            let first = self.calls(simulation, rank)?;
            let verdict = if first.is_some() { Verdict::Wrong } else { Verdict::Right };
            *wrong.lock().unwrap_or_else(PoisonError::into_inner) = first;
            // Nobody leaves while another still runs.
            rank.communicator.bootstrap().barrier()?;
            Ok(verdict)
        })?;
        Ok(wrong.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn calls(&self, simulation: &Simulation, rank: &Rank) -> Result<Option<Wrong>> {
        let collectives =
            Collectives::with_tuning(&rank.communicator, self.subject.tuning.clone())?;
        let largest = self.lines.iter().map(|line| line.bytes).max().unwrap_or(0);
        let memory = Memory::new(&collectives, self.collective, largest, self.own.data.buffers)?;
        let checker = Checker { rank, memory: &memory, fault: self.own.data.inject_fault };
        let bootstrap = rank.communicator.bootstrap();
        for (line, in_place) in self.lines.iter().flat_map(|line| [(line, false), (line, true)]) {
            let Line { count, data_type, op, bytes } = *line;
            let call = Call { collective: self.collective, count, data_type, op, in_place };
            // In place the second would begin with the first one's result.
            let calls = if in_place { 1 } else { CALLS };
            let run = || {
                // Every rank's memory is written, so nothing that a rank waits for is held.
                bootstrap.barrier()?;
                // The kernels of all ranks begin together, however the host's threads run.
                let hold = simulation.hold();
                for _ in 0..calls {
                    enqueue(&collectives, &memory, rank, &call, &rank.stream)?;
                }
                bootstrap.barrier()?;
                drop(hold);
                Ok(())
            };
            let found = checker.check(&call, 1, run)?;
            if found.wrong > 0 {
                let form = if in_place { "in place" } else { "out of place" };
                let (name, of) = (self.collective.name(), type_name(data_type));
                let me = rank.communicator.rank();
                let is_seen = found.first.is_some();
                let first = found.first.unwrap_or_default();
                let what = format!("rank {me}: {name} of {bytes} bytes of {of}, {form}: {first}");
                return Ok(Some(Wrong { what, is_seen }));
            }
        }
        Ok(None)
    }
}

//! `bench allreduce` and `bench allgather`: sizes, types and operations in turn, each checked and
//! timed out of place and in place.

use std::time::Duration;

use anyhow::{Context, Result};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, Tuning};
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::BackendKind;

use crate::bench::check::{Checker, Found};
use crate::bench::compare;
use crate::bench::files;
use crate::bench::header;
use crate::bench::memory::{GUARD, Memory};
use crate::bench::plot;
use crate::bench::report::{Report, require_writable};
use crate::bench::row::{OURS, Row};
use crate::bench::sizes::{SMALLEST, Step, Sweep, format_size, in_words};
use crate::bench::table::{self, Summary};
use crate::bench::types::type_name;
use crate::harness::{Candidate, Harness, Schedule, Timing};
use crate::options::{Buffers, CollectiveOptions, DeviceChoice};
use crate::output::say;
use crate::ranks::{Plan, Rank, Verdict};
use crate::rival::{Call, Collective, Rival};
use crate::stats::bandwidth;
use crate::usage::{Usage, usage};
use crate::yardstick::{Yardstick, unavailable};

/// What a run on the CPU device may take for all its rows, where the user says nothing else.
const CPU_BUDGET: Duration = Duration::from_secs(10);

/// The most sizes of a run: nobody reads more, and a step that is too small is a slip.
const MOST_SIZES: u64 = 100_000;

impl CollectiveOptions {
    /// An error about what can be seen wrong before any rank starts.
    pub(crate) fn validate(&self, collective: Collective, plan: &Plan) -> Result<()> {
        let sweep = self.sweep(plan.kind)?;
        if lines(collective, self, sweep, plan.ranks()).next().is_none() {
            let least =
                self.types.0.iter().map(|t| collective.element(t.size(), plan.ranks())).min();
            return Err(usage!(
                "{}: no size of this run comes to one element{} on {} ranks; allowed are sizes from \
                 {} bytes",
                self.largest_option(),
                collective.each(),
                plan.ranks(),
                least.unwrap_or_default()
            ));
        }
        self.tuning(collective)?;
        if self.compare.is_some() && plan.kind == BackendKind::Cpu {
            let why = match self.ranks.placement.device {
                DeviceChoice::Cpu => "was asked for",
                _ => "is all there is",
            };
            return Err(usage!(
                "--compare: nccl needs GPUs, and the CPU device {why}; allowed is --device cuda on a \
                 machine with GPUs"
            ));
        }
        if self.bare {
            let why = match collective {
                _ if plan.kind == BackendKind::Cpu => Some("for the CPU device".to_owned()),
                Collective::AllGather => Some("that gather".to_owned()),
                Collective::AllReduce => {
                    (plan.ranks() != 2).then(|| format!("for {} ranks", plan.ranks()))
                }
            };
            if let Some(why) = why {
                return Err(usage!(
                    "--bare: there are no bare kernels {why}; allowed is an allreduce between 2 GPUs"
                ));
            }
        }
        if !plan.writes() {
            return Ok(());
        }
        let (json, plot) = (self.output.json.as_deref(), self.plot.as_deref());
        if let (Some(json), Some(plot)) = (json, plot)
            && files::is_same(json, plot)
        {
            return Err(usage!("--plot: names the file of --json; allowed is another one"));
        }
        require_writable(json)?;
        plot.map_or(Ok(()), |plot| files::require_writable("--plot", plot))
    }

    /// The option that says how large sizes are.
    fn largest_option(&self) -> &'static str {
        if self.end.is_none() && self.begin.is_some() { "-b" } else { "-e" }
    }

    /// The table of the one algorithm that was asked for.
    fn tuning(&self, collective: Collective) -> Result<Option<Tuning>> {
        let Some(algorithm) = &self.algorithm else { return Ok(None) };
        let (tuning, names) = match collective {
            Collective::AllGather => {
                (algorithm.all_gather(), AllGather::ALL.map(AllGather::name).to_vec())
            }
            Collective::AllReduce => {
                (algorithm.all_reduce(), AllReduce::ALL.map(AllReduce::name).to_vec())
            }
        };
        tuning.map(Some).ok_or_else(|| {
            usage!(
                "--algorithm: {} has no '{}'; allowed are {}",
                collective.name(),
                algorithm.name,
                names.join(", ")
            )
        })
    }

    /// The sizes, with the device's usual ends.
    fn sweep(&self, kind: BackendKind) -> Result<Sweep> {
        let usual_end = match kind {
            BackendKind::Cpu => 64 << 10,
            BackendKind::Cuda => 128 << 20,
        };
        let begin =
            self.begin.unwrap_or_else(|| self.end.map_or(SMALLEST, |end| end.min(SMALLEST)));
        let end = self.end.unwrap_or(usual_end.max(begin));
        if begin > end {
            return Err(usage!(
                "-b: {} is larger than -e {}; allowed are sizes up to it",
                format_size(begin),
                format_size(end)
            ));
        }
        let step = match (self.increment, self.factor) {
            (Some(bytes), _) => Step::Add(bytes),
            (None, factor) => Step::Multiply(factor.unwrap_or(2)),
        };
        let sweep = Sweep { begin, end, step };
        if sweep.count() > MOST_SIZES {
            return Err(usage!(
                "-i: {} sizes are too many for a run; allowed are at most {MOST_SIZES}, so take a larger \
                 step",
                sweep.count()
            ));
        }
        Ok(sweep)
    }

    fn schedule(&self, kind: BackendKind, rows: u64) -> Schedule {
        let usual = Schedule::usual(kind);
        Schedule {
            iterations: self.iterations.unwrap_or(usual.iterations),
            fixed_iterations: self.iterations.is_some(),
            warm_up: self.warm_up.unwrap_or(usual.warm_up),
            graph: self.graph,
            budget: usual.budget.map(|budget| budget.min(CPU_BUDGET / rows.clamp(1, 1000) as u32)),
            ..usual
        }
    }
}

/// One line of the table: a size, a type and an operation.
#[derive(Clone, Copy, Debug)]
struct Line {
    count: u64,
    bytes: u64,
    data_type: DataType,
    op: ReduceOp,
}

fn lines(
    collective: Collective,
    options: &CollectiveOptions,
    sweep: Sweep,
    ranks: u32,
) -> impl Iterator<Item = Line> {
    let ops = match collective {
        Collective::AllGather => vec![ReduceOp::Sum],
        Collective::AllReduce => options.ops.0.clone(),
    };
    let pairs: Vec<_> = options
        .types
        .0
        .iter()
        .flat_map(|&data_type| ops.iter().map(move |&op| (data_type, op)))
        .collect();
    pairs.into_iter().flat_map(move |(data_type, op)| {
        let mut last = None;
        sweep.sizes().filter_map(move |asked| {
            let (count, bytes) = collective.shape(asked, data_type.size(), ranks);
            let is_new = last != Some(count) && !is_nothing(asked, count);
            last = Some(count);
            is_new.then_some(Line { count, bytes, data_type, op })
        })
    })
}

/// Sizes below one element a rank come to nothing; only a size of 0 asks for that.
fn is_nothing(asked: u64, count: u64) -> bool {
    count == 0 && asked > 0
}

/// Which sizes have no line, and why: a line for each element type that has some.
fn left_out(
    collective: Collective,
    options: &CollectiveOptions,
    sweep: Sweep,
    ranks: u32,
) -> Vec<String> {
    let of_type = |data_type: &DataType| {
        let element = data_type.size();
        let is_out = |&asked: &u64| is_nothing(asked, collective.shape(asked, element, ranks).0);
        let sizes: Vec<u64> = sweep
            .sizes()
            .take_while(|&asked| asked == 0 || is_out(&asked))
            .filter(is_out)
            .collect();
        (!sizes.is_empty()).then(|| {
            format!(
                "Left out: {} bytes, less than one {}{} ({} bytes)",
                in_words(&sizes),
                type_name(*data_type),
                collective.each(),
                collective.element(element, ranks)
            )
        })
    };
    options.types.0.iter().filter_map(of_type).collect()
}

/// One rank's run.
pub(crate) fn run(
    rank: &Rank,
    collective: Collective,
    options: &CollectiveOptions,
) -> Result<Verdict> {
    let communicator = &rank.communicator;
    let ranks = communicator.world_size();
    let device = communicator.device();
    let sweep = options.sweep(device.kind())?;
    require_same(rank, collective, options)?;
    let all = || lines(collective, options, sweep, ranks);
    let count = all().count() as u64;
    let largest = all().map(|line| line.bytes).max().unwrap_or(0);
    rank.agree(require_memory(rank, options, largest))?;

    let collectives = match options.tuning(collective)? {
        None => Collectives::new(communicator)?,
        Some(tuning) => Collectives::with_tuning(communicator, tuning)?,
    };
    let memory = Memory::new(&collectives, collective, largest, options.buffers)?;
    let rivals = compare::rivals(rank, collective, options, largest)?;
    let yardstick = yardstick(rank, options, largest)?;
    let schedule = options.schedule(device.kind(), 2 * count);
    let harness = Harness::new(communicator, &rank.stream, schedule)?;
    let checker = Checker { rank, memory: &memory, fault: options.inject_fault };
    let names = header::devices(rank)?;
    let json = options.output.json.as_deref();
    let mut report = rank.is_first().then(|| Report::open(json, 2 * count));
    if let Some(report) = &mut report {
        let mut lines = header::lines(rank, collective.name(), &names);
        for rival in &rivals {
            lines.push_str(&format!("\n#  {}: {}", rival.name(), rival.origin()));
        }
        for left_out in left_out(collective, options, sweep, ranks) {
            lines.push_str(&format!("\n#  {left_out}"));
        }
        report.print(&format!("{lines}\n#\n{}", table::head()))?;
    }
    let mut run = Run {
        rank,
        collective,
        options,
        collectives,
        memory: &memory,
        rivals,
        harness,
        yardstick,
        checker,
    };
    let mut summary = Summary::default();
    let mut rows = Vec::new();
    for line in all() {
        let mut forms = [false, true].into_iter().map(|in_place| {
            if let Some(report) = &report {
                report.step(format!("{} {}", format_size(line.bytes), type_name(line.data_type)));
            }
            run.measure(line, in_place)
        });
        let (Some(out_of_place), Some(in_place)) = (forms.next(), forms.next()) else { continue };
        let (out_of_place, in_place) = (out_of_place?, in_place?);
        drop(forms);
        for (out_of_place, in_place) in out_of_place.into_iter().zip(in_place) {
            if !out_of_place.is_other() {
                summary.add(&out_of_place);
                summary.add(&in_place);
            }
            if let Some(report) = &mut report {
                report.print(&table::line(&out_of_place, &in_place))?;
                report.write(&out_of_place)?;
                report.write(&in_place)?;
            }
            rows.extend([out_of_place, in_place]);
        }
    }
    if let Some(report) = &mut report {
        report.print(&summary.lines())?;
        report.finish()?;
        if let Some(path) = &options.plot {
            files::write(path, &plot::draw(&rows)?)?;
        }
    }
    // Nobody leaves while another still measures.
    communicator.bootstrap().barrier()?;
    Ok(if summary.wrong == 0 { Verdict::Right } else { Verdict::Wrong })
}

/// An option's value in words.
fn given(value: Option<u64>) -> String {
    value.map_or_else(|| "left out".into(), |value| value.to_string())
}

/// An error on every rank if the ranks were started with different options.
fn require_same(rank: &Rank, collective: Collective, options: &CollectiveOptions) -> Result<()> {
    let own = [
        format!("bench {}", collective.name()),
        format!("-b {}", given(options.begin)),
        format!("-e {}", given(options.end)),
        format!("-f {}", given(options.factor)),
        format!("-i {}", given(options.increment)),
        format!("-n {}", given(options.iterations)),
        format!("-w {}", given(options.warm_up)),
        format!("-c {:?}", options.check),
        format!("-d {:?}", options.types),
        format!("-o {:?}", options.ops),
        format!("-G {:?}", options.graph),
        format!("--buffers {:?}", options.buffers),
        format!("--algorithm {:?}", options.algorithm),
        format!("--compare {:?}", options.compare),
        format!("--bare {:?}", options.bare),
    ];
    let all = rank.communicator.bootstrap().all_gather(own.join("\n").as_bytes())?;
    let texts: Vec<String> = all.iter().map(|t| String::from_utf8_lossy(t).into_owned()).collect();
    for (other, text) in texts.iter().enumerate() {
        let differs = texts[0].lines().zip(text.lines()).find(|(first, theirs)| first != theirs);
        if let Some((first, theirs)) = differs {
            return Err(anyhow::Error::new(Usage::of_all_ranks(format!(
                "rank {other} was started with {theirs}, rank 0 with {first}; all ranks need the same \
                 options"
            ))));
        }
    }
    Ok(())
}

/// An error if the largest size cannot fit, which says what can.
fn require_memory(rank: &Rank, options: &CollectiveOptions, largest: u64) -> Result<()> {
    let device = rank.communicator.device();
    let (free, _) = device.memory()?;
    // Ranks that share a device share its memory, and all CPU devices are the host's: a bound, no
    // promise.
    let sharing = match device.kind() {
        BackendKind::Cpu => rank.communicator.world_size() as u64,
        BackendKind::Cuda => 1,
    };
    let free = free / sharing;
    let needed = 2 * (largest + 2 * GUARD);
    if needed > free {
        return Err(usage!(
            "{}: {} needs {needed} bytes of {device:?}'s memory for input and output, and {free} are \
             free; allowed are sizes up to {}",
            options.largest_option(),
            format_size(largest),
            free / 2
        ));
    }
    Ok(())
}

/// Whether the bare kernels do the same.
fn is_bare(call: &Call) -> bool {
    call.collective == Collective::AllReduce
        && call.data_type == DataType::Bf16
        && call.op == ReduceOp::Sum
}

/// The bare allreduces, where they were asked for. Collective.
fn yardstick<'a>(
    rank: &'a Rank,
    options: &CollectiveOptions,
    largest: u64,
) -> Result<Option<Yardstick<'a>>> {
    if !options.bare {
        return Ok(None);
    }
    let possible = match unavailable(&rank.communicator) {
        Some(why) => Err(usage!(
            "--bare: {why}; allowed is an allreduce between 2 GPUs of compute capability 9.0 or higher"
        )),
        None => Ok(()),
    };
    rank.agree(possible)?;
    Ok(Some(Yardstick::new(&rank.communicator, largest.max(32), &rank.stream)?))
}

struct Run<'a> {
    rank: &'a Rank,
    collective: Collective,
    options: &'a CollectiveOptions,
    collectives: Collectives,
    memory: &'a Memory,
    rivals: Vec<Box<dyn Rival>>,
    harness: Harness<'a>,
    yardstick: Option<Yardstick<'a>>,
    checker: Checker<'a>,
}

impl Run<'_> {
    /// Checks and times one form of a line: a row of ours, and one of each rival.
    fn measure(&mut self, line: Line, in_place: bool) -> Result<Vec<Row>> {
        let call = Call {
            collective: self.collective,
            count: line.count,
            data_type: line.data_type,
            op: line.op,
            in_place,
        };
        let form = if in_place { "in place" } else { "out of place" };
        let what = || {
            let name = type_name(line.data_type);
            format!("{} of {} bytes of {name}, {form}", self.collective.name(), line.bytes)
        };
        let found = self.check(&call).with_context(|| format!("check of {}", what()))?;
        if let Some(first) = found.as_ref().and_then(|found| found.first.as_ref()) {
            say!("rank {}: {}: {first}", self.rank.communicator.rank(), what());
        }
        let (collectives, memory, rank) = (&self.collectives, self.memory, self.rank);
        let mut candidates =
            vec![Candidate::new(OURS, |stream| enqueue(collectives, memory, rank, &call, stream))];
        for rival in &self.rivals {
            let call = &call;
            candidates
                .push(Candidate::new(rival.name(), move |stream| rival.enqueue(call, stream)));
        }
        let timings = self.harness.measure(&mut candidates).with_context(what)?;
        drop(candidates);

        let best = timings[1..].iter().map(|timing| timing.time_us).reduce(f64::min);
        let mut rows = vec![self.row(&line, &call, timings[0])];
        rows[0].wrong = found.map(|found| found.wrong);
        rows[0].ratio = best.map(|best| best / timings[0].time_us);
        if is_bare(&call)
            && let Some(yardstick) = &mut self.yardstick
        {
            rows[0].bare_us = Some(yardstick.time_us(line.bytes, &mut self.harness)?);
        }
        for (rival, timing) in self.rivals.iter().zip(&timings[1..]) {
            rows.push(Row {
                implementation: rival.name().to_owned(),
                algorithm: rival.name().to_owned(),
                ..self.row(&line, &call, *timing)
            });
        }
        Ok(rows)
    }

    fn check(&self, call: &Call) -> Result<Option<Found>> {
        if self.options.check == 0 {
            return Ok(None);
        }
        let stream = &self.rank.stream;
        let enqueue = |stream: &_| enqueue(&self.collectives, self.memory, self.rank, call, stream);
        if self.options.graph == 0 {
            return self.checker.check(call, self.options.check, || enqueue(stream)).map(Some);
        }
        // Of one operation: in place a second one would begin with the first one's result.
        let graph = stream.capture(enqueue)?.instantiate()?;
        let run = || Ok(graph.launch(stream)?);
        self.checker.check(call, self.options.check, run).map(Some)
    }

    fn row(&self, line: &Line, call: &Call, timing: Timing) -> Row {
        let ranks = self.rank.communicator.world_size();
        let algbw_gbps = bandwidth(line.bytes, timing.time_us);
        Row {
            op: self.collective.name().into(),
            bytes: line.bytes,
            count: line.count,
            dtype: type_name(line.data_type).into(),
            redop: match self.collective {
                Collective::AllGather => "none".into(),
                Collective::AllReduce => line.op.name().into(),
            },
            in_place: call.in_place,
            time_us: timing.time_us,
            spread_us: timing.spread_us,
            algbw_gbps,
            busbw_gbps: algbw_gbps * self.collective.bus_factor(ranks),
            wrong: None,
            implementation: OURS.into(),
            algorithm: self.algorithm(call).into(),
            ranks,
            device: self.rank.communicator.device().name(),
            graph: self.options.graph,
            buffers: match self.options.buffers {
                Buffers::Plain => "plain".into(),
                Buffers::Symmetric => "symmetric".into(),
            },
            ratio: None,
            bare_us: None,
        }
    }

    fn algorithm(&self, call: &Call) -> &'static str {
        let (input, output) = self.memory.addresses(call, self.rank.communicator.rank());
        let Call { count, data_type, op, .. } = *call;
        match self.collective {
            Collective::AllGather => {
                self.collectives.all_gather_algorithm(input, output, count, data_type)
            }
            Collective::AllReduce => {
                self.collectives.all_reduce_algorithm(input, output, count, data_type, op)
            }
        }
    }
}

/// Enqueues the call on the run's memory.
fn enqueue(
    collectives: &Collectives,
    memory: &Memory,
    rank: &Rank,
    call: &Call,
    stream: &mscclrs_gpu::Stream,
) -> Result<()> {
    let (input, output) = memory.addresses(call, rank.communicator.rank());
    let Call { count, data_type, op, .. } = *call;
    // SAFETY: both blocks hold the largest size of the run and are kept until its last synchronize.
    unsafe {
        match call.collective {
            Collective::AllGather => {
                collectives.all_gather_raw(input, output, count, data_type, stream)?;
            }
            Collective::AllReduce => {
                collectives.all_reduce_raw(input, output, count, data_type, op, stream)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{Bench, Cli, Command};

    fn options(arguments: &str) -> CollectiveOptions {
        let words =
            ["mscclrs", "bench", "allreduce"].into_iter().chain(arguments.split_whitespace());
        match Cli::try_parse_from(words).expect("right").command {
            Command::Bench(Bench::Allreduce(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_end_of_the_sizes_is_enough() {
        let ends = |arguments| {
            let sweep = options(arguments).sweep(BackendKind::Cpu).expect("right");
            (sweep.begin, sweep.end)
        };
        assert_eq!(ends(""), (8, 64 << 10));
        assert_eq!(ends("-b 1M"), (1 << 20, 1 << 20));
        assert_eq!(ends("-e 4"), (4, 4));
        assert_eq!(ends("-b 0 -e 0"), (0, 0));
        let error = options("-b 2K -e 1K").sweep(BackendKind::Cpu).expect_err("wrong");
        assert_eq!(error.to_string(), "-b: 2K is larger than -e 1K; allowed are sizes up to it");
    }

    #[test]
    fn lines_go_through_types_operations_and_sizes() {
        let options = options("-b 4 -e 16 -f 2 -d half,float -o sum,max");
        let sweep = options.sweep(BackendKind::Cpu).expect("right");
        let all: Vec<_> = lines(Collective::AllReduce, &options, sweep, 8).collect();
        assert_eq!(all.len(), 12);
        assert_eq!((all[0].count, all[0].bytes), (2, 4));
        // 8 ranks share at least 16 bytes of halves and 32 of floats, and nothing is reduced.
        let all: Vec<_> = lines(Collective::AllGather, &options, sweep, 8).collect();
        assert_eq!(all.iter().map(|line| line.bytes).collect::<Vec<_>>(), [16]);
    }

    #[test]
    fn sizes_that_come_to_the_same_count_are_one_line() {
        let options = options("-b 0 -e 12 -i 1");
        let sweep = options.sweep(BackendKind::Cpu).expect("right");
        let bytes: Vec<_> =
            lines(Collective::AllReduce, &options, sweep, 2).map(|line| line.bytes).collect();
        assert_eq!(bytes, [0, 4, 8, 12]);
    }
}

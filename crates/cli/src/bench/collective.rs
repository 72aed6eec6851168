//! `bench allreduce` and `bench allgather`: sizes, types and operations in turn, each checked and
//! timed out of place and in place.

use anyhow::{Context, Result};
use mscclrs_collectives::Collectives;
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::BackendKind;

use crate::bench::check::{Checker, Found};
use crate::bench::compare;
use crate::bench::files;
use crate::bench::header;
use crate::bench::lines::{Line, left_out, lines};
use crate::bench::memory::{GUARD, Memory};
use crate::bench::plot;
use crate::bench::report::Report;
use crate::bench::row::{OURS, Row};
use crate::bench::sizes::format_size;
use crate::bench::table::{self, Summary};
use crate::bench::types::type_name;
use crate::harness::{Candidate, Harness, Timing};
use crate::options::{Buffers, CollectiveOptions};
use crate::output::say;
use crate::ranks::{Rank, Verdict};
use crate::rival::{Call, Collective, Rival};
use crate::stats::bandwidth;
use crate::usage::{Usage, usage};
use crate::yardstick::{Yardstick, unavailable};

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
    let memory = Memory::new(&collectives, collective, largest, options.data.buffers)?;
    let rivals = compare::rivals(rank, collective, options, largest)?;
    let yardstick = yardstick(rank, options, largest)?;
    let schedule = options.schedule(device.kind(), 2 * count);
    let harness = Harness::new(communicator, &rank.stream, schedule)?;
    let checker = Checker { rank, memory: &memory, fault: options.data.inject_fault };
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
        format!("-d {:?}", options.data.types),
        format!("-o {:?}", options.data.ops),
        format!("-G {:?}", options.graph),
        format!("--buffers {:?}", options.data.buffers),
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
            buffers: match self.options.data.buffers {
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
pub(crate) fn enqueue(
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

//! What a run of `bench allreduce` or `bench allgather` goes through, as its options say: found before
//! any rank starts, and the same on every rank.

use std::time::Duration;

use anyhow::Result;
use mscclrs_collectives::{AllGather, AllReduce, Tuning};
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::BackendKind;

use crate::bench::files;
use crate::bench::report::require_writable;
use crate::bench::sizes::{SMALLEST, Step, Sweep, format_size, in_words};
use crate::bench::types::{DataTypes, ReduceOps, type_name};
use crate::harness::Schedule;
use crate::options::{Algorithm, CollectiveOptions, DeviceChoice};
use crate::ranks::Plan;
use crate::rival::Collective;
use crate::similar::did_you_mean;
use crate::usage::usage;

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
                self.data.types.0.iter().map(|t| collective.element(t.size(), plan.ranks())).min();
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
    pub(crate) fn largest_option(&self) -> &'static str {
        if self.end.is_none() && self.begin.is_some() { "-b" } else { "-e" }
    }

    /// The table of the one algorithm that was asked for.
    pub(crate) fn tuning(&self, collective: Collective) -> Result<Option<Tuning>> {
        self.algorithm.as_ref().map(|algorithm| algorithm.tuning(collective)).transpose()
    }

    /// The sizes, with the device's usual ends.
    pub(crate) fn sweep(&self, kind: BackendKind) -> Result<Sweep> {
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

    pub(crate) fn schedule(&self, kind: BackendKind, rows: u64) -> Schedule {
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

impl Algorithm {
    /// The table that has nothing else.
    pub(crate) fn tuning(&self, collective: Collective) -> Result<Tuning> {
        let (tuning, names) = match collective {
            Collective::AllGather => {
                (self.all_gather(), AllGather::ALL.map(AllGather::name).to_vec())
            }
            Collective::AllReduce => {
                (self.all_reduce(), AllReduce::ALL.map(AllReduce::name).to_vec())
            }
        };
        tuning.ok_or_else(|| {
            let meant = did_you_mean(&self.name, names.iter().copied());
            usage!(
                "--algorithm: {} has no '{}'{meant}; allowed are {}",
                collective.name(),
                self.name,
                names.join(", ")
            )
        })
    }
}

/// One line of the table: a size, a type and an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
}

pub(crate) fn lines(
    collective: Collective,
    options: &CollectiveOptions,
    sweep: Sweep,
    ranks: u32,
) -> impl Iterator<Item = Line> {
    lines_of(collective, (&options.data.types, &options.data.ops), sweep, ranks)
}

/// As [`lines`], of these types and operations.
pub(crate) fn lines_of(
    collective: Collective,
    (types, ops): (&DataTypes, &ReduceOps),
    sweep: Sweep,
    ranks: u32,
) -> impl Iterator<Item = Line> + use<> {
    let ops = match collective {
        Collective::AllGather => vec![ReduceOp::Sum],
        Collective::AllReduce => ops.0.clone(),
    };
    let pairs: Vec<_> =
        types.0.iter().flat_map(|&data_type| ops.iter().map(move |&op| (data_type, op))).collect();
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
pub(crate) fn left_out(
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
    options.data.types.0.iter().filter_map(of_type).collect()
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

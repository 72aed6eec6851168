//! The command line. Values are read to what they mean here, so that nothing later meets a wrong one.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mscclrs_collectives::{AllGather, AllReduce, Shape, Tuning};
use mscclrs_ptx::CUBIN_CAPABILITIES;

use crate::bench::sizes::parse_size;
use crate::bench::types::{DataTypes, ReduceOps, parse_ops, parse_types};
use crate::check::CheckOptions;
use crate::completion::CompletionOptions;
use crate::info::InfoOptions;
use crate::launch::{GUARD, LaunchOptions};
use crate::manual::ManOptions;

/// GPUs that talk to each other.
#[derive(Debug, Parser)]
#[command(name = "mscclrs", version, subcommand_required = true, args_override_self = false)]
pub(crate) struct Cli {
    /// Write the log as JSON, one object a line, as MSCCLRS_DEBUG_FORMAT=json does; without
    /// MSCCLRS_DEBUG it has warnings.
    #[arg(long, global = true)]
    pub(crate) log_json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure, and check every result.
    #[command(subcommand)]
    Bench(Bench),
    /// Look for races, deadlocks and other faults of kernels, in simulations: of one's own programs, or
    /// of this project's collectives.
    Check(CheckOptions),
    /// Print what a shell needs to complete this command's words.
    Completion(CompletionOptions),
    /// Tell what this machine offers, what the environment says, and what is wrong.
    Info(InfoOptions),
    /// Kernels of one's own.
    #[command(subcommand)]
    Kernel(Kernel),
    /// Start ranks of any program, on this host or on several, and answer for them.
    Launch(LaunchOptions),
    /// Ends ranks whose launcher was killed.
    #[command(name = GUARD, hide = true)]
    LaunchGuard,
    /// Print a manual page, or write all of them.
    Man(ManOptions),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Kernel {
    /// Compile a crate's kernels for GPUs, check them, and write them to its folder `device`.
    Build(KernelBuildOptions),
}

/// Options of `kernel build`.
#[derive(Args, Clone, Debug)]
pub(crate) struct KernelBuildOptions {
    /// Folder of the crate.
    #[arg(value_name = "CRATE")]
    pub(crate) folder: PathBuf,
    /// Compute capabilities to compile for, such as 90 or 80,90 [default: all that are known].
    #[arg(long = "arch", value_name = "LIST", value_delimiter = ',', value_parser = parse_capability)]
    pub(crate) capabilities: Vec<u32>,
    /// Folder for the files [default: the crate's folder `device`, where its programs look].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Install what is missing: the compiler by apt-get as root, Python's packages in cargo's target
    /// folder.
    #[arg(long)]
    pub(crate) install: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Every rank gets the sum (or minimum, maximum) over all ranks.
    #[command(allow_negative_numbers = true)]
    Allreduce(CollectiveOptions),
    /// Every rank gets every rank's part.
    #[command(allow_negative_numbers = true)]
    Allgather(CollectiveOptions),
    /// A signal from one rank to another: the time of a hop.
    #[command(allow_negative_numbers = true)]
    Signal(HopOptions),
    /// A packet, data and flag in one, from one rank to another: the time of a hop.
    #[command(allow_negative_numbers = true)]
    Packet(HopOptions),
    /// What this machine allows two ranks: hops, bandwidth, bare allreduces without any safety.
    #[command(allow_negative_numbers = true)]
    Limits(LimitsOptions),
}

/// Options of `bench limits`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitsOptions {
    #[command(flatten)]
    pub(crate) ranks: PairOptions,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// Options of `bench allreduce` and `bench allgather`; one-letter names as in nccl-tests.
#[derive(Args, Clone, Debug)]
pub(crate) struct CollectiveOptions {
    /// Smallest size in bytes: 8, 64K, 1G; from 0 a factor goes on at 8 [default: 8].
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size)]
    pub(crate) begin: Option<u64>,
    /// Largest size in bytes [default: 64K on the CPU device, 128M on GPUs].
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    pub(crate) end: Option<u64>,
    /// Factor from one size to the next [default: 2].
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", conflicts_with = "increment",
        value_parser = parse_factor)]
    pub(crate) factor: Option<u64>,
    /// Bytes from one size to the next, instead of a factor.
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = parse_increment)]
    pub(crate) increment: Option<u64>,
    /// Operations a sample [default: 20 on GPUs, at most 5 on the CPU device].
    #[arg(short = 'n', long = "iters", value_name = "N", value_parser = parse_iterations)]
    pub(crate) iterations: Option<u64>,
    /// Operations before the samples of each row [default: 5 on GPUs, 1 on the CPU device].
    #[arg(short = 'w', long = "warmup_iters", value_name = "N", value_parser = parse_count)]
    pub(crate) warm_up: Option<u64>,
    /// Checks of each row, each with new data; 0 checks nothing.
    #[arg(short = 'c', long = "check", value_name = "N", default_value = "1",
        value_parser = parse_count)]
    pub(crate) check: u64,
    #[command(flatten)]
    pub(crate) data: DataOptions,
    /// Capture N operations in a graph and replay it; 0 launches them one by one.
    #[arg(short = 'G', long = "cudagraph", value_name = "N", default_value = "0",
        value_parser = parse_graph)]
    pub(crate) graph: u64,
    /// One algorithm for all sizes instead of the table's choice, and the launch: direct, mesh,
    /// one-shot-ll16:8x256 (blocks x threads), ...
    #[arg(long, value_name = "NAME[:BxT]", value_parser = parse_algorithm)]
    pub(crate) algorithm: Option<Algorithm>,
    /// Measure another implementation too, alternating with ours.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) compare: Option<Compare>,
    /// Measure the best bare allreduce of each size too, and say by how much ours is above it; for
    /// allreduce of bfloat16 sums between 2 GPUs.
    #[arg(long)]
    pub(crate) bare: bool,
    /// Draw time and bus bandwidth over size, when the run is whole; if it fails or is interrupted the
    /// file stays as it was.
    #[arg(long, value_name = "FILE.svg", value_parser = parse_plot)]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ranks: RankOptions,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// What collectives move, wherever they are run, and what is broken to show that it is checked.
#[derive(Args, Clone, Debug)]
pub(crate) struct DataOptions {
    /// Element types: half, bfloat16, float, int32, uint32 or PyTorch's names, a list, or all.
    #[arg(short = 'd', long = "datatype", value_name = "TYPES", default_value = "float",
        value_parser = parse_types)]
    pub(crate) types: DataTypes,
    /// Operations: sum, min, max, a list, or all; not used by allgather.
    #[arg(short = 'o', long = "op", value_name = "OPS", default_value = "sum",
        value_parser = parse_ops)]
    pub(crate) ops: ReduceOps,
    /// Kind of memory that inputs and outputs lie in.
    #[arg(long, value_enum, default_value = "symmetric")]
    pub(crate) buffers: Buffers,
    /// Change one byte before the check of results looks, to show that it sees.
    #[arg(long, value_enum, hide = true, num_args = 0..=1, default_missing_value = "output",
        require_equals = true)]
    pub(crate) inject_fault: Option<Fault>,
}

/// Options of `bench signal` and `bench packet`.
#[derive(Args, Clone, Debug)]
pub(crate) struct HopOptions {
    /// Round trips a launch [default: 1000 on GPUs, 200 on the CPU device].
    #[arg(short = 'n', long = "iters", value_name = "N", value_parser = parse_rounds)]
    pub(crate) rounds: Option<u32>,
    #[command(flatten)]
    pub(crate) ranks: PairOptions,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// Which ranks there are and what they run on.
#[derive(Args, Clone, Debug)]
pub(crate) struct RankOptions {
    /// Number of ranks [default: one a GPU, 8 on the CPU device].
    #[arg(long, value_name = "N", value_parser = parse_ranks)]
    pub(crate) ranks: Option<u32>,
    #[command(flatten)]
    pub(crate) placement: Placement,
}

/// The ranks of a measurement between two.
#[derive(Args, Clone, Debug)]
pub(crate) struct PairOptions {
    /// Number of ranks: 2, since this is measured between two [default: 2].
    #[arg(long, value_name = "N", value_parser = parse_pair)]
    pub(crate) ranks: Option<u32>,
    #[command(flatten)]
    pub(crate) placement: Placement,
}

/// What ranks run on.
#[derive(Args, Clone, Debug)]
pub(crate) struct Placement {
    /// Allow more ranks than GPUs.
    #[arg(long)]
    pub(crate) oversubscribe: bool,
    /// Ranks as threads of one process.
    #[arg(long)]
    pub(crate) threads: bool,
    /// What the ranks run on; auto takes what MSCCLRS_DEVICE says, or GPUs where there are some.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) device: DeviceChoice,
}

/// Where results go beside the table.
#[derive(Args, Clone, Debug)]
pub(crate) struct OutputOptions {
    /// Write one JSON object a row to a file, when the run is whole; if it fails or is interrupted the
    /// file stays as it was. With - each row goes to standard output as soon as it is measured, and the
    /// table to standard error.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Buffers {
    /// Allocated by the communicator, reachable by every rank.
    Symmetric,
    /// As a framework's plain allocation gives it.
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compare {
    /// NVIDIA's library, opened at run time, in its plain and symmetric modes.
    Nccl,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceChoice {
    Auto,
    Cpu,
    Cuda,
}

/// What a hidden option breaks, to show that the check sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    Guard,
    Input,
    Output,
}

/// Ranks of a measurement between two.
pub(crate) const PAIR: u32 = 2;

/// Reads a whole number in a range; the error says which.
pub(crate) fn number(text: &str, what: &str, from: u64, to: u64) -> Result<u64, String> {
    text.trim()
        .parse()
        .ok()
        .filter(|number| (from..=to).contains(number))
        .ok_or_else(|| format!("'{text}' is not {what}; allowed are {from} to {to}"))
}

fn parse_count(text: &str) -> Result<u64, String> {
    number(text, "a number of operations", 0, 1_000_000_000)
}

fn parse_iterations(text: &str) -> Result<u64, String> {
    number(text, "a number of operations", 1, 1_000_000_000)
}

fn parse_rounds(text: &str) -> Result<u32, String> {
    number(text, "a number of round trips", 1, 1_000_000).map(|rounds| rounds as u32)
}

pub(crate) fn parse_factor(text: &str) -> Result<u64, String> {
    number(text, "a factor", 2, 1 << 40)
}

fn parse_graph(text: &str) -> Result<u64, String> {
    number(text, "a number of operations for a graph", 0, 100_000)
}

/// An algorithm by name, which the collective may not have, and how it is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Algorithm {
    pub(crate) name: String,
    /// The launch that was asked for.
    pub(crate) shape: Option<Shape>,
}

/// The launch of an algorithm where none is asked for.
const USUAL_SHAPE: Shape = Shape { blocks: 16, threads: 256 };

impl Algorithm {
    /// The table that has nothing else, for one of the collectives; nothing if it has no such
    /// algorithm.
    pub(crate) fn all_reduce(&self) -> Option<Tuning> {
        let algorithm = AllReduce::ALL.into_iter().find(|a| a.name() == self.name)?;
        Some(Tuning::only(algorithm, AllGather::Mesh, self.shape.unwrap_or(USUAL_SHAPE)))
    }

    /// As [`Algorithm::all_reduce`].
    pub(crate) fn all_gather(&self) -> Option<Tuning> {
        let algorithm = AllGather::ALL.into_iter().find(|a| a.name() == self.name)?;
        Some(Tuning::only(AllReduce::Mesh, algorithm, self.shape.unwrap_or(USUAL_SHAPE)))
    }
}

pub(crate) fn parse_algorithm(text: &str) -> Result<Algorithm, String> {
    let Some((name, shape)) = text.split_once(':') else {
        return Ok(Algorithm { name: text.into(), shape: None });
    };
    let number = |text: &str| text.parse::<u32>().ok().filter(|n| (1..=1024).contains(n));
    let parts = shape.split_once('x').and_then(|(b, t)| Some((number(b)?, number(t)?)));
    match parts {
        Some((blocks, threads)) if threads.is_multiple_of(32) && blocks <= 128 => {
            Ok(Algorithm { name: name.into(), shape: Some(Shape { blocks, threads }) })
        }
        _ => Err(format!(
            "'{shape}' is not a launch; allowed are blocks x threads like 8x256, at most 128 blocks, \
             threads a multiple of 32 up to 1024"
        )),
    }
}

fn parse_ranks(text: &str) -> Result<u32, String> {
    number(text, "a number of ranks", 1, 1024).map(|ranks| ranks as u32)
}

fn parse_pair(text: &str) -> Result<u32, String> {
    text.trim().parse().ok().filter(|&ranks| ranks == PAIR).ok_or_else(|| {
        format!("'{text}' is not possible, since this is measured between two; allowed is {PAIR}")
    })
}

fn parse_increment(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("0 is not a step; allowed are sizes from 1".into()),
        bytes => Ok(bytes),
    }
}

fn parse_capability(text: &str) -> Result<u32, String> {
    let text = text.trim();
    let number = text.strip_prefix("sm_").unwrap_or(text).parse().ok();
    number.filter(|known| CUBIN_CAPABILITIES.contains(known)).ok_or_else(|| {
        let known = CUBIN_CAPABILITIES.map(|known| known.to_string());
        format!(
            "'{text}' is not a compute capability that is known; allowed are {}",
            known.join(", ")
        )
    })
}

fn parse_plot(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg")) {
        return Ok(path);
    }
    Err(format!("'{text}' is not a name for a drawing; allowed are names that end in .svg"))
}

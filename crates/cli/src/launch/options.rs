//! The command line of `launch`, and what it comes to.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::environment::{Ranks, Setting};
use super::hosts::{HostList, Span};
use super::place::Place;
use crate::options::number;
use crate::usage::usage;

/// The most ranks of one host.
const MAX_LOCAL: u64 = 1024;
/// The most that can meet.
const MAX_RANKS: u64 = 1 << 16;

/// Options of `launch`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LaunchOptions {
    /// Ranks on this host, or on each of --hosts that says no number of its own.
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = parse_local)]
    pub(super) ranks: Option<u32>,
    /// Hosts with their numbers of ranks: a,b:4,me@c. Prints a script that starts them all by ssh,
    /// unless --run is there.
    #[arg(long, value_name = "HOST[:N],..", value_parser = HostList::parse)]
    hosts: Option<HostList>,
    /// Start the ranks on --hosts by ssh, and answer for them.
    #[arg(long, requires = "hosts")]
    run: bool,
    /// Where rank 0 serves the rendezvous [default: the loopback, or the first of --hosts; a port
    /// that is free].
    #[arg(long, value_name = "[INTERFACE:]HOST[:PORT]", value_parser = parse_place)]
    address: Option<Place>,
    /// Set a variable for every rank, or give it the value that it has here, which matters for --hosts;
    /// may be given several times.
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", value_parser = Setting::parse)]
    pub(super) settings: Vec<Setting>,
    /// Write each rank's output to files RANK.out and RANK.err of a folder, unmarked.
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_prefix")]
    pub(super) output: Option<PathBuf>,
    /// Let ranks write to this command's own output, unmarked and as it comes.
    #[arg(long)]
    pub(super) no_prefix: bool,
    /// Seconds that ranks have to end once they are asked to; then they are killed.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_grace)]
    pub(super) grace: Duration,
    /// Where this command is found on --hosts [default: the path that it has here].
    #[arg(long, value_name = "PATH", requires = "hosts")]
    pub(super) remote_command: Option<PathBuf>,
    /// Start one host's part of a larger launch: the number of its first rank.
    #[arg(long, value_name = "RANK", requires = "world_size", conflicts_with = "hosts",
        value_parser = parse_first)]
    first_rank: Option<u32>,
    /// Ranks of the larger launch on all hosts.
    #[arg(long, value_name = "N", requires = "first_rank", value_parser = parse_world)]
    world_size: Option<u32>,
    /// Read the secret of the larger launch from the first line of standard input, instead of from
    /// MSCCLRS_SECRET.
    #[arg(long, requires = "first_rank")]
    secret_stdin: bool,
    /// Standard input brings the secret, then what becomes of the ranks; its end is theirs.
    #[arg(long, requires = "first_rank", conflicts_with = "secret_stdin", hide = true)]
    lifeline: bool,
    /// What each rank runs, with its arguments.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,
}

/// What is to be started.
pub(super) enum Shape {
    Local(Part),
    Print(Span),
    Ssh(Span),
}

/// The ranks of this host.
pub(super) struct Part {
    pub(super) ranks: Ranks,
    pub(super) place: Place,
    pub(super) origin: Origin,
}

/// Where the secret of the ranks of this host comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// They are all there are: it is made here.
    Alone,
    Environment,
    Stdin,
    /// Standard input, which then stays open as long as the launch.
    Lifeline,
}

impl LaunchOptions {
    /// What the options come to.
    pub(super) fn shape(&self) -> Result<Shape> {
        if let Some(hosts) = &self.hosts {
            let span = Span::new(hosts, self.ranks, self.address.clone())?;
            let ranks = span.world_size();
            if u64::from(ranks) > MAX_RANKS {
                return Err(usage!("--hosts: {ranks} ranks are too many; allowed are {MAX_RANKS}"));
            }
            return Ok(if self.run { Shape::Ssh(span) } else { Shape::Print(span) });
        }
        let count = self.ranks.ok_or_else(|| {
            usage!("mscclrs launch needs a number of ranks; allowed are -n N and --hosts")
        })?;
        let (Some(first), Some(world_size)) = (self.first_rank, self.world_size) else {
            let ranks = Ranks { first: 0, count, world_size: count };
            let place = self.address.clone().unwrap_or_else(Place::loopback);
            return Ok(Shape::Local(Part { ranks, place, origin: Origin::Alone }));
        };
        // Both are far from the end of their type.
        if first + count > world_size {
            return Err(usage!(
                "--first-rank: ranks {first} to {} are not all below --world-size {world_size}; allowed \
                 are 0 to {}",
                first + count - 1,
                world_size.saturating_sub(count)
            ));
        }
        let place = self.address.clone().filter(|place| place.port().is_some()).ok_or_else(|| {
            usage!(
                "a part of a larger launch needs --address HOST:PORT; allowed is the same on every host"
            )
        })?;
        let origin = match (self.lifeline, self.secret_stdin) {
            (true, _) => Origin::Lifeline,
            (false, true) => Origin::Stdin,
            (false, false) => Origin::Environment,
        };
        Ok(Shape::Local(Part { ranks: Ranks { first, count, world_size }, place, origin }))
    }
}

fn parse_local(text: &str) -> Result<u32, String> {
    number(text, "a number of ranks of one host", 1, MAX_LOCAL).map(|ranks| ranks as u32)
}

fn parse_world(text: &str) -> Result<u32, String> {
    number(text, "a number of ranks", 1, MAX_RANKS).map(|ranks| ranks as u32)
}

fn parse_first(text: &str) -> Result<u32, String> {
    number(text, "a rank", 0, MAX_RANKS - 1).map(|rank| rank as u32)
}

fn parse_place(text: &str) -> Result<Place, String> {
    text.parse()
}

fn parse_grace(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse().ok().filter(|seconds| (0.0..=86400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is not a time; allowed are 0 to 86400 seconds"))
}

//! The ranks of this host.

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;

use super::LaunchOptions;
use super::environment::{self, Ranks};
use super::job::{Job, Kind};
use super::options::{Origin, Part};
use super::place::HeldPorts;
use super::task::Start;
use super::{lifeline, secret};
use crate::usage::usage;

/// Starts them and waits for them.
pub(super) fn run(options: &LaunchOptions, part: &Part) -> Result<ExitCode> {
    let Part { ranks, place, origin } = part;
    let secret = match origin {
        Origin::Alone => secret::fresh()?,
        Origin::Environment => secret::from_environment()?,
        Origin::Lifeline | Origin::Stdin => secret::read(io::stdin().lock())?,
    };
    // Held where rank 0 is; elsewhere the port is known.
    let held = match (ranks.first, place.port()) {
        (0, Some(port)) => Some(HeldPorts::at(port)?),
        (0, None) => Some(HeldPorts::any()?),
        _ => None,
    };
    let port = held.as_ref().map(|held| held.port).or(place.port()).unwrap_or_default();
    let meeting = place.at(port);
    if let Some(folder) = &options.output {
        fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    }
    let settings: Vec<_> = options
        .settings
        .iter()
        .map(|setting| Ok((&setting.name, setting.value()?)))
        .collect::<Result<_>>()?;
    let kind = if *origin == Origin::Lifeline { Kind::LedRanks } else { Kind::Ranks };
    let mut job = Job::new(kind, options.grace)?;
    for local_rank in 0..ranks.count {
        let rank = ranks.first + local_rank;
        let mut command = Command::new(&options.command[0]);
        command.args(&options.command[1..]);
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        command.envs(environment::of_rank(*ranks, local_rank, &meeting, &secret));
        command.stdin(input(rank, *origin));
        let hint = connect(options, rank, &mut command)?;
        let mark = format!("[{rank}] ").into_bytes();
        let start = Start { name: name(rank, *ranks), mark, lifeline: None, hint, command };
        if let Err(refused) = job.start(start) {
            drop(job);
            return Ok(refused.tell());
        }
    }
    if *origin == Origin::Lifeline {
        // The lock on standard input is not held here.
        lifeline::watch(io::stdin(), job.sender())?;
    }
    let end = job.run();
    drop(held);
    end
}

/// For people; with the host where there are several.
fn name(rank: u32, ranks: Ranks) -> String {
    if ranks.is_whole() {
        return format!("rank {rank}");
    }
    let host = rustix::system::uname();
    format!("rank {rank} on {}", host.nodename().to_string_lossy())
}

/// Rank 0 reads this command's input, the others find its end at once. A terminal stays the shell's: a
/// rank in a process group of its own would be stopped when it read there.
fn input(rank: u32, origin: Origin) -> Stdio {
    let is_free = matches!(origin, Origin::Alone | Origin::Environment);
    if rank == 0 && is_free && !io::stdin().is_terminal() {
        Stdio::inherit()
    } else {
        Stdio::null()
    }
}

/// Leads the output of a rank where the options say; gives what a sentence on its failure ends with.
fn connect(options: &LaunchOptions, rank: u32, command: &mut Command) -> Result<String> {
    let Some(folder) = &options.output else {
        if !options.no_prefix {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        return Ok(String::new());
    };
    let file = |kind: &str| {
        let path = folder.join(format!("{rank}.{kind}"));
        let file = File::create(&path).map_err(|error| unwritable(&path, &error))?;
        anyhow::Ok((path, file))
    };
    let (_, output) = file("out")?;
    let (path, error) = file("err")?;
    command.stdout(output).stderr(error);
    Ok(format!(" (see {})", path.display()))
}

fn unwritable(path: &Path, error: &io::Error) -> anyhow::Error {
    usage!(
        "--output: '{}' cannot be written: {error}; allowed is a folder in which files can be made",
        path.display()
    )
}

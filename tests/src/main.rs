//! The same checks on every back end, as one program that needs nothing but itself.
//!
//! Each check runs in a process of its own with a time limit: one that hangs is ended and counts as
//! failed, and one that breaks its device does not take the others along.

mod checks;
mod flood;
mod memory;
mod runner;
mod soak;
mod values;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use mscclrs_gpu::{BackendKind, Device, available_backends};

use crate::checks::{CHECKS, Check};

#[derive(Parser)]
#[command(
    name = "mscclrs-conformance",
    version,
    about = "Checks mscclrs on this machine's devices"
)]
struct Options {
    /// Devices to check: auto (all kinds that work here), cpu or cuda
    #[arg(long, value_name = "KIND", default_value = "auto")]
    device: String,
    /// Only checks whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Write one JSON object a check to this file, `-` for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Name the checks and run none
    #[arg(long)]
    list: bool,
    /// Do something many times and look at what it leaves behind: the name of a soak, or all
    #[arg(long, value_name = "NAME", conflicts_with_all = ["filter", "json", "run"])]
    soak: Option<String>,
    /// How many rounds a soak has, instead of as many as are usual for it
    #[arg(long, value_name = "COUNT", requires = "soak", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Run one check in this process; for the program's own use
    #[arg(long, value_name = "NAME", hide = true)]
    run: Option<String>,
}

fn main() -> ExitCode {
    match start(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn start(options: &Options) -> Result<bool> {
    let kinds = kinds(&options.device)?;
    if let Some(name) = &options.soak {
        let mut good = true;
        for kind in kinds {
            good &= soak::run(name, kind, options.rounds)?;
        }
        return Ok(good);
    }
    if let Some(name) = &options.run {
        let check = CHECKS.iter().find(|check| check.name == name);
        let (Some(check), [kind]) = (check, &kinds[..]) else {
            bail!("--run {name}: no such check, or not one device");
        };
        (check.run)(&Device::open(*kind, 0)?)?;
        return Ok(true);
    }
    let chosen: Vec<(&Check, BackendKind)> = kinds
        .iter()
        .flat_map(|kind| CHECKS.iter().map(move |check| (check, *kind)))
        .filter(|(check, kind)| check.is_for(*kind) && check.name.contains(&options.filter))
        .collect();
    if options.list {
        for (check, kind) in &chosen {
            println!("{} {}", kind.name(), check.name);
        }
        return Ok(true);
    }
    if chosen.is_empty() {
        bail!("no check contains `{}`; --list names them", options.filter);
    }
    let outcomes = runner::run_all(&chosen)?;
    if let Some(path) = &options.json {
        runner::write_json(path, &outcomes).with_context(|| path.display().to_string())?;
    }
    Ok(outcomes.iter().all(|outcome| outcome.passed))
}

fn kinds(device: &str) -> Result<Vec<BackendKind>> {
    match device {
        "auto" => Ok(available_backends()),
        kind => Ok(vec![kind.parse()?]),
    }
}

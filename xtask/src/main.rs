//! The project's automation: `cargo xtask ptx`, `cargo xtask test`, `cargo xtask gpu bundle`,
//! `cargo xtask environment`, `cargo xtask performance`, `cargo xtask soak`, `cargo xtask fuzz`,
//! `cargo xtask tsan`.
//!
//! It depends on no crate that embeds device files, so that it builds when these are missing.

mod bundle;
mod corpus;
#[cfg(test)]
mod docs;
mod environment;
mod fuzz;
mod nightly;
mod page;
mod performance;
mod programs;
mod ptx;
mod shell;
mod soak;
#[cfg(test)]
mod sources;
mod steps;
mod test;
mod tsan;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's automation")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the tables of docs/src/environment.md from the registry in crates/env
    Environment {
        /// Change nothing: fail if the page is not what the registry makes
        #[arg(long)]
        check: bool,
    },
    /// Fuzz a parser of what comes from outside, with libFuzzer (needs nightly and a C++ compiler)
    Fuzz {
        /// What to fuzz
        #[arg(value_parser = fuzz::target_name, required_unless_present = "list")]
        target: Option<String>,
        /// For how long
        #[arg(value_parser = clap::value_parser!(u32).range(1..), default_value_t = 60)]
        seconds: u32,
        /// Make the target's corpus anew of what was found, instead
        #[arg(long)]
        merge: bool,
        /// Name the targets
        #[arg(long)]
        list: bool,
    },
    /// For machines with GPUs
    Gpu {
        #[command(subcommand)]
        command: GpuCommand,
    },
    /// Write the tables of docs/src/performance.md from the files in docs/performance
    Performance {
        /// Change nothing: fail if the page is not what the files make
        #[arg(long)]
        check: bool,
    },
    /// Make the device files in crates/kernels/device
    Ptx {
        /// Change nothing: fail if the files are not what the sources make
        #[arg(long)]
        check: bool,
        /// Write the files even if kernels spill registers; the check will refuse them
        #[arg(long, conflicts_with = "check")]
        draft: bool,
    },
    /// Do the same things thousands of times and look at what they leave behind
    Soak {
        /// The soak: rendezvous, communicators, connections, semaphores, buffers, flood, or all
        #[arg(default_value = "all")]
        name: String,
        /// How many rounds, instead of as many as are usual for it
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
        rounds: Option<u64>,
        /// The devices: cpu, cuda, or auto for all kinds that work here
        #[arg(long, value_name = "KIND", default_value = "cpu")]
        device: String,
    },
    /// Run every check of the project, the same as its CI
    Test {
        /// Run one step only; may be given several times
        #[arg(long, value_name = "STEP")]
        only: Vec<String>,
        /// Name the steps
        #[arg(long)]
        list: bool,
    },
    /// Run tests of the host's code under ThreadSanitizer (needs nightly)
    Tsan,
}

#[derive(Subcommand)]
enum GpuCommand {
    /// Gather the stripped command and the conformance checks in .gpu/
    Bundle,
}

fn main() -> ExitCode {
    let result = match Options::parse().command {
        Command::Environment { check: true } => environment::check(),
        Command::Environment { check: false } => environment::write(),
        Command::Fuzz { target: Some(target), merge: true, list: false, .. } => {
            fuzz::merge(&target)
        }
        Command::Fuzz { target: Some(target), seconds, list: false, .. } => {
            fuzz::fuzz(&target, seconds)
        }
        Command::Fuzz { .. } => fuzz::list(),
        Command::Gpu { command: GpuCommand::Bundle } => bundle::bundle(),
        Command::Performance { check: true } => performance::check(),
        Command::Performance { check: false } => performance::write(),
        Command::Ptx { check: true, draft: _ } => ptx::check(),
        Command::Ptx { check: false, draft } => ptx::build(draft),
        Command::Soak { name, rounds, device } => soak::run(&name, rounds, &device),
        Command::Test { only: _, list: true } => test::list(),
        Command::Test { only, list: false } => test::run(&only),
        Command::Tsan => tsan::tsan(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

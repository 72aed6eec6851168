//! The mscclrs command.

mod bench;
mod check;
mod completion;
mod harness;
mod info;
mod kernel;
mod launch;
mod limits;
mod logging;
mod manual;
mod nccl;
mod options;
mod output;
mod ranks;
mod rival;
mod similar;
mod stats;
mod usage;
mod words;
mod yardstick;

use std::process::ExitCode;

use clap::Parser;
use options::{Cli, Command};
use output::say;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help or the version; a closed pipe is no reason to complain.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let arguments: Vec<_> = std::env::args_os()
                .skip(1)
                .map(|text| text.to_string_lossy().into_owned())
                .collect();
            say!("error: {}", usage::sentence::<Cli>(&error, &arguments));
            return ExitCode::from(2);
        }
    };
    let end = run(&cli);
    end.unwrap_or_else(|error| {
        if !error.is::<output::Closed>() {
            say!("error: {}", output::told(&error));
        }
        ExitCode::from(ranks::status(&error))
    })
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    // SAFETY: no other thread has been started.
    unsafe { logging::begin(cli)? };
    match &cli.command {
        Command::Bench(bench) => {
            // SAFETY: no other thread has been started.
            unsafe { nccl::prepare_environment() };
            bench::run(bench)
        }
        Command::Check(options) => check::run(options),
        Command::Completion(options) => completion::run(options),
        Command::Info(options) => info::run(options),
        Command::Kernel(kernel) => kernel::run(kernel),
        Command::Launch(launch) => launch::run(launch),
        Command::LaunchGuard => Ok(launch::run_guard()),
        Command::Man(options) => manual::run(options),
    }
}

//! The mscclrs command.

mod bench;
mod harness;
mod options;
mod rival;
mod stats;
mod usage;

use std::process::ExitCode;

use clap::Parser;
use options::Cli;

fn main() -> ExitCode {
    let arguments: Vec<_> =
        std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned()).collect();
    match Cli::try_parse() {
        Ok(cli) => {
            println!("{cli:?}");
            ExitCode::SUCCESS
        }
        Err(error) if !error.use_stderr() => {
            print!("{error}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mscclrs: {}", usage::sentence::<Cli>(&error, &arguments));
            ExitCode::from(2)
        }
    }
}

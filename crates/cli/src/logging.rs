//! The log of this command.
//!
//! Where none is asked for, warnings of the crates below are shown as plain sentences on standard error:
//! set-up that waits for somebody, a rank that was refused. They are as well where the log goes to a
//! file.

use anyhow::Result;
use mscclrs_core::env;
use mscclrs_core::logging::settings;
use mscclrs_log::{Level, Settings, install};

use crate::options::{Cli, Command};
use crate::usage::usage;

/// Begins the log.
///
/// # Safety
/// This process has one thread: the environment may be changed, so that processes which this one
/// starts, on other hosts too, write their log alike.
pub(crate) unsafe fn begin(cli: &Cli) -> Result<()> {
    if cli.log_json {
        // SAFETY: the caller's promise.
        unsafe { std::env::set_var(env::DEBUG_FORMAT.name, "json") };
    }
    match &cli.command {
        Command::Bench(_) | Command::Check(_) | Command::Launch(_) => start(),
        // What is wrong with a variable is in its report.
        Command::Info(_) => start().or(Ok(())),
        // These have nothing to say.
        Command::Completion(_) | Command::Kernel(_) | Command::LaunchGuard | Command::Man(_) => {
            Ok(())
        }
    }
}

fn start() -> Result<()> {
    let asked = settings().map_err(|error| usage!("{error}"))?;
    let settings = match asked {
        Some(settings) => Settings { plain_warnings: settings.file.is_some(), ..settings },
        None => Settings { level: Level::Off, plain_warnings: true, ..Settings::default() },
    };
    install(settings).map_err(|error| usage!("{error}"))?;
    Ok(())
}

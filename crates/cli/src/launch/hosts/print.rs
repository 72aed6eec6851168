//! A script that starts the ranks of all hosts, for people to read, change and run.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::super::LaunchOptions;
use super::super::place::likely_free_port;
use super::Span;
use super::command::{Line, Remote};
use super::shell::quote;

/// Prints the script.
///
/// The secret is drawn when it runs, and is written by a command of the shell's own: it is in no file
/// and on no command line.
pub(in super::super) fn print(options: &LaunchOptions, span: &Span) -> Result<ExitCode> {
    let port = span.place.port().map_or_else(likely_free_port, Ok)?;
    let remote = Remote::new(options, span.place.at(port), Line::Secret)?;
    let hosts = if span.parts.len() == 1 { "host" } else { "hosts" };
    let mut script = b"#!/bin/sh\n".to_vec();
    script
        .extend(format!("# {} ranks on {} {hosts}\n", span.world_size(), span.parts.len()).bytes());
    script.extend(b"secret=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \\n')\n");
    script.extend(b"hosts=\n");
    for (host, ranks) in &span.parts {
        script.extend(b"printf '%s\\n' \"$secret\" | ssh ");
        script.extend(quote(host.destination()));
        script.push(b' ');
        script.extend(quote(remote.command(*ranks)));
        script.extend(b" &\nhosts=\"$hosts $!\"\n");
    }
    script.extend(
        b"status=0\nfor host in $hosts; do wait \"$host\" || status=$?; done\nexit $status\n",
    );
    std::io::stdout().write_all(&script).context("the script cannot be written")?;
    Ok(ExitCode::SUCCESS)
}

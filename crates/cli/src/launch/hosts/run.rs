//! The ranks of all hosts, started by ssh and answered for.

use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;

use super::super::LaunchOptions;
use super::super::job::{Job, Kind};
use super::super::place::likely_free_port;
use super::super::secret;
use super::super::task::Start;
use super::Span;
use super::command::{Line, Remote};

/// Starts all hosts' parts, passes on what they write, and ends all when one fails.
pub(in super::super) fn run(options: &LaunchOptions, span: &Span) -> Result<ExitCode> {
    let port = span.place.port().map_or_else(likely_free_port, Ok)?;
    let remote = Remote::new(options, span.place.at(port), Line::Lifeline)?;
    let secret = secret::fresh()?;
    let mut job = Job::new(Kind::Hosts, options.grace)?;
    for (host, ranks) in &span.parts {
        let mut command = Command::new("ssh");
        // Without a terminal nobody can be asked for a password: ssh is to fail instead.
        command.args(["-T", "-o", "BatchMode=yes"]);
        command.arg(host.destination()).arg(remote.command(*ranks));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = Start {
            name: format!("host {}", host.name()),
            mark: Vec::new(),
            lifeline: Some(secret.clone()),
            hint: String::new(),
            command,
        };
        if let Err(refused) = job.start(start) {
            drop(job);
            return Ok(refused.tell());
        }
    }
    job.run()
}

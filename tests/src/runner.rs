//! Runs checks one after the other, each in a process of its own.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mscclrs_gpu::BackendKind;
use serde::Serialize;

use crate::checks::Check;

/// How a check ended.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    check: &'static str,
    device: &'static str,
    pub(crate) passed: bool,
    seconds: f64,
    /// Why it failed; empty if it did not.
    message: String,
}

/// Runs the checks and prints a line for each and one for all.
pub(crate) fn run_all(chosen: &[(&Check, BackendKind)]) -> Result<Vec<Outcome>> {
    let begin = Instant::now();
    let mut outcomes = Vec::new();
    for (check, kind) in chosen {
        let outcome = run_one(check, *kind)?;
        let word = if outcome.passed { "PASS" } else { "FAIL" };
        eprintln!("{word:>12} [{:>8.3}s] {} {}", outcome.seconds, outcome.device, outcome.check);
        if !outcome.passed {
            eprintln!("{}", outcome.message.trim_end());
        }
        outcomes.push(outcome);
    }
    let passed = outcomes.iter().filter(|outcome| outcome.passed).count();
    eprintln!(
        "     Summary [{:>8.3}s] {} checks run: {passed} passed, {} failed",
        begin.elapsed().as_secs_f64(),
        outcomes.len(),
        outcomes.len() - passed
    );
    Ok(outcomes)
}

/// Writes one JSON object a line.
pub(crate) fn write_json(path: &Path, outcomes: &[Outcome]) -> Result<()> {
    let mut text = String::new();
    for outcome in outcomes {
        text.push_str(&serde_json::to_string(outcome)?);
        text.push('\n');
    }
    if path == Path::new("-") {
        std::io::stdout().write_all(text.as_bytes())?;
    } else {
        std::fs::write(path, text)?;
    }
    Ok(())
}

fn run_one(check: &Check, kind: BackendKind) -> Result<Outcome> {
    let start = Instant::now();
    let mut child = Command::new(std::env::current_exe().context("finding this program")?)
        .args(["--run", check.name, "--device", kind.name()])
        // Streams of ranks that share a GPU must not queue behind each other's waiting kernels.
        .env("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting a check")?;
    // Read beside the wait, so that a check with much to say does not block on a full pipe.
    let stderr = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut from) = stderr {
            // What was read before an error is still worth showing.
            let _ = from.read_to_string(&mut text);
        }
        text
    });
    let status = wait(&mut child, check.limit)?;
    let mut message = reader.join().unwrap_or_default();
    let passed = status.is_some_and(|status| status.success());
    match status {
        None => message.push_str(&format!("did not end within {} s", check.limit.as_secs())),
        Some(status) if !passed => message.push_str(&format!("ended with {status}")),
        Some(_) => message.clear(),
    }
    Ok(Outcome {
        check: check.name,
        device: kind.name(),
        passed,
        seconds: start.elapsed().as_secs_f64(),
        message,
    })
}

/// Waits at most `limit`, then ends the process; nothing if it had to.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a check")? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill().context("ending a check")?;
            child.wait().context("waiting for an ended check")?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

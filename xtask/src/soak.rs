//! `cargo xtask soak`: the soaks of the conformance program, for as long as nobody waits for them in the
//! tests.

use std::time::Instant;

use anyhow::Result;

use crate::shell::{cargo, run as run_command};

/// Runs a soak on the CPU device, or all of them, in the release build.
pub(crate) fn run(name: &str, rounds: Option<u64>, device: &str) -> Result<()> {
    let begin = Instant::now();
    let mut command = cargo(&["run", "--quiet", "--release", "-p", "mscclrs-conformance", "--"]);
    command.args(["--device", device, "--soak", name]);
    if let Some(rounds) = rounds {
        command.args(["--rounds", &rounds.to_string()]);
    }
    run_command(&mut command)?;
    println!("soaked for {:.0} s, building included", begin.elapsed().as_secs_f64());
    Ok(())
}

//! The nightly compiler, for what the stable one does not do: sanitizers.

use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{root, succeeds};

/// What to do where it is missing.
const INSTALL: &str = "rustup toolchain install nightly --profile minimal";

/// nightly's cargo in the workspace's folder.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(arguments).current_dir(root());
    // They are those of the stable cargo that runs this program.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        command.env_remove(name);
    }
    command
}

/// What it compiles for where it runs. An error says how to get nightly, or those of `components` that
/// it lacks.
pub(crate) fn host(components: &[&str]) -> Result<String> {
    let output = Command::new("rustup").args(["run", "nightly", "rustc", "-vV"]).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        bail!("missing here: the nightly compiler: `{INSTALL}`");
    };
    for component in components {
        let add = ["component", "add", "--toolchain", "nightly", component];
        if !succeeds(Command::new("rustup").args(add)) {
            bail!("missing here: `rustup {}` failed", add.join(" "));
        }
    }
    match host_of(&String::from_utf8_lossy(&output.stdout)) {
        Some(host) => Ok(host.to_owned()),
        None => bail!("nightly's `rustc -vV` does not say what it compiles for"),
    }
}

fn host_of(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("host: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_what_the_compiler_calls_it() {
        let text = "rustc 1.100.0-nightly\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\n";
        assert_eq!(host_of(text), Some("x86_64-unknown-linux-gnu"));
        assert_eq!(host_of("rustc 1.100.0"), None);
    }
}

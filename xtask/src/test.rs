//! `cargo xtask test`: everything that has to hold before a change lands.

use std::process::Command;

use anyhow::{Result, bail};
use mscclrs_ptx::Tools;

use crate::shell::{cargo, run as run_command, run_and_read, succeeds};
use crate::steps::{Counts, Step};
use crate::{performance, programs, ptx, steps};

const STEPS: [Step; 8] = [
    Step { name: "tools", what: "what the other steps need is here", run: tools },
    Step { name: "fmt", what: "the code is formatted", run: format },
    Step { name: "clippy", what: "no warnings", run: clippy },
    Step { name: "doc", what: "the documentation builds without warnings", run: doc },
    Step { name: "nextest", what: "the tests, each with a time limit", run: nextest },
    Step { name: "doctest", what: "the examples in the documentation", run: doctest },
    Step { name: "figures", what: "the page of figures is what was measured", run: figures },
    Step { name: "ptx", what: "the device files are what the sources make", run: device_files },
];

/// Prints the steps.
pub(crate) fn list() -> Result<()> {
    for step in STEPS {
        println!("{:<10} {}", step.name, step.what);
    }
    Ok(())
}

/// Runs the steps.
pub(crate) fn run(only: &[String]) -> Result<()> {
    steps::run(&STEPS, only)
}

const NONE: Counts = Counts { passed: 0, skipped: 0 };

fn tools() -> Result<Counts> {
    let mut missing = Vec::new();
    for (component, arguments) in
        [("clippy", ["clippy", "--version"]), ("rustfmt", ["fmt", "--version"])]
    {
        if succeeds(&mut cargo(&arguments)) {
            continue;
        }
        // Without rustup this fails, and the list below says what to do.
        let _ = run_command(Command::new("rustup").args(["component", "add", component]));
        if !succeeds(&mut cargo(&arguments)) {
            missing.push(format!("  {component}: `rustup component add {component}`"));
        }
    }
    if !succeeds(&mut cargo(&["nextest", "--version"])) {
        let install = ["install", "cargo-nextest", "--locked"];
        if let Err(error) = run_command(&mut cargo(&install)) {
            missing
                .push(format!("  cargo-nextest: `cargo install cargo-nextest --locked` ({error})"));
        }
    }
    let found = Tools::install(&ptx::cache(), &|step| eprintln!("{step}"));
    match found {
        Ok(tools) => eprintln!("{}", ptx::describe(&tools)),
        Err(mscclrs_ptx::Error::Missing { missing: more }) => missing.extend(more),
        Err(other) => return Err(other.into()),
    }
    missing.extend(programs::install());
    if !missing.is_empty() {
        bail!("missing here:\n{}", missing.join("\n"));
    }
    Ok(NONE)
}

fn format() -> Result<Counts> {
    run_command(&mut cargo(&["fmt", "--all", "--check"]))?;
    Ok(NONE)
}

fn clippy() -> Result<Counts> {
    run_command(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(NONE)
}

fn doc() -> Result<Counts> {
    let mut command = cargo(&["doc", "--no-deps", "--workspace"]);
    run_command(command.env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(NONE)
}

fn nextest() -> Result<Counts> {
    nextest_counts(&run_and_read(&mut cargo(&["nextest", "run", "--workspace"]))?)
}

fn doctest() -> Result<Counts> {
    Ok(doctest_counts(&run_and_read(&mut cargo(&["test", "--doc", "--workspace"]))?))
}

fn figures() -> Result<Counts> {
    performance::check()?;
    Ok(NONE)
}

fn device_files() -> Result<Counts> {
    ptx::check()?;
    Ok(NONE)
}

/// From the line `Summary [ 1.234s] 12 tests run: 12 passed (1 slow), 2 skipped`.
fn nextest_counts(text: &str) -> Result<Counts> {
    let line = text.lines().rev().find(|line| line.trim_start().starts_with("Summary ["));
    let Some(line) = line else { bail!("nextest printed no summary") };
    let before = |word: &str| {
        let mut words = line.split([' ', ',']).filter(|part| !part.is_empty()).peekable();
        let mut count = 0;
        while let Some(part) = words.next() {
            if words.peek() == Some(&word) {
                count = part.parse().unwrap_or(0);
            }
        }
        count
    };
    Ok(Counts { passed: before("passed"), skipped: before("skipped") })
}

/// From the lines `test result: ok. 2 passed; 0 failed; 1 ignored; ..` of all crates.
fn doctest_counts(text: &str) -> Counts {
    let mut counts = NONE;
    for line in text.lines().filter_map(|line| line.strip_prefix("test result: ok. ")) {
        for part in line.split(';') {
            let mut words = part.split_whitespace();
            let count = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            match words.next() {
                Some("passed") => counts.passed += count,
                Some("ignored") => counts.skipped += count,
                _ => {}
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_nextest_is_read() {
        let text = "     Summary [   0.020s] 12 tests run: 12 passed (1 slow), 2 skipped\n";
        assert_eq!(nextest_counts(text).unwrap(), Counts { passed: 12, skipped: 2 });
        assert!(nextest_counts("nothing").is_err());
    }

    #[test]
    fn results_of_doctests_are_added() {
        let text = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                    finished in 0.01s\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured;\n";
        assert_eq!(doctest_counts(text), Counts { passed: 5, skipped: 1 });
    }
}

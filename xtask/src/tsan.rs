//! `cargo xtask tsan`: tests of the host's code under ThreadSanitizer.
//!
//! The standard library is compiled along, so that its locks and queues are seen. Kernels of the CPU
//! device run too, but only the host's code is watched: ranks map one memory at several addresses, and
//! lanes are fibers of one thread. docs/src/fuzzing.md says more.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::nightly;
use crate::shell::{run, target};

const PACKAGES: [&str; 6] = [
    "mscclrs-collectives",
    "mscclrs-core",
    "mscclrs-env",
    "mscclrs-gpu",
    "mscclrs-log",
    "mscclrs-sim",
];
/// Whose limits are those of speed, which hold for what users run; and one of ten thousands of launches, whose
/// fibers are more than ThreadSanitizer, which is not told of them, has room for.
const EXCEPT: &str = "not test(eight_ranks_have_reduced_in_150_ms) and not binary(simulated_cost) and \
                      not binary(growth)";

/// Runs the tests; fails if one does, or if a race was reported, by a process that a test started too.
pub(crate) fn tsan() -> Result<()> {
    let host = nightly::host(&["rust-src"])?;
    let folder = target().join("tsan");
    let reports = folder.join("reports");
    if reports.exists() {
        fs::remove_dir_all(&reports).with_context(|| reports.display().to_string())?;
    }
    fs::create_dir_all(&reports).with_context(|| reports.display().to_string())?;
    let mut command = nightly::cargo(&["nextest", "run", "-Zbuild-std", "--no-fail-fast"]);
    command.args(["--target", &host]).args(PACKAGES.map(|package| format!("--package={package}")));
    command.args(["--filterset", EXCEPT]);
    // One order of the many of each simulated test: it is the host that is looked at.
    command.env("MSCCLRS_TEST_SEEDS", "0..1");
    // Many a test hides what its processes write, so the reports go into files.
    let options = format!("log_path={}/race history_size=4", reports.display());
    command
        .env("CARGO_TARGET_DIR", &folder)
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env("TSAN_OPTIONS", options);
    let outcome = run(&mut command);
    let races = print(&reports)?;
    if races > 0 {
        bail!("{races} processes reported races, shown above and kept in {}", reports.display());
    }
    outcome
}

/// Shows the reports; gives their number.
fn print(reports: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(reports).with_context(|| reports.display().to_string())? {
        let path = entry?.path();
        eprintln!("{}:\n{}", path.display(), fs::read_to_string(&path)?);
        count += 1;
    }
    Ok(count)
}

//! libFuzzer over one target of the workspace.
//!
//! `--target=NAME` says which, and `--seeds=FOLDER` where its seeds are written before it begins;
//! libFuzzer leaves options with two dashes alone.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use mscclrs_fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(init: begin(), |input: &[u8]| {
    if let Some(target) = TARGET.get() {
        target.check(input);
    }
});

fn begin() {
    let option = |name: &str| {
        std::env::args().find_map(|argument| argument.strip_prefix(name).map(str::to_owned))
    };
    let name = option("--target=").unwrap_or_default();
    let mut all = mscclrs_core::fuzz::TARGETS.iter().copied();
    let mut more = mscclrs_env::fuzz::TARGETS.iter().chain(mscclrs_gpu::fuzz::TARGETS).copied();
    let found = all.find(|target| target.name == name).or(more.find(|target| target.name == name));
    let Some(target) = found else {
        eprintln!("error: there is no target \"{name}\"");
        std::process::exit(2);
    };
    if let Some(folder) = option("--seeds=") {
        for (index, seed) in (target.seeds)().iter().enumerate() {
            let file = std::path::Path::new(&folder).join(format!("seed-{index}"));
            if let Err(error) = std::fs::write(&file, seed) {
                eprintln!("error: {}: {error}", file.display());
                std::process::exit(2);
            }
        }
    }
    TARGET.get_or_init(|| target);
}

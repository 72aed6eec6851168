//! `cargo xtask fuzz`: libFuzzer over the parsers of what comes from outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{root, run, target};
use crate::{corpus, nightly};

/// Each target, and what it takes apart. Its corpus is the folder of its name in fuzz/corpus.
const TARGETS: [(&str, &str); 21] = [
    ("address", "where rank 0 serves the rendezvous, as users and launchers write it"),
    ("bootstrap_gather", "what ranks send each other in the bootstrap's all_gather and barrier"),
    ("bootstrap_handshake", "what an acceptor reads of a stranger, up to its first message"),
    ("bootstrap_join", "first messages of connections between ranks and to the rendezvous"),
    ("bootstrap_letters", "the stream of messages between two ranks"),
    ("bootstrap_report", "what a rank tells the rendezvous after it joined"),
    ("bootstrap_verdict", "what the rendezvous answers"),
    ("endpoint", "serialized endpoints"),
    ("environment", "values of all environment variables"),
    ("interface_filter", "which network interfaces are used, as users write it"),
    ("launch_environment", "what launchers leave in the environment; Slurm's lists, /proc's lines"),
    ("liveness_frames", "what neighbours in the tree of liveness say to each other"),
    ("log_settings", "what the environment says of the log: levels, subsystems, names of files"),
    ("memory_handle", "handles of memory as the back ends import them"),
    ("memory_handle_json", "the same in the form that serde gives them"),
    ("pci_address", "addresses on the PCI bus, as driver, NVML and system write them"),
    ("peer_message", "messages of a communicator's queues"),
    ("registered_memory", "serialized memory with its handle and ticket"),
    ("semaphore", "what a peer gives for a semaphore"),
    ("setup_step", "what ranks tell each other in collective set-up calls"),
    ("unique_id", "unique ids, as text and as bytes"),
];

/// The longest input, in bytes: longer than any text that is taken, and many messages.
const MOST_BYTES: u32 = 4096;
/// An input that takes longer than this many seconds is a fault.
const SLOW_SECONDS: u32 = 5;
/// Memory of the fuzzer's process, in MiB; what a target may allocate is bounded far below by itself.
const MEMORY_MIB: u32 = 1024;
/// What the fuzzer needs to see where the code goes, as LLVM has it, and AddressSanitizer.
const FLAGS: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    --cfg fuzzing \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
    -Zsanitizer=address \
    -Ccodegen-units=1";

/// What the names of seeds begin with where the fuzzer writes them.
const SEED: &str = "seed-";

/// Names the targets.
pub(crate) fn list() -> Result<()> {
    for (name, what) in TARGETS {
        println!("{name:<20} {what}");
    }
    Ok(())
}

/// Runs a target, beginning with its corpus; what it finds interesting is kept in target/fuzz.
pub(crate) fn fuzz(name: &str, seconds: u32) -> Result<()> {
    let program = build()?;
    let [found, faults, corpus] = folders(name)?;
    let mut command = fuzzer(&program, name);
    command
        .arg(format!("--seeds={}", found.display()))
        .arg(format!("-artifact_prefix={}/", faults.display()))
        .arg(format!("-max_total_time={seconds}"))
        .args(limits())
        .arg("-print_final_stats=1")
        .args([&found, &corpus]);
    run(&mut command).with_context(|| {
        format!(
            "the input that found a fault is in {}; put it into {} with the change that mends it",
            faults.display(),
            corpus.display()
        )
    })
}

/// Makes the corpus of a target anew: few inputs that reach the code that those in it and in target/fuzz
/// reach. How often an input passes a place does not count here, other than while fuzzing: a corpus that
/// tells twice from thrice is many times as large.
pub(crate) fn merge(name: &str) -> Result<()> {
    let program = build()?;
    let [found, faults, corpus] = folders(name)?;
    let (merged, control) = (found.with_file_name("merged"), found.with_file_name("control"));
    clear(&merged)?;
    // A merge would go on with one that is there.
    fs::write(&control, "").with_context(|| control.display().to_string())?;
    let mut command = fuzzer(&program, name);
    command
        .arg(format!("--seeds={}", found.display()))
        .arg(format!("-artifact_prefix={}/", faults.display()))
        .arg("-set_cover_merge=1")
        .arg("-use_counters=0")
        .arg(format!("-merge_control_file={}", control.display()))
        .args(limits())
        .args([&merged, &corpus, &found]);
    run(&mut command)?;
    let notes = fs::read_to_string(&control).with_context(|| control.display().to_string())?;
    let chosen = corpus::choose(&notes, SEED).with_context(|| control.display().to_string())?;
    // They are read before those in the corpus are removed.
    let inputs: Vec<_> = chosen.inputs.iter().map(fs::read).collect::<Result<_, _>>()?;
    clear(&corpus)?;
    for (path, input) in chosen.inputs.iter().zip(inputs) {
        let Some(name) = path.file_name() else { continue };
        fs::write(corpus.join(name), input).with_context(|| corpus.display().to_string())?;
    }
    let (count, reached, reachable) = (chosen.inputs.len(), chosen.reached, chosen.reachable);
    println!("{count} inputs in {} reach {reached} of {reachable} places", corpus.display());
    Ok(())
}

fn fuzzer(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(format!("--target={name}"));
    // Threads of the CPU device free what an input made when they get to it, and live to the end: both
    // look like leaks.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command
}

fn limits() -> [String; 3] {
    [
        format!("-max_len={MOST_BYTES}"),
        format!("-timeout={SLOW_SECONDS}"),
        format!("-rss_limit_mb={MEMORY_MIB}"),
    ]
}

/// What is found, faults, and the corpus of a target.
fn folders(name: &str) -> Result<[PathBuf; 3]> {
    let work = target().join("fuzz").join(name);
    let folders = [work.join("found"), work.join("faults"), corpora().join(name)];
    for folder in &folders {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(folders)
}

fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

fn corpora() -> PathBuf {
    root().join("fuzz/corpus")
}

fn build() -> Result<PathBuf> {
    let host = nightly::host(&[])?;
    if !["c++", "g++", "clang++"]
        .iter()
        .any(|name| crate::shell::succeeds(Command::new(name).arg("--version")))
    {
        bail!(
            "missing here: a C++ compiler, for libFuzzer's runtime: on Debian `apt-get install g++`"
        );
    }
    let folder = target().join("libfuzzer");
    let mut command = nightly::cargo(&["build", "--release", "--target", &host]);
    command
        .current_dir(root().join("fuzz/libfuzzer"))
        .env("CARGO_TARGET_DIR", &folder)
        .env("RUSTFLAGS", FLAGS);
    run(&mut command)?;
    Ok(folder.join(host).join("release/mscclrs-libfuzzer"))
}

/// The name of a target, for the command line.
pub(crate) fn target_name(text: &str) -> Result<String, String> {
    if TARGETS.iter().any(|(name, _)| *name == text) {
        return Ok(text.to_owned());
    }
    let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    Err(format!("allowed is one of {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// That each target holds for its corpus is tested beside it; a corpus without a target would be
    /// walked by nothing.
    #[test]
    fn every_target_has_a_corpus_and_every_corpus_a_target() {
        let named: BTreeSet<_> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
        let folders: BTreeSet<_> = fs::read_dir(corpora())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(named, folders);
    }

    #[test]
    fn corpora_are_small() {
        for (name, _) in TARGETS {
            let files: Vec<_> = fs::read_dir(corpora().join(name)).unwrap().collect();
            let bytes: u64 =
                files.iter().map(|file| file.as_ref().unwrap().metadata().unwrap().len()).sum();
            assert!(
                files.len() <= corpus::MOST_INPUTS && bytes <= 40_000,
                "{name}: {} files",
                files.len()
            );
        }
    }

    #[test]
    fn a_target_that_is_none_is_answered_with_those_that_are() {
        assert_eq!(target_name("endpoint").as_deref(), Ok("endpoint"));
        assert!(target_name("endpoints").unwrap_err().contains("bootstrap_join, "));
    }
}

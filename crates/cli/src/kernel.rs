//! `mscclrs kernel`: from a crate of kernels of a user's own to files that a program loads.
//!
//! The pipeline is the one that makes the project's own device files, with the same checks: what is
//! written keeps the rules of device code. Nothing is installed unless that was asked for.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use mscclrs_ptx::{
    Architecture, BuildRequest, CUBIN_CAPABILITIES, Error, PTX_ARCHITECTURES, Package, Report,
    Tools,
};

use crate::options::{Kernel, KernelBuildOptions};
use crate::output::{say, written};
use crate::usage::usage;

/// Runs a command on kernels.
pub(crate) fn run(kernel: &Kernel) -> Result<ExitCode> {
    match kernel {
        Kernel::Build(options) => build(options),
    }
}

fn build(options: &KernelBuildOptions) -> Result<ExitCode> {
    let folder = &options.folder;
    let manifest = folder.join("Cargo.toml");
    if !manifest.is_file() {
        return Err(usage!(
            "'{}' is not a crate, since {} is not there; allowed is a folder that holds one",
            folder.display(),
            manifest.display()
        ));
    }
    let package = Package::find(&manifest).map_err(sort)?;
    // Beside the files of `cargo xtask ptx` where the crate is of the same workspace.
    let cache = package.target.join("tools");
    let tools = find_tools(&cache, options.install)?;
    let (architectures, cubins) = targets(&options.capabilities);
    let report = mscclrs_ptx::build(&BuildRequest {
        manifest: package.manifest.clone(),
        out: options.out.clone().unwrap_or_else(|| folder.join("device")),
        work: package.target.join("ptx").join(&package.library),
        architectures: &architectures,
        cubins: &cubins,
        draft: false,
        tools: &tools,
        progress: &say,
    })
    .map_err(sort)?;
    let mut stdout = std::io::stdout();
    written(stdout.write_all(summary(&report).as_bytes()), "the summary")?;
    Ok(ExitCode::SUCCESS)
}

fn find_tools(cache: &Path, install: bool) -> Result<Tools> {
    if install {
        return Tools::install(cache, &say).map_err(sort);
    }
    Tools::find_all(cache).map_err(|error| match error {
        Error::Missing { .. } => {
            usage!("{error}\nor let `mscclrs kernel build --install` install them")
        }
        other => other.into(),
    })
}

/// A mistake of the user's is told from a failure.
fn sort(error: Error) -> anyhow::Error {
    match error {
        Error::Missing { .. } | Error::Module { .. } => usage!("{error}"),
        other => other.into(),
    }
}

/// What to compile so that each capability has its cubin, and higher ones have PTX to start from; all
/// of it if none is named.
fn targets(capabilities: &[u32]) -> (Vec<Architecture>, Vec<u32>) {
    if capabilities.is_empty() {
        return (PTX_ARCHITECTURES.to_vec(), CUBIN_CAPABILITIES.to_vec());
    }
    let serves = |index: usize| {
        let next = PTX_ARCHITECTURES.get(index + 1).map_or(u32::MAX, |next| next.sm);
        capabilities.iter().any(|sm| (PTX_ARCHITECTURES[index].sm..next).contains(sm))
    };
    let chosen = PTX_ARCHITECTURES.iter().enumerate().filter(|(index, _)| serves(*index));
    let mut cubins = capabilities.to_vec();
    cubins.sort_unstable();
    cubins.dedup();
    (chosen.map(|(_, architecture)| *architecture).collect(), cubins)
}

fn say(step: &str) {
    say!("{step}");
}

/// Each file with its size, and what each entry takes.
fn summary(report: &Report) -> String {
    let mut text = String::new();
    for (path, bytes) in &report.files {
        text.push_str(&format!("{bytes:>9} {}\n", path.display()));
    }
    for (name, entry) in &report.manifest.entries {
        let mut registers: Vec<_> = entry.registers.iter().collect();
        // By number: sm_90 before sm_100.
        registers.sort_by_key(|(sm, _)| (sm.len(), *sm));
        let registers: Vec<_> =
            registers.iter().map(|(sm, registers)| format!("{registers} on {sm}")).collect();
        text.push_str(&format!(
            "{name}: at most {} lanes a block; registers a lane: {}\n",
            entry.max_threads,
            registers.join(", ")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(architectures: &[Architecture]) -> Vec<u32> {
        architectures.iter().map(|architecture| architecture.sm).collect()
    }

    #[test]
    fn each_capability_gets_the_ptx_that_serves_it() {
        for (asked, ptx, cubins) in [
            (&[][..], &[80, 90][..], &CUBIN_CAPABILITIES[..]),
            (&[90], &[90], &[90]),
            (&[89], &[80], &[89]),
            (&[120, 86, 86], &[80, 90], &[86, 120]),
        ] {
            let (architectures, assembled) = targets(asked);
            assert_eq!(capabilities(&architectures), ptx, "{asked:?}");
            assert_eq!(assembled, cubins, "{asked:?}");
        }
    }
}

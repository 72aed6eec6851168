//! rustc: from a crate's sources to PTX for one architecture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::error::At;
use crate::tools::run;
use crate::{Compiler, Error, Result};

/// What PTX is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Compute capability as a number, e.g. 90: the lowest that it runs on.
    pub sm: u32,
    /// Version of PTX, times ten.
    pub ptx: u32,
}

/// The two that serve all GPUs since Ampere: PTX 7.0 for compute capability 8.0, and PTX 8.2 for 9.0,
/// where what NVLink switches and NICs need begins.
pub const PTX_ARCHITECTURES: [Architecture; 2] =
    [Architecture { sm: 80, ptx: 70 }, Architecture { sm: 90, ptx: 82 }];

/// Compute capabilities that are worth a cubin: the driver takes 20 ms an entry to make one from PTX.
pub const CUBIN_CAPABILITIES: [u32; 6] = [80, 86, 89, 90, 100, 120];

const TARGET: &str = "nvptx64-nvidia-cuda";

/// The profile of device code; given on the command line, so that crates need not declare it.
const PROFILE: [&str; 7] = [
    "profile.ptx.inherits=\"release\"",
    "profile.ptx.opt-level=3",
    "profile.ptx.panic=\"abort\"",
    "profile.ptx.lto=\"fat\"",
    "profile.ptx.codegen-units=1",
    "profile.ptx.debug=false",
    "profile.ptx.overflow-checks=false",
];

impl Architecture {
    fn flags(self) -> [String; 5] {
        [
            format!("-Ctarget-cpu=sm_{}", self.sm),
            format!("-Ctarget-feature=+ptx{}", self.ptx),
            // This pass copies barriers into the arms of branches.
            "-Zmir-enable-passes=-JumpThreading".to_owned(),
            // Paths would make files differ between folders; panics are refused anyway.
            "-Zlocation-detail=none".to_owned(),
            // The PTX is the compiler's own output: there is nothing to link.
            "-Clinker=/bin/true".to_owned(),
        ]
    }

    /// Everything besides sources and tools that decides what is made.
    pub(crate) fn recipe(self) -> String {
        format!("{} {}", self.flags().join(" "), PROFILE.join(" "))
    }
}

/// What every crate of kernels depends on.
const DEVICE_CRATE: &str = "mscclrs-device";

/// A crate of kernels, as cargo sees it.
#[derive(Clone, Debug)]
pub struct Package {
    /// Its Cargo.toml.
    pub manifest: PathBuf,
    /// Its name.
    pub package: String,
    /// Name of its library: names the device files.
    pub library: String,
    /// Where its workspace begins: sources are named from here.
    pub root: PathBuf,
    /// Where cargo puts what it builds for it.
    pub target: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
    target_directory: PathBuf,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<MetadataTarget>,
    dependencies: Vec<MetadataDependency>,
}

#[derive(Deserialize)]
struct MetadataDependency {
    name: String,
}

#[derive(Deserialize)]
struct MetadataTarget {
    name: String,
    kind: Vec<String>,
}

impl Package {
    /// Asks cargo about a crate; `manifest` is its Cargo.toml. A crate that cannot have kernels is an
    /// [`Error::Module`].
    pub fn find(manifest: &Path) -> Result<Package> {
        let manifest = manifest.canonicalize().at(manifest)?;
        let mut command = cargo();
        command.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]);
        command.arg(&manifest);
        let text = run("reading the crate's manifest", &mut command)?;
        let line = text.lines().find(|line| line.starts_with('{')).unwrap_or("");
        let wrong = |why: String| Error::Module { place: manifest.display().to_string(), why };
        let metadata: Metadata = serde_json::from_str(line)
            .map_err(|error| wrong(format!("cargo metadata is not understood: {error}")))?;
        let package = metadata
            .packages
            .into_iter()
            .find(|package| package.manifest_path == manifest)
            .ok_or_else(|| {
                wrong("it holds no package; give a crate's own Cargo.toml".to_owned())
            })?;
        let library = package
            .targets
            .iter()
            .find(|target| target.kind.iter().any(|kind| kind == "lib" || kind == "rlib"))
            .ok_or_else(|| {
                wrong("the crate has no library; put its kernels in src/lib.rs".to_owned())
            })?;
        if !package.dependencies.iter().any(|dependency| dependency.name == DEVICE_CRATE) {
            return Err(wrong(format!(
                "the crate has no kernels, since it does not depend on {DEVICE_CRATE}; add it and \
                 declare kernels with its macro `kernels!`"
            )));
        }
        Ok(Package {
            manifest,
            package: package.name,
            library: library.name.replace('-', "_"),
            root: metadata.workspace_root,
            target: metadata.target_directory,
        })
    }
}

/// Compiles; gives the PTX as rustc wrote it, and the crate's and its path dependencies' sources that
/// went into it. `work` is a folder of this architecture's own, since cargo names the output alike
/// for all.
pub(crate) fn compile(
    compiler: &Compiler,
    package: &Package,
    architecture: Architecture,
    work: &Path,
) -> Result<(String, Vec<PathBuf>)> {
    let mut command = cargo();
    command.args(["rustc", "--lib", "--crate-type", "cdylib", "--profile", "ptx"]);
    command.args(["--target", TARGET, "--package", &package.package]);
    command.arg("--manifest-path").arg(&package.manifest);
    for setting in PROFILE {
        command.args(["--config", setting]);
    }
    if compiler.builds_core {
        command.arg("-Zbuild-std=core");
    }
    command.args(["--", "--emit=asm"]);
    command.env("RUSTC", &compiler.path);
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env("CARGO_TARGET_DIR", work);
    command.env("CARGO_ENCODED_RUSTFLAGS", architecture.flags().join("\x1f"));
    run(&format!("compiling {} for sm_{}", package.package, architecture.sm), &mut command)?;
    let folder = work.join(TARGET).join("ptx");
    let file = folder.join("deps").join(format!("{}.s", package.library));
    let text = fs::read_to_string(&file).at(&file)?;
    let file = folder.join(format!("{}.d", package.library));
    let sources = parse_dep_info(&fs::read_to_string(&file).at(&file)?);
    Ok((text, sources))
}

/// A cargo that what surrounds this process does not reach.
fn cargo() -> Command {
    let program = mscclrs_env::foreign::CARGO.path().unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    for name in [
        "CARGO_BUILD_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_INCREMENTAL",
        "CARGO_MAKEFLAGS",
        "CARGO_TARGET_NVPTX64_NVIDIA_CUDA_RUSTFLAGS",
        "MAKEFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTDOCFLAGS",
        "RUSTFLAGS",
    ] {
        command.env_remove(name);
    }
    command
}

/// The files after the first colon of cargo's dep-info; spaces in names are written `\ `.
fn parse_dep_info(text: &str) -> Vec<PathBuf> {
    let line = text.lines().next().unwrap_or("");
    let Some((_, files)) = line.split_once(": ") else { return Vec::new() };
    let mut names = vec![String::new()];
    let mut characters = files.chars();
    while let Some(character) = characters.next() {
        let last = names.len() - 1;
        match character {
            '\\' => names[last].extend(characters.next()),
            ' ' => names.push(String::new()),
            other => names[last].push(other),
        }
    }
    names.into_iter().filter(|name| !name.is_empty()).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dep_info_with_spaces_is_read() {
        let files = parse_dep_info("/t/k.ptx: /a/lib.rs /a\\ b/c.rs\n\nother: /x\n");
        assert_eq!(files, [PathBuf::from("/a/lib.rs"), PathBuf::from("/a b/c.rs")]);
        assert!(parse_dep_info("").is_empty());
    }
}

//! The tools: a rustc that can make PTX, ptxas, and Python's zstd.
//!
//! Finding never changes the machine. Installing uses the system's own package manager, as root only,
//! and a Python environment in a cache folder of the caller's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mscclrs_env as env;

use crate::error::At;
use crate::{Error, Result};

/// The oldest rustc that compiles the device crates.
const OLDEST: (u32, u32) = (1, 95);
/// ptxas whose cubins old drivers load too, and a zstd that compresses well.
const PYTHON_PACKAGES: [&str; 2] = ["nvidia-cuda-nvcc-cu12==12.9.86", "zstandard==0.25.0"];
const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];

/// A rustc that makes PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiler {
    /// The program.
    pub path: PathBuf,
    /// What it calls itself.
    pub version: String,
    /// Its `core` for GPUs is to be compiled; else it has it ready.
    pub builds_core: bool,
}

/// ptxas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembler {
    /// The program.
    pub path: PathBuf,
    /// Its version, e.g. 12.9.86.
    pub version: String,
}

/// What the pipeline runs.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The compiler.
    pub compiler: Compiler,
    /// Without it a build makes PTX only, which the driver compiles when it is loaded.
    pub assembler: Option<Assembler>,
    /// A Python with the module zstandard; without it files are about three times as large.
    pub python: Option<PathBuf>,
}

impl Tools {
    /// Looks for the tools, Python's in the environment under `cache`. A missing compiler is an
    /// error; the others are optional, see [`require_all`](Self::require_all).
    pub fn find(cache: &Path) -> Result<Tools> {
        let compiler =
            find_compiler().map_err(|missing| Error::Missing { missing: vec![missing] })?;
        Ok(Tools { compiler, assembler: find_assembler(cache), python: find_python(cache) })
    }

    /// Looks for all the tools; an error names every one that is missing.
    pub fn find_all(cache: &Path) -> Result<Tools> {
        let mut missing = Vec::new();
        let (assembler, python) = (find_assembler(cache), find_python(cache));
        let compiler = find_compiler().map_err(|why| missing.push(why));
        if assembler.is_none() || python.is_none() {
            missing.push(python_hint(cache));
        }
        match compiler {
            Ok(compiler) if missing.is_empty() => Ok(Tools { compiler, assembler, python }),
            _ => Err(Error::Missing { missing }),
        }
    }

    /// An error that says what to install if the assembler or zstd is missing.
    pub fn require_all(&self, cache: &Path) -> Result<()> {
        if self.assembler.is_some() && self.python.is_some() {
            return Ok(());
        }
        Err(Error::Missing { missing: vec![python_hint(cache)] })
    }

    /// Installs what [`find`](Self::find) does not find: Debian's compiler as root, Python's packages
    /// under `cache` as anybody. Says each step to `progress`; blocks for minutes.
    pub fn install(cache: &Path, progress: &dyn Fn(&str)) -> Result<Tools> {
        let mut missing = Vec::new();
        if let Err(why) = find_compiler() {
            let chosen = env::DEVICE_RUSTC.path().is_some();
            if !chosen && is_root() && has_program("apt-get") {
                progress(&format!("installing {}", DEBIAN_PACKAGES.join(" ")));
                apt_get(&DEBIAN_PACKAGES)?;
            } else {
                missing.push(why);
            }
        }
        if find_assembler(cache).is_none() || find_python(cache).is_none() {
            if !has_program("python3") && is_root() && has_program("apt-get") {
                progress("installing python3");
                apt_get(&["python3", "python3-venv"])?;
            }
            if has_program("python3") {
                progress(&format!("installing {}", PYTHON_PACKAGES.join(" ")));
                make_environment(cache)?;
            } else {
                missing.push(python_hint(cache));
            }
        }
        if !missing.is_empty() {
            return Err(Error::Missing { missing });
        }
        let tools = Tools::find(cache)?;
        tools.require_all(cache)?;
        Ok(tools)
    }
}

fn find_compiler() -> std::result::Result<Compiler, String> {
    let mut seen = Vec::new();
    for path in compiler_candidates() {
        match probe_compiler(&path) {
            Ok(compiler) => return Ok(compiler),
            Err(why) => seen.push(format!("{}: {why}", path.display())),
        }
    }
    let seen = if seen.is_empty() { "none found".to_owned() } else { seen.join("; ") };
    Err(format!(
        "  a Rust compiler for GPUs ({seen}): on Debian `apt-get install {}` as root, elsewhere \
         `rustup toolchain install nightly` and `rustup target add --toolchain nightly \
         nvptx64-nvidia-cuda`; {} names another one",
        DEBIAN_PACKAGES.join(" "),
        env::DEVICE_RUSTC.name
    ))
}

fn compiler_candidates() -> Vec<PathBuf> {
    if let Some(path) = env::DEVICE_RUSTC.path() {
        return vec![path];
    }
    let mut candidates = vec![PathBuf::from("/usr/bin/rustc")];
    for arguments in [&["which", "rustc", "--toolchain", "nightly"][..], &["which", "rustc"]] {
        if let Some(path) = output_of("rustup", arguments) {
            candidates.push(path.trim().into());
        }
    }
    candidates.retain(|path| path.is_file());
    candidates
}

fn probe_compiler(path: &Path) -> std::result::Result<Compiler, String> {
    let ask = |arguments: &[&str]| output_of(path, arguments);
    let version = ask(&["--version"]).ok_or("does not run")?.trim().to_owned();
    if !recent(&version) {
        return Err(format!("{version} is older than {}.{}", OLDEST.0, OLDEST.1));
    }
    let target = "nvptx64-nvidia-cuda";
    let cpus = ask(&["--print", "target-cpus", "--target", target]).unwrap_or_default();
    if !cpus.contains("sm_90") {
        return Err(format!("{version} does not know sm_90"));
    }
    let libraries = ask(&["--print", "target-libdir", "--target", target]).unwrap_or_default();
    let ready = fs::read_dir(libraries.trim()).is_ok_and(|mut files| {
        files.any(|file| {
            file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("libcore-"))
        })
    });
    let sysroot = ask(&["--print", "sysroot"]).unwrap_or_default();
    let source = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/Cargo.toml");
    if !ready && !source.is_file() {
        return Err(format!("{version} has neither `core` for {target} nor its source"));
    }
    Ok(Compiler { path: path.to_owned(), version, builds_core: !ready })
}

fn recent(version: &str) -> bool {
    let number = version.split(' ').nth(1).unwrap_or("");
    let mut parts = number.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= OLDEST
}

fn environment(cache: &Path) -> PathBuf {
    cache.join("python")
}

fn find_assembler(cache: &Path) -> Option<Assembler> {
    let mut candidates = Vec::new();
    if let Ok(folders) = fs::read_dir(environment(cache).join("lib")) {
        for folder in folders.flatten() {
            candidates.push(folder.path().join("site-packages/nvidia/cuda_nvcc/bin/ptxas"));
        }
    }
    for variable in [&env::foreign::CUDA_HOME, &env::foreign::CUDA_PATH] {
        if let Some(home) = variable.path() {
            candidates.push(home.join("bin/ptxas"));
        }
    }
    candidates.extend([PathBuf::from("ptxas"), PathBuf::from("/usr/local/cuda/bin/ptxas")]);
    candidates.into_iter().find_map(|path| {
        let text = output_of(&path, &["--version"])?;
        let version = text.split(", V").nth(1)?.split_whitespace().next()?.to_owned();
        Some(Assembler { path, version })
    })
}

fn find_python(cache: &Path) -> Option<PathBuf> {
    let path = environment(cache).join("bin/python");
    output_of(&path, &["-c", "import zstandard"]).map(|_| path)
}

fn python_hint(cache: &Path) -> String {
    let environment = environment(cache);
    format!(
        "  ptxas 12.9 and zstd: `python3 -m venv {0} && {0}/bin/pip install {1}` (on Debian python3 \
         and python3-venv by apt-get)",
        environment.display(),
        PYTHON_PACKAGES.join(" ")
    )
}

fn make_environment(cache: &Path) -> Result<()> {
    let environment = environment(cache);
    fs::create_dir_all(cache).at(cache)?;
    let make = || {
        let mut command = Command::new("python3");
        command.args(["-m", "venv", "--clear"]).arg(&environment);
        run("making a Python environment", &mut command)
    };
    if let Err(error) = make() {
        // Debian has the module that makes environments in a package of its own.
        if !is_root() || !has_program("apt-get") {
            return Err(error);
        }
        apt_get(&["python3-venv"])?;
        make()?;
    }
    let mut command = Command::new(environment.join("bin/pip"));
    command.args(["--disable-pip-version-check", "install", "--quiet"]).args(PYTHON_PACKAGES);
    run("installing Python packages", &mut command)?;
    Ok(())
}

fn apt_get(packages: &[&str]) -> Result<()> {
    let install = || {
        let mut command = Command::new("apt-get");
        command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        run(&format!("installing {}", packages.join(" ")), &mut command)
    };
    if install().is_ok() {
        return Ok(());
    }
    run("updating package lists", Command::new("apt-get").arg("update"))?;
    install().map(|_| ())
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn has_program(name: &str) -> bool {
    let Some(path) = env::foreign::PATH.raw() else { return false };
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

fn output_of(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    // Several of these are asked only whether they can do something.
    command.args(arguments).env("RUSTC_BOOTSTRAP", "1").stdin(Stdio::null());
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command to its end and gives what it wrote on both outputs.
pub(crate) fn run(what: &str, command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().at(PathBuf::from(command.get_program()))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(text);
    }
    Err(Error::Command {
        what: what.to_owned(),
        status: output.status.to_string(),
        output: text,
        command: command_line(command),
    })
}

fn command_line(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            let value = value.to_string_lossy().replace('\x1f', " ");
            words.push(format!("{}='{value}'", name.to_string_lossy()));
        }
    }
    words.push(command.get_program().to_string_lossy().into_owned());
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(recent("rustc 1.96.0 (ac68faa20 2026-05-25)"));
        assert!(recent("rustc 1.100.0-nightly (abc 2027-01-01)"));
        assert!(!recent("rustc 1.63.0 (4b91a6ea7 2022-08-08)"));
        assert!(!recent("gcc"));
    }

    #[test]
    fn failed_command_says_how_to_run_it_again() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo why; exit 3"]).env("KEY", "value");
        let error = run("trying", &mut command).unwrap_err().to_string();
        assert!(error.contains("trying failed"), "{error}");
        assert!(error.contains("why") && error.contains("KEY='value' sh -c"), "{error}");
    }
}

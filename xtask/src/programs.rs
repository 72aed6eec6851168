//! Programs of others that the tests use: launchers, whose ranks they let meet, and what joins network
//! namespaces.

use std::process::{Command, Stdio};

use crate::shell::{run, succeeds};

struct Program {
    name: &'static str,
    /// Names of its program, the option that makes it say what it is, and a word that it says then.
    programs: &'static [&'static str],
    asked: &'static str,
    words: &'static str,
    debian: &'static str,
    /// Another way to get it.
    or: Option<&'static str>,
    /// What is so large that its tests do without: they say that they have not run.
    optional: bool,
}

const PROGRAMS: [Program; 4] = [
    Program {
        name: "mpirun of Open MPI",
        programs: &["mpirun.openmpi", "mpirun"],
        asked: "--version",
        words: "Open MPI",
        debian: "openmpi-bin",
        or: None,
        optional: false,
    },
    Program {
        name: "mpiexec of MPICH",
        programs: &["mpiexec.hydra", "mpiexec"],
        asked: "--version",
        words: "HYDRA",
        debian: "mpich",
        or: None,
        optional: false,
    },
    // By far the largest: 180 packages of 150 MB, which take three quarters of a minute. What PyPI has for
    // x86-64 is more than 500 MB, and does not start without the libraries of CUDA, which are more again.
    Program {
        name: "torchrun of PyTorch",
        programs: &["torchrun"],
        asked: "--help",
        words: "--rdzv",
        debian: "python3-torch",
        or: Some("pip install torch"),
        optional: true,
    },
    Program {
        name: "ip of iproute2",
        programs: &["ip"],
        asked: "-V",
        words: "iproute2",
        debian: "iproute2",
        or: None,
        optional: false,
    },
];

/// Installs those that are not here, as root where there is apt-get; gives what is missing then, and how
/// to get it. Of what is optional it tells that.
pub(crate) fn install() -> Vec<String> {
    // What is optional by itself, and last: where it does not come, the others are here.
    let (optional, needed): (Vec<_>, Vec<_>) = PROGRAMS.iter().partition(|one| one.optional);
    let missing = install_all(&needed);
    for line in install_all(&optional) {
        eprintln!("not here, so its tests will say that they did not run:\n{line}");
    }
    missing
}

fn install_all(programs: &[&Program]) -> Vec<String> {
    let missing = || programs.iter().filter(|program| !program.is_here());
    let packages: Vec<_> = missing().map(|program| program.debian).collect();
    if !packages.is_empty() && is_root() && succeeds(Command::new("apt-get").arg("--version")) {
        let install = || {
            let mut command = Command::new("apt-get");
            command.args(["install", "-qq", "--yes", "--no-install-recommends"]);
            command.args(RETRY).args(&packages);
            run(command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()))
        };
        // The lists may be old, or not there. What fails is missing, and told below.
        if install().is_err() && run(Command::new("apt-get").arg("update").args(RETRY)).is_ok() {
            let _ = install();
        }
    }
    missing().map(|program| program.how_to_get()).collect()
}

/// What fails to download is tried again, as networks fail for a moment.
const RETRY: [&str; 2] = ["-o", "Acquire::Retries=3"];

impl Program {
    fn is_here(&self) -> bool {
        self.programs.iter().any(|program| {
            let output = Command::new(program).arg(self.asked).stdin(Stdio::null()).output();
            output.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains(self.words))
        })
    }

    fn how_to_get(&self) -> String {
        let Program { name, debian, .. } = self;
        let or = self.or.map_or(String::new(), |command| format!(", or `{command}`"));
        format!("  {name}: on Debian `apt-get install {debian}` as root{or}")
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cargo_by(asked: &'static str, words: &'static str) -> Program {
        let programs = &["nothing-here", "cargo"];
        let (debian, or, optional) = ("cargo", None, false);
        Program { name: "cargo", programs, asked, words, debian, or, optional }
    }

    #[test]
    fn a_program_is_known_by_what_it_says_of_itself() {
        assert!(cargo_by("--version", "cargo").is_here());
        assert!(cargo_by("--help", "Usage").is_here());
        assert!(!cargo_by("--version", "Open MPI").is_here());
    }

    #[test]
    fn what_is_missing_is_told_with_every_way_to_get_it() {
        let cargo = cargo_by("--version", "cargo");
        let debian = "  cargo: on Debian `apt-get install cargo` as root";
        assert_eq!(cargo.how_to_get(), debian);
        let or = Some("pip install cargo");
        assert_eq!(
            Program { or, ..cargo }.how_to_get(),
            format!("{debian}, or `pip install cargo`")
        );
    }
}

//! Launchers of others, whose ranks the tests let meet.

use std::process::{Command, Stdio};

use crate::shell::{run, succeeds};

struct Launcher {
    name: &'static str,
    /// Names of its program, and what its version says.
    programs: &'static [&'static str],
    words: &'static str,
    debian: &'static str,
}

const LAUNCHERS: [Launcher; 2] = [
    Launcher {
        name: "mpirun of Open MPI",
        programs: &["mpirun.openmpi", "mpirun"],
        words: "Open MPI",
        debian: "openmpi-bin",
    },
    Launcher {
        name: "mpiexec of MPICH",
        programs: &["mpiexec.hydra", "mpiexec"],
        words: "HYDRA",
        debian: "mpich",
    },
];

/// Installs those that are not here, as root where there is apt-get; gives what is missing then, and how
/// to get it.
pub(crate) fn install() -> Vec<String> {
    let missing = || LAUNCHERS.iter().filter(|launcher| !launcher.is_here());
    let packages: Vec<_> = missing().map(|launcher| launcher.debian).collect();
    if !packages.is_empty() && is_root() && succeeds(Command::new("apt-get").arg("--version")) {
        let install = || {
            let mut command = Command::new("apt-get");
            command.args(["install", "-qq", "--yes", "--no-install-recommends"]).args(&packages);
            run(command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()))
        };
        // The lists may be old, or not there. What fails is missing, and told below.
        if install().is_err() && run(Command::new("apt-get").arg("update")).is_ok() {
            let _ = install();
        }
    }
    missing()
        .map(|launcher| {
            let Launcher { name, debian, .. } = launcher;
            format!("  {name}: on Debian `apt-get install {debian}` as root")
        })
        .collect()
}

impl Launcher {
    fn is_here(&self) -> bool {
        self.programs.iter().any(|program| {
            let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
            output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(self.words))
        })
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_what_it_says_of_itself() {
        let with =
            |words| Launcher { name: "", programs: &["nothing-here", "cargo"], words, debian: "" };
        assert!(with("cargo").is_here());
        assert!(!with("Open MPI").is_here());
    }
}

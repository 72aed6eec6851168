//! Programs of others that the tests use: launchers, whose ranks they let meet, and what joins network
//! namespaces.

use std::process::{Command, Stdio};

use crate::shell::{run, succeeds};

struct Program {
    name: &'static str,
    /// Names of its program, and what its version says.
    programs: &'static [&'static str],
    words: &'static str,
    debian: &'static str,
}

const PROGRAMS: [Program; 3] = [
    Program {
        name: "mpirun of Open MPI",
        programs: &["mpirun.openmpi", "mpirun"],
        words: "Open MPI",
        debian: "openmpi-bin",
    },
    Program {
        name: "mpiexec of MPICH",
        programs: &["mpiexec.hydra", "mpiexec"],
        words: "HYDRA",
        debian: "mpich",
    },
    Program { name: "ip of iproute2", programs: &["ip"], words: "iproute2", debian: "iproute2" },
];

/// Installs those that are not here, as root where there is apt-get; gives what is missing then, and how
/// to get it.
pub(crate) fn install() -> Vec<String> {
    let missing = || PROGRAMS.iter().filter(|program| !program.is_here());
    let packages: Vec<_> = missing().map(|program| program.debian).collect();
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
        .map(|program| {
            let Program { name, debian, .. } = program;
            format!("  {name}: on Debian `apt-get install {debian}` as root")
        })
        .collect()
}

impl Program {
    fn is_here(&self) -> bool {
        self.programs.iter().any(|program| {
            // Not every program has the long option.
            ["--version", "-V"].iter().any(|version| {
                let output = Command::new(program).arg(version).stdin(Stdio::null()).output();
                output.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains(self.words))
            })
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
            |words| Program { name: "", programs: &["nothing-here", "cargo"], words, debian: "" };
        assert!(with("cargo").is_here());
        assert!(!with("Open MPI").is_here());
    }
}

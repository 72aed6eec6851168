//! What a launcher says: rank, number of ranks, where ranks meet.
//!
//! Launchers are looked for in a fixed order and the first that left a trace decides; a trace that
//! is not whole is an error, never a guess. An empty value is as good as none.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod job;
mod slurm;

use std::fmt;

use crate::bootstrap::{Address, Config};
use crate::env::{self, Source, Variable, foreign};
use crate::{Error, Result};

pub(crate) use job::job_secret;

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// MPICH and its relatives, by PMI.
    Mpich,
    /// `mscclrs launch`, or a user who sets MSCCLRS_RANK.
    Mscclrs,
    /// Open MPI.
    OpenMpi,
    /// Slurm's srun.
    Slurm,
    /// torchrun, or whatever sets RANK and WORLD_SIZE.
    Torch,
}

/// What a launcher says about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchEnvironment {
    /// Who says it.
    pub launcher: Launcher,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// This rank's number on its host, where known.
    pub local_rank: Option<u32>,
    /// Number of ranks on this host, where known.
    pub local_world_size: Option<u32>,
    /// Where ranks meet, where known.
    pub rendezvous: Option<Address>,
}

struct Names {
    launcher: Launcher,
    rank: &'static Variable,
    world_size: &'static Variable,
    local_rank: &'static [&'static Variable],
    local_world_size: &'static [&'static Variable],
}

/// In the order in which they are looked for.
static LAUNCHERS: [Names; 5] = [
    Names {
        launcher: Launcher::Mscclrs,
        rank: &env::RANK,
        world_size: &env::WORLD_SIZE,
        local_rank: &[&env::LOCAL_RANK],
        local_world_size: &[&env::LOCAL_WORLD_SIZE],
    },
    Names {
        launcher: Launcher::Torch,
        rank: &foreign::RANK,
        world_size: &foreign::WORLD_SIZE,
        local_rank: &[&foreign::LOCAL_RANK],
        local_world_size: &[&foreign::LOCAL_WORLD_SIZE],
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: &foreign::OMPI_COMM_WORLD_RANK,
        world_size: &foreign::OMPI_COMM_WORLD_SIZE,
        local_rank: &[&foreign::OMPI_COMM_WORLD_LOCAL_RANK],
        local_world_size: &[&foreign::OMPI_COMM_WORLD_LOCAL_SIZE],
    },
    Names {
        launcher: Launcher::Mpich,
        rank: &foreign::PMI_RANK,
        world_size: &foreign::PMI_SIZE,
        local_rank: &[&foreign::MPI_LOCALRANKID, &foreign::PMI_LOCAL_RANK],
        local_world_size: &[&foreign::MPI_LOCALNRANKS, &foreign::PMI_LOCAL_SIZE],
    },
    Names {
        launcher: Launcher::Slurm,
        rank: &foreign::SLURM_PROCID,
        world_size: &foreign::SLURM_STEP_NUM_TASKS,
        local_rank: &[&foreign::SLURM_LOCALID],
        local_world_size: &[],
    },
];

impl LaunchEnvironment {
    /// What the launcher of this process says; none if there was none.
    pub fn detect() -> Result<Option<LaunchEnvironment>> {
        LaunchEnvironment::read(Source::PROCESS)
    }

    /// What this rank needs to take part; an error if the launcher did not say where ranks meet.
    pub fn config(&self) -> Result<Config> {
        match &self.rendezvous {
            Some(address) => Ok(Config::new(self.rank, self.world_size, address.clone())),
            None => Err(Error::EnvironmentMissing {
                name: env::ADDRESS.name.into(),
                because: format!("a rank started by {}", self.launcher),
                allowed: format!("allowed is {}", env::ADDRESS.allowed()),
            }),
        }
    }

    pub(crate) fn read(source: Source<'_>) -> Result<Option<LaunchEnvironment>> {
        let present = |names: &&Names| {
            let rank = names.rank.find(source).is_some();
            let world_size = names.world_size.value(source);
            match names.launcher {
                // A batch script has the first without being a task of a step; and a step of one
                // task is a shell as often as not.
                Launcher::Slurm => rank && world_size.is_some_and(|n| n != "1"),
                Launcher::Mpich => (rank || world_size.is_some()) && !is_slurms_pmi(source),
                _ => rank || world_size.is_some(),
            }
        };
        let Some(names) = LAUNCHERS.iter().find(present) else { return Ok(None) };
        let size = number(source, names.world_size, 1..=u32::MAX, "a whole number, at least 1")?
            .ok_or_else(|| missing(names.world_size, names.rank, "it is the number of ranks"))?;
        let below = format!("a whole number below {}={size}", names.world_size.name);
        let rank = number(source, names.rank, 0..=size - 1, &below)?.ok_or_else(|| {
            missing(names.rank, names.world_size, "it is the number of this rank")
        })?;
        let mut local_world_size = None;
        for name in names.local_world_size {
            let allowed = format!("a whole number from 1 to {}={size}", names.world_size.name);
            local_world_size = local_world_size.or(number(source, name, 1..=size, &allowed)?);
        }
        if names.launcher == Launcher::Slurm {
            let node = number(source, &foreign::SLURM_NODEID, 0..=u32::MAX, "a whole number")?;
            local_world_size = foreign::SLURM_STEP_TASKS_PER_NODE
                .value(source)
                .and_then(|list| slurm::tasks_of_node(&list, node.unwrap_or(0)));
        }
        let mut local_rank = None;
        for name in names.local_rank {
            let limit = local_world_size.unwrap_or(size);
            let allowed = format!("a whole number below the number of local ranks, {limit}");
            local_rank = local_rank.or(number(source, name, 0..=limit - 1, &allowed)?);
        }
        let mut found = LaunchEnvironment {
            launcher: names.launcher,
            rank,
            world_size: size,
            local_rank,
            local_world_size,
            rendezvous: None,
        };
        found.rendezvous = found.find_rendezvous(source)?;
        Ok(Some(found))
    }

    fn find_rendezvous(&self, source: Source<'_>) -> Result<Option<Address>> {
        if let Some(address) = address(source)? {
            return Ok(Some(address));
        }
        if let Some(address) = master_address(source)? {
            return Ok(Some(address));
        }
        let Some(port) = job::job_port(source) else { return Ok(None) };
        if self.local_world_size == Some(self.world_size) {
            return Address::from_parts("127.0.0.1", port).map(Some);
        }
        let nodes = [&foreign::SLURM_STEP_NODELIST, &foreign::SLURM_JOB_NODELIST];
        match (self.launcher, nodes.into_iter().find_map(|nodes| nodes.value(source))) {
            (Launcher::Slurm, Some(list)) => {
                slurm::first_host(&list).map(|host| Address::from_parts(&host, port)).transpose()
            }
            _ => Ok(None),
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Mpich => "MPICH",
            Launcher::Mscclrs => "mscclrs",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Slurm => "Slurm",
            Launcher::Torch => "torchrun",
        })
    }
}

/// MSCCLRS_ADDRESS.
pub(crate) fn address(source: Source<'_>) -> Result<Option<Address>> {
    let Some((name, value)) = env::ADDRESS.find(source) else { return Ok(None) };
    value.parse().map(Some).map_err(|error: Error| Error::Environment {
        name: name.into(),
        value: value.clone(),
        allowed: error.to_string(),
    })
}

/// MASTER_ADDR and the port after MASTER_PORT, which is PyTorch's own.
fn master_address(source: Source<'_>) -> Result<Option<Address>> {
    let port = number(source, &foreign::MASTER_PORT, 1..=65534, "a port from 1 to 65534")?;
    match (foreign::MASTER_ADDR.value(source), port) {
        (Some(host), Some(port)) => {
            let address = Address::from_parts(host.trim(), port as u16 + 1);
            address.map(Some).map_err(|error| Error::Environment {
                name: foreign::MASTER_ADDR.name.into(),
                value: host,
                allowed: error.to_string(),
            })
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(missing(
            &foreign::MASTER_PORT,
            &foreign::MASTER_ADDR,
            "together they say where ranks meet",
        )),
        (None, Some(_)) => Err(missing(
            &foreign::MASTER_ADDR,
            &foreign::MASTER_PORT,
            "together they say where ranks meet",
        )),
    }
}

fn number(
    source: Source<'_>,
    variable: &'static Variable,
    range: std::ops::RangeInclusive<u32>,
    allowed: &str,
) -> Result<Option<u32>> {
    let Some((name, value)) = variable.find(source) else { return Ok(None) };
    match value.trim().parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        _ => Err(Error::Environment {
            name: name.into(),
            value,
            allowed: format!("allowed is {allowed}"),
        }),
    }
}

fn missing(variable: &Variable, because: &Variable, allowed: &str) -> Error {
    Error::EnvironmentMissing {
        name: variable.name.into(),
        because: because.name.into(),
        allowed: format!("{allowed}; set both or neither"),
    }
}

/// Whether Slurm's variables speak of the same ranks as PMI's, which srun sets too.
fn is_slurms_pmi(source: Source<'_>) -> bool {
    let same = |pmi: &Variable, slurm: &Variable| {
        pmi.value(source).is_some_and(|value| slurm.value(source) == Some(value))
    };
    same(&foreign::PMI_RANK, &foreign::SLURM_PROCID)
        && same(&foreign::PMI_SIZE, &foreign::SLURM_STEP_NUM_TASKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<LaunchEnvironment>> {
        LaunchEnvironment::read(Source::new(&|name| {
            let found = pairs.iter().find(|(given, _)| *given == name);
            found.map(|(_, value)| value.to_string())
        }))
    }

    #[test]
    fn each_launcher_is_understood() {
        let mscclrs = read(&[
            ("MSCCLRS_RANK", "1"),
            ("MSCCLRS_WORLD_SIZE", "4"),
            ("MSCCLRS_LOCAL_RANK", "1"),
            ("MSCCLRS_ADDRESS", "eth0:[fe80::1%eth0]:7"),
            ("RANK", "3"),
        ]);
        let mscclrs = mscclrs.unwrap().unwrap();
        assert_eq!((mscclrs.launcher, mscclrs.rank, mscclrs.world_size), (Launcher::Mscclrs, 1, 4));
        assert_eq!(mscclrs.rendezvous.unwrap().to_string(), "eth0:[fe80::1%eth0]:7");

        let torch = read(&[
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "::1"),
            ("MASTER_PORT", "29500"),
        ]);
        let torch = torch.unwrap().unwrap();
        assert_eq!((torch.local_rank, torch.local_world_size), (Some(1), Some(4)));
        assert_eq!(torch.rendezvous.unwrap().to_string(), "[::1]:29501");

        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "prterun-1@1"),
        ];
        let open_mpi = read(&mpi).unwrap().unwrap();
        assert_eq!(open_mpi.launcher, Launcher::OpenMpi);
        let address = open_mpi.rendezvous.unwrap();
        assert!(address.is_loopback() && address.port >= 15_000 && address.port < 30_000);
        // On several hosts nobody says where.
        let far = [&[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")], &mpi[..]].concat();
        let error = read(&far).unwrap().unwrap().config().unwrap_err().to_string();
        assert!(error.contains("MSCCLRS_ADDRESS is not set") && error.contains("Open MPI"));

        let mpich = read(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1")]);
        assert_eq!(mpich.unwrap().unwrap().local_rank, Some(1));

        let slurm = read(&[
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "gpu[07-08]"),
        ]);
        let slurm = slurm.unwrap().unwrap();
        assert_eq!((slurm.local_rank, slurm.local_world_size), (Some(1), Some(2)));
        assert!(slurm.rendezvous.unwrap().to_string().starts_with("gpu07:"));
    }

    #[test]
    fn each_host_of_an_uneven_step_of_slurm_knows_its_own_number_of_ranks() {
        let step = |node, local| {
            let found = read(&[
                ("SLURM_PROCID", "6"),
                ("SLURM_STEP_NUM_TASKS", "7"),
                ("SLURM_LOCALID", local),
                ("SLURM_NODEID", node),
                ("SLURM_STEP_TASKS_PER_NODE", "3(x2),1"),
            ]);
            found.map(|found| found.unwrap().local_world_size)
        };
        assert_eq!(step("1", "2").unwrap(), Some(3));
        assert_eq!(step("2", "0").unwrap(), Some(1));
        assert!(step("2", "2").is_err());
    }

    #[test]
    fn ranks_that_srun_starts_with_pmi_are_slurms() {
        let srun = [
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_LOCALID", "1"),
            ("PMI_RANK", "3"),
            ("PMI_SIZE", "4"),
        ];
        let found = read(&srun).unwrap().unwrap();
        assert_eq!((found.launcher, found.local_rank), (Launcher::Slurm, Some(1)));
        // Hydra inside an allocation starts its own processes by srun, one a host.
        let hydra = [&[("PMI_RANK", "5"), ("PMI_SIZE", "8"), ("MPI_LOCALRANKID", "1")], &srun[..3]];
        let found = read(&hydra.concat()).unwrap().unwrap();
        assert_eq!((found.launcher, found.rank), (Launcher::Mpich, 5));
    }

    #[test]
    fn without_a_launcher_there_is_none() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[("RANK", ""), ("WORLD_SIZE", "")]).unwrap(), None);
        // A batch script, and a shell that srun started.
        assert_eq!(read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]).unwrap(), None);
        let shell = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert_eq!(read(&shell).unwrap(), None);
    }

    #[test]
    fn errors_name_the_variable_its_value_and_what_is_allowed() {
        let whole = [("RANK", "0"), ("WORLD_SIZE", "2")];
        let with = |more: &[(&'static str, &'static str)]| [more, &whole[..]].concat();
        type Case<'a> = (Vec<(&'a str, &'a str)>, &'a [&'a str]);
        let table: Vec<Case<'_>> = vec![
            (vec![("RANK", "0")], &["WORLD_SIZE is not set, but RANK needs it"]),
            (vec![("WORLD_SIZE", "2")], &["RANK is not set, but WORLD_SIZE needs it"]),
            (with(&[("RANK", "2")]), &["RANK=2", "below WORLD_SIZE=2"]),
            (with(&[("RANK", "-1")]), &["RANK=-1", "whole number"]),
            (with(&[("WORLD_SIZE", "0")]), &["WORLD_SIZE=0", "at least 1"]),
            (with(&[("WORLD_SIZE", "many")]), &["WORLD_SIZE=many"]),
            (with(&[("LOCAL_RANK", "2")]), &["LOCAL_RANK=2", "local ranks, 2"]),
            (with(&[("LOCAL_WORLD_SIZE", "3")]), &["LOCAL_WORLD_SIZE=3", "from 1 to"]),
            (with(&[("MASTER_ADDR", "h")]), &["MASTER_PORT is not set, but MASTER_ADDR needs it"]),
            (with(&[("MASTER_PORT", "5")]), &["MASTER_ADDR is not set, but MASTER_PORT needs it"]),
            (
                with(&[("MASTER_ADDR", "h"), ("MASTER_PORT", "65535")]),
                &["MASTER_PORT=65535", "65534"],
            ),
            (
                with(&[("MASTER_ADDR", "h h"), ("MASTER_PORT", "5")]),
                &["MASTER_ADDR=h h", "host name"],
            ),
            (with(&[("MSCCLRS_ADDRESS", "h")]), &["MSCCLRS_ADDRESS=h", "port is missing"]),
        ];
        for (pairs, parts) in table {
            let error = read(&pairs).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{pairs:?}: {error}");
        }
    }
}

//! What names the job that this process is a rank of: equal on all of its ranks, other for other jobs.
//!
//! A launcher that was started by another is asked first: inside one allocation of Slurm there may be
//! several jobs of mpirun at once, and what they inherit of Slurm differs from host to host.

use std::fs;

use crate::bootstrap::Secret;
use crate::env::{Source, Variable, foreign};

/// What names a job of each launcher that starts ranks itself.
static LAUNCHERS: [&Variable; 5] = [
    &foreign::TORCHELASTIC_RUN_ID,
    &foreign::PMIX_NAMESPACE,
    &foreign::OMPI_MCA_ess_base_jobid,
    &foreign::PMI_JOBID,
    &foreign::PMI_ID_NAMESPACE,
];

/// What names a job of each scheduler, in which a launcher may have been started.
static SCHEDULERS: [&Variable; 4] = [
    &foreign::SLURM_JOB_ID,
    &foreign::PBS_JOBID,
    &foreign::LSB_JOBID,
    &foreign::JOB_COMPLETION_UID,
];

/// As the system cuts a process's name.
const HYDRA: &str = "hydra_pmi_proxy";

/// A secret made from the job id: keeps other jobs out, not one who can guess the id.
pub(crate) fn job_secret(source: Source<'_>) -> Option<Secret> {
    job_id(source).map(|id| Secret::new(format!("job {id}")))
}

/// A port below those that systems hand out, other for other jobs.
pub(super) fn job_port(source: Source<'_>) -> Option<u16> {
    let id = job_id(source)?;
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Some(15_000 + ((hash >> 32) % 15_000) as u16)
}

/// The job's name, with what gave it.
fn job_id(source: Source<'_>) -> Option<String> {
    // "none" is what torchrun calls every job that was given no name.
    let named = |variables: &[&Variable]| {
        variables.iter().find_map(|variable| variable.find(source).filter(|(_, id)| id != "none"))
    };
    if let Some((name, id)) = named(&LAUNCHERS) {
        return Some(format!("{name}={id}"));
    }
    if let Some(proxy) = hydra_proxy(source) {
        return Some(proxy);
    }
    let (name, id) = named(&SCHEDULERS)?;
    let step = foreign::SLURM_STEP_ID.value(source);
    let step = step.filter(|_| name == foreign::SLURM_JOB_ID.name).unwrap_or_default();
    Some(format!("{name}={id} {step}"))
}

/// Hydra names no job. Where all ranks are on one host they descend from one process of Hydra's, which
/// names the job as well.
fn hydra_proxy(source: Source<'_>) -> Option<String> {
    if foreign::PMI_SIZE.value(source)? != foreign::MPI_LOCALNRANKS.value(source)? {
        return None;
    }
    let own = std::process::id();
    let mut pid = own;
    // Shells and debuggers may stand between; a chain this long is none.
    for _ in 0..64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let process = Process::parse(&stat)?;
        if process.name == HYDRA {
            return Some(format!("{HYDRA}={pid} {}", process.started));
        }
        pid = process.parent;
    }
    None
}

/// What the system says of a process.
struct Process<'a> {
    name: &'a str,
    parent: u32,
    /// In ticks since the system started: tells processes of one number apart.
    started: &'a str,
}

impl Process<'_> {
    /// From a line of /proc/PID/stat; the name, in parentheses, may have any character in it.
    fn parse(stat: &str) -> Option<Process<'_>> {
        let (_, rest) = stat.split_once('(')?;
        let (name, rest) = rest.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let parent = fields.get(1)?.parse().ok().filter(|&parent| parent > 0)?;
        Some(Process { name, parent, started: fields.get(19)? })
    }
}

/// For the fuzz target.
#[cfg(any(test, fuzzing))]
pub(super) fn parse_process(stat: &str) {
    assert!(Process::parse(stat).is_none_or(|process| process.parent > 0));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pairs: &[(&str, &str)]) -> Option<String> {
        job_id(Source::new(&|name| {
            pairs.iter().find(|(given, _)| *given == name).map(|(_, value)| value.to_string())
        }))
    }

    #[test]
    fn a_job_gives_a_secret_unless_it_has_no_name() {
        let named = |name: &str| (name == "TORCHELASTIC_RUN_ID").then(|| "job7".to_owned());
        let unnamed = |name: &str| (name == "TORCHELASTIC_RUN_ID").then(|| "none".to_owned());
        let (named, unnamed) = (Source::new(&named), Source::new(&unnamed));
        assert_eq!(job_secret(named), job_secret(named));
        assert!(job_secret(named).is_some() && job_secret(unnamed).is_none());
    }

    #[test]
    fn a_launcher_inside_an_allocation_names_the_job_alike_on_all_hosts() {
        // mpirun starts the ranks of its own host itself, those of others by a step of Slurm.
        let here = id(&[("SLURM_JOB_ID", "7"), ("PMIX_NAMESPACE", "9")]);
        let there = id(&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("PMIX_NAMESPACE", "9")]);
        assert!(here.is_some());
        assert_eq!(here, there);
        // A second mpirun in the same allocation is another job.
        assert_ne!(here, id(&[("SLURM_JOB_ID", "7"), ("PMIX_NAMESPACE", "10")]));
    }

    #[test]
    fn steps_of_one_allocation_are_jobs_of_their_own() {
        let step = |n| id(&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", n)]);
        assert_ne!(step("0"), step("1"));
    }

    #[test]
    fn unnamed_jobs_of_torchrun_are_named_by_the_scheduler() {
        let unnamed = ("TORCHELASTIC_RUN_ID", "none");
        assert_eq!(id(&[unnamed]), None);
        assert!(id(&[unnamed, ("PBS_JOBID", "3")]).is_some());
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let line = "12 (a) b (c) S 7 12 12 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4242 5 6";
        let process = Process::parse(line).unwrap();
        assert_eq!((process.name, process.parent, process.started), ("a) b (c", 7, "4242"));
        // The first process has no parent.
        assert!(Process::parse(&line.replace("S 7", "S 0")).is_none());
        assert!(Process::parse("12 (a").is_none());
    }
}

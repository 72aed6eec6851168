//! Fuzz target: what launchers leave in the environment, and the lists and lines they write.

use mscclrs_fuzz::Target;

use super::{LaunchEnvironment, job, slurm};
use crate::bootstrap::Address;
use crate::env::Source;
use crate::fuzz::value_in;

pub(crate) const ENVIRONMENT: Target =
    Target { name: "launch_environment", run: environment, seeds };

/// Lines of NAME=VALUE.
fn environment(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let value = |name: &str| value_in(text, name);
    for line in text.lines() {
        slurm::first_host(line);
        assert_ne!(slurm::tasks_of_node(line, 3), Some(0));
        job::parse_process(line);
    }
    let source = Source::new(&value);
    job::job_secret(source);
    let Ok(Some(found)) = LaunchEnvironment::read(source) else { return false };
    assert!(found.rank < found.world_size);
    let local = found.local_world_size.unwrap_or(found.world_size);
    assert!(found.local_rank.is_none_or(|rank| rank < local));
    if let Some(address) = found.rendezvous {
        assert_eq!(address.to_string().parse::<Address>().ok(), Some(address));
    }
    true
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "MSCCLRS_RANK=1\nMSCCLRS_WORLD_SIZE=4\nMSCCLRS_LOCAL_RANK=1\nMSCCLRS_ADDRESS=eth0:[fe80::1]:7",
        "RANK=5\nWORLD_SIZE=8\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=4\nMASTER_ADDR=::1\nMASTER_PORT=29500",
        "OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_SIZE=2\nPMIX_NAMESPACE=9",
        "PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2",
        "SLURM_PROCID=3\nSLURM_STEP_NUM_TASKS=4\nSLURM_LOCALID=1\nSLURM_STEP_TASKS_PER_NODE=2(x2)\n\
         SLURM_JOB_ID=77\nSLURM_STEP_NODELIST=gpu[07-08],x",
        "RANK=0\nWORLD_SIZE=1\n12 (a) b (c) S 7 12 12 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4242 5",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

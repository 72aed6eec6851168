//! Variables of launchers, libraries and build tools that are read here. Their meaning is their
//! owners'; what they are read for stands here.

use crate::{Kind, Variable};

macro_rules! table {
    ($($name:ident: $kind:expr, $text:literal;)*) => {
        $(
            #[doc = $text]
            #[allow(non_upper_case_globals, reason = "named as its owner spells it")]
            pub static $name: Variable = Variable {
                name: stringify!($name),
                alias: None,
                kind: $kind,
                default: "none",
                text: $text,
            };
        )*

        /// All of them, by name.
        pub static TABLE: &[&Variable] = &[$(&$name),*];
    };
}

/// The secret of a run is made from the id of its job, so that is shown as little.
const JOB: Kind = Kind::Secret { least: 1 };
const LEVEL: Kind = Kind::Choice(&["debug", "info", "warn", "error"]);
const NUMBER: Kind = Kind::Number { from: 0, to: u32::MAX as u64, step: 1 };
const PORT: Kind = Kind::Number { from: 1, to: 65534, step: 1 };
const TEXT: Kind = Kind::Text("any text");

table! {
    CARGO: Kind::Path, "cargo's own program.";
    CARGO_MANIFEST_DIR: Kind::Path, "The folder of the crate that cargo runs.";
    CARGO_TARGET_DIR: Kind::Path, "Where cargo puts what it builds.";
    CUDA_DEVICE_ORDER: TEXT, "CUDA's: how GPUs are numbered.";
    CUDA_HOME: Kind::Path, "A CUDA toolkit, looked into for ptxas.";
    CUDA_PATH: Kind::Path, "A CUDA toolkit, looked into for ptxas.";
    CUDA_VISIBLE_DEVICES: TEXT, "CUDA's: the GPUs that this process sees.";
    JOB_COMPLETION_UID: JOB, "Kubernetes: names the job.";
    LD_LIBRARY_PATH: TEXT, "The loader's: where libraries are looked for first.";
    LOCAL_RANK: NUMBER, "torchrun: this rank's number on its host.";
    LOCAL_WORLD_SIZE: NUMBER, "torchrun: the number of ranks on this host.";
    LSB_JOBID: JOB, "LSF: names the job.";
    MASTER_ADDR: TEXT, "torchrun: the host where ranks meet.";
    MASTER_PORT: PORT, "torchrun: its own port; ranks meet at the next one.";
    MPI_LOCALNRANKS: NUMBER, "MPICH: the number of ranks on this host.";
    MPI_LOCALRANKID: NUMBER, "MPICH: this rank's number on its host.";
    MSCCLPP_LOG_FILE: Kind::Path, "MSCCL++'s: the file of its log, and of ours where MSCCLRS_DEBUG_FILE is not set.";
    MSCCLPP_LOG_LEVEL: LEVEL, "MSCCL++'s: the level of its log, and of ours where MSCCLRS_DEBUG is not set.";
    MSCCLPP_LOG_SUBSYS: TEXT, "MSCCL++'s: subsystems of its log, and of ours where MSCCLRS_DEBUG_SUBSYS is not set.";
    NCCL_NVLS_ENABLE: TEXT, "NCCL's: whether it uses NVLink multicast; `bench` sets 0 where it is not set.";
    OMPI_COMM_WORLD_LOCAL_RANK: NUMBER, "Open MPI: this rank's number on its host.";
    OMPI_COMM_WORLD_LOCAL_SIZE: NUMBER, "Open MPI: the number of ranks on this host.";
    OMPI_COMM_WORLD_RANK: NUMBER, "Open MPI: this rank.";
    OMPI_COMM_WORLD_SIZE: NUMBER, "Open MPI: the number of ranks.";
    OMPI_MCA_ess_base_jobid: JOB, "Open MPI: names the job.";
    PATH: TEXT, "The system's: where programs are looked for.";
    PBS_JOBID: JOB, "PBS: names the job.";
    PMIX_NAMESPACE: JOB, "PMIx: names the job.";
    PMI_ID_NAMESPACE: JOB, "PMI: names the job.";
    PMI_JOBID: JOB, "PMI: names the job.";
    PMI_LOCAL_RANK: NUMBER, "MPICH: this rank's number on its host.";
    PMI_LOCAL_SIZE: NUMBER, "MPICH: the number of ranks on this host.";
    PMI_RANK: NUMBER, "MPICH: this rank.";
    PMI_SIZE: NUMBER, "MPICH: the number of ranks.";
    RANK: NUMBER, "torchrun: this rank.";
    SLURM_JOB_ID: JOB, "Slurm: names the job.";
    SLURM_JOB_NODELIST: TEXT, "Slurm: the hosts of the job; ranks meet at the first.";
    SLURM_LOCALID: NUMBER, "Slurm: this rank's number on its host.";
    SLURM_NODEID: NUMBER, "Slurm: this host's number within the step.";
    SLURM_PROCID: NUMBER, "Slurm: this rank.";
    SLURM_STEP_ID: JOB, "Slurm: names the step of the job.";
    SLURM_STEP_NODELIST: TEXT, "Slurm: the hosts of the step; ranks meet at the first.";
    SLURM_STEP_NUM_TASKS: NUMBER, "Slurm: the number of ranks.";
    SLURM_STEP_TASKS_PER_NODE: TEXT, "Slurm: the number of ranks on each host.";
    TORCHELASTIC_RUN_ID: JOB, "torchrun: names the job.";
    WORLD_SIZE: NUMBER, "torchrun: the number of ranks.";
}

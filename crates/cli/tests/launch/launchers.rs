//! Ranks of other launchers find each other: of real ones where they are installed, as `cargo xtask test`
//! does, and of srun by the environment that it documents. torchrun.rs has the real torchrun; here
//! are later ones, whose agents keep the port that they give their ranks.

use super::*;

/// A program of that name whose version has these words.
fn find(names: &[&'static str], words: &str) -> Option<&'static str> {
    let is_it = |name: &&str| {
        let output = Command::new(name).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(words))
    };
    let found = names.iter().copied().find(is_it);
    if found.is_none() {
        eprintln!("not run: none of {} is here", names.join(", "));
    }
    found
}

fn open_mpi(ranks: u32) -> Option<Command> {
    let mut command = Command::new(find(&["mpirun.openmpi", "mpirun"], "Open MPI")?);
    // As root only on request, and more ranks than cores.
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    command.args(["--oversubscribe", "-n", &ranks.to_string()]);
    Some(command)
}

fn hydra(ranks: u32) -> Option<Command> {
    let mut command = Command::new(find(&["mpiexec.hydra", "mpiexec"], "HYDRA")?);
    command.args(["-n", &ranks.to_string()]);
    Some(command)
}

fn started(mut command: Command) -> Running {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(command)
}

/// All ranks took part, and all results were right.
pub(super) fn expect_ranks(ended: &Ended, ranks: usize) {
    assert_eq!(ended.status, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("# Out of bounds values : 0 OK"), "{}", ended.stdout);
    assert_eq!(ended.stdout.matches("#  Rank ").count(), ranks, "{}", ended.stdout);
}

/// All ranks take part in one run; one started by a shell that stays, as people do in scripts.
fn expect_to_meet(launcher: fn(u32) -> Option<Command>) {
    let Some(mut plain) = launcher(3) else { return };
    plain.arg(program()).args(BENCH.split_whitespace());
    expect_ranks(&started(plain).ended(), 3);
    let Some(mut wrapped) = launcher(2) else { return };
    wrapped.args(["sh", "-c", &format!("{} {BENCH}; exit $?", program().display())]);
    expect_ranks(&started(wrapped).ended(), 2);
}

/// A rank is killed while all measure: the whole ends, and soon.
fn expect_to_end_together(launcher: fn(u32) -> Option<Command>, rank: &str) {
    let Some(mut command) = launcher(3) else { return };
    let census = Census::new();
    let bench = "bench allreduce -b 1K -e 1K -n 1000000 --device cpu";
    let script = format!("{}; exec {} {bench}", census.note(rank), program().display());
    command.args(["sh", "-c", &script]);
    let mut running = started(command);
    census.wait(3);
    running.wait_until_it_measures();
    let pids = census.pids();
    let victim = std::fs::read_to_string(census.path().join("rank1")).expect("noted");
    let victim = victim.trim().parse().expect("a number");
    let since = Instant::now();
    rustix::process::kill_process(pid(victim), Signal::KILL).expect("killed");
    let ended = running.ended();
    assert!(ended.status.is_some_and(|status| status != 0), "{}", ended.stderr);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    until("the end of all", || pids.iter().all(|&pid| matches!(state(pid), None | Some('Z'))));
}

#[test]
fn ranks_of_open_mpi_meet() {
    expect_to_meet(open_mpi);
}

#[test]
fn ranks_of_hydra_meet() {
    expect_to_meet(hydra);
}

#[test]
fn jobs_of_hydra_at_once_do_not_mix() {
    let one = || {
        let mut command = hydra(2)?;
        command.arg(program()).args(BENCH.split_whitespace());
        Some(started(command))
    };
    let jobs: Vec<Running> = (0..3).filter_map(|_| one()).collect();
    for job in jobs {
        expect_ranks(&job.ended(), 2);
    }
}

#[test]
fn a_rank_of_open_mpi_that_is_lost_ends_the_others() {
    expect_to_end_together(open_mpi, "rank$OMPI_COMM_WORLD_RANK");
}

#[test]
fn a_rank_of_hydra_that_is_lost_ends_the_others() {
    expect_to_end_together(hydra, "rank$PMI_RANK");
}

/// Processes with the environment of one rank each, and nothing else of ours.
fn expect_to_meet_by(environment: impl Fn(u32) -> Vec<(&'static str, String)>) {
    let ranks: Vec<Running> = (0..3)
        .map(|rank| {
            let mut command = Command::new(program());
            command.args(BENCH.split_whitespace()).envs(environment(rank));
            started(command)
        })
        .collect();
    let mut ends = ranks.into_iter().map(Running::ended);
    expect_ranks(&ends.next().expect("rank 0"), 3);
    for ended in ends {
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }
}

/// As its documentation lists them: <https://docs.pytorch.org/docs/stable/elastic/run.html>.
#[test]
fn ranks_of_torchrun_meet_beside_its_own_store() {
    // The agent listens at MASTER_PORT as long as the job; ranks of ours meet at the next one.
    let (store, port) = (0..100)
        .find_map(|_| {
            let store = std::net::TcpListener::bind("0.0.0.0:0").ok()?;
            let port = store.local_addr().ok()?.port();
            std::net::TcpListener::bind(("0.0.0.0", port.checked_add(1)?)).ok()?;
            Some((store, port))
        })
        .expect("two ports side by side");
    expect_to_meet_by(|rank| {
        let number = |value: u32| value.to_string();
        vec![
            ("GROUP_RANK", number(0)),
            ("GROUP_WORLD_SIZE", number(1)),
            ("LOCAL_RANK", number(rank)),
            ("LOCAL_WORLD_SIZE", number(3)),
            ("MASTER_ADDR", "localhost".into()),
            ("MASTER_PORT", port.to_string()),
            ("OMP_NUM_THREADS", number(1)),
            ("RANK", number(rank)),
            ("ROLE_NAME", "default".into()),
            ("ROLE_RANK", number(rank)),
            ("ROLE_WORLD_SIZE", number(3)),
            ("TORCHELASTIC_MAX_RESTARTS", number(0)),
            ("TORCHELASTIC_RESTART_COUNT", number(0)),
            ("TORCHELASTIC_RUN_ID", "none".into()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
            ("WORLD_SIZE", number(3)),
        ]
    });
    drop(store);
}

/// As srun of version 22.05 sets them on one host: <https://slurm.schedmd.com/srun.html>.
#[test]
fn ranks_of_srun_meet() {
    // The port comes from the job's number, which is to be this test's own.
    let job = std::process::id();
    expect_to_meet_by(|rank| {
        let number = |value: u32| value.to_string();
        vec![
            ("SLURM_JOB_ID", number(job)),
            ("SLURM_JOB_NODELIST", "n1".into()),
            ("SLURM_LOCALID", number(rank)),
            ("SLURM_NODEID", number(0)),
            ("SLURM_NTASKS", number(3)),
            ("SLURM_PROCID", number(rank)),
            ("SLURM_STEP_ID", number(0)),
            ("SLURM_STEP_NODELIST", "n1".into()),
            ("SLURM_STEP_NUM_NODES", number(1)),
            ("SLURM_STEP_NUM_TASKS", number(3)),
            ("SLURM_STEP_TASKS_PER_NODE", "3".into()),
            ("SLURM_TASKS_PER_NODE", "3".into()),
        ]
    });
}

//! Ranks of the real torchrun find each other, where it is installed, as `cargo xtask test` does.
//!
//! Each test has namespaces of its own. torchrun lets the system choose a port and gives it up for its
//! ranks: in a network where nobody else is, nobody takes that port or the next one, where ours meet. The
//! host is called localhost there, since agents tell each other its name, which not every machine knows.
//! And all processes end with the first one, however a test ends.

use super::launchers::expect_ranks;
use super::*;

/// Several sizes, so that the ranks work together for more than a moment.
const SIZES: &str = "bench allreduce -b 1K -e 64K -f 4 -n 2 -w 0 --device cpu";

/// The script in namespaces of its own, where `torchrun` is a function that runs an agent of so many ranks.
/// Nothing, with the reason on stderr, where there is no torchrun or there can be no namespaces.
fn alone(nodes: u32, ranks_each: u32, script: &str) -> Option<Command> {
    let mut flags = vec!["--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !rustix::process::geteuid().is_root() {
        flags.push("--map-root-user");
    }
    let try_it = "command -v torchrun && ip link set lo up && hostname localhost";
    let tried = Command::new("unshare").args(&flags).args(["sh", "-c", try_it]).output();
    match tried {
        Ok(tried) if tried.status.success() => {}
        Ok(tried) if tried.stderr.is_empty() => {
            eprintln!("not run: torchrun is not here; PyTorch has it (Debian: python3-torch)");
            return None;
        }
        Ok(tried) => {
            eprintln!("not run: unshare: {}", String::from_utf8_lossy(&tried.stderr).trim());
            return None;
        }
        Err(error) => {
            eprintln!("not run: unshare: {error}");
            return None;
        }
    }
    // Output is redirected and shown with marks, since PyTorch 1.13 does not understand its own default,
    // to redirect nothing, with Python 3.11.
    let prelude = format!(
        "{try_it} >/dev/null || exit 90
         torchrun() {{
             timeout 100 torchrun --nnodes {nodes} --nproc_per_node {ranks_each} \
                 --monitor_interval 0.1 --redirects 1 --tee 1 --rdzv_backend c10d \"$@\"
         }}"
    );
    let mut command = Command::new("unshare");
    command.args(&flags).args(["sh", "-c", &format!("{prelude}\n{script}"), "sh"]).arg(program());
    command.env("PYTHONUNBUFFERED", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

/// Runs it with its files in a folder of its own.
fn ended(mut command: Command) -> Ended {
    let folder = tempfile::tempdir().expect("a folder");
    command.env("TMPDIR", folder.path());
    Running::start(command).ended()
}

#[test]
fn ranks_of_one_agent_meet() {
    let script = format!("torchrun --rdzv_endpoint 127.0.0.1:0 --no_python \"$1\" {SIZES}");
    let Some(command) = alone(1, 4, &script) else { return };
    expect_ranks(&ended(command), 4);
}

#[test]
fn ranks_of_two_agents_meet() {
    let script = format!(
        "agent() {{
             torchrun --rdzv_id two --rdzv_endpoint 127.0.0.1:29400 --rdzv_conf is_host=$1 \
                 --no_python \"$2\" {SIZES}
         }}
         agent 1 \"$1\" & agent 0 \"$1\" && wait $!"
    );
    let Some(command) = alone(2, 2, &script) else { return };
    expect_ranks(&ended(command), 4);
}

/// A rank is killed while all measure: the whole ends, and soon.
#[test]
fn a_lost_rank_of_torchrun_ends_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let (measuring, rank) = (folder.path().join("measuring"), folder.path().join("rank.sh"));
    let dies = "(until test -e \"$2\"; do sleep 0.05; done; kill -9 $$) &";
    let bench = "bench allreduce -b 1K -e 1K -n 1000000 --device cpu";
    // In a file, since torchrun has its own mind about $ in arguments.
    let text = format!("if test $RANK = 1; then {dies} fi\nexec \"$1\" {bench}\n");
    std::fs::write(&rank, text).expect("written");
    let script = format!(
        "torchrun --rdzv_endpoint 127.0.0.1:0 --no_python sh {} \"$1\" {}",
        rank.display(),
        measuring.display()
    );
    let Some(mut command) = alone(1, 3, &script) else { return };
    command.env("TMPDIR", folder.path());
    let mut running = Running::start(command);
    running.wait_until_it_measures();
    std::fs::write(measuring, "").expect("written");
    let since = Instant::now();
    let ended = running.ended();
    assert!(ended.status.is_some_and(|status| status != 0), "{}", ended.stderr);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert!(ended.stderr.contains("local_rank: 1"), "{}", ended.stderr);
}

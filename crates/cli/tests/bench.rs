//! The measurements on the CPU device: ranks as threads and as processes, what they print, and what
//! happens when a result is wrong or a rank dies.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mscclrs(arguments: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("mscclrs"));
    command.args(arguments.split_whitespace()).args(["--device", "cpu"]);
    command
}

struct Ended {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(arguments: &str) -> Ended {
    let output = mscclrs(arguments).output().expect("ran");
    Ended {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[track_caller]
fn expect_right(ended: &Ended) {
    assert_eq!(ended.status, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("Out of bounds values : 0 OK"), "{}", ended.stdout);
}

const SHORT: &str = "-n 1 -w 0";

#[test]
fn threads_reduce_every_type_and_operation() {
    let ended =
        run(&format!("bench allreduce --threads --ranks 3 -b 8 -e 2K -f 16 -d all -o all {SHORT}"));
    expect_right(&ended);
    let lines = ended.stdout.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(lines, 3 * 5 * 3);
}

#[test]
fn processes_reduce_and_gather() {
    for what in ["allreduce", "allgather"] {
        let ended = run(&format!("bench {what} --ranks 3 -b 48 -e 12K -f 16 -d bfloat16 {SHORT}"));
        expect_right(&ended);
        assert!(ended.stdout.contains("3 ranks as processes"), "{}", ended.stdout);
    }
}

#[test]
fn any_size_and_rank_count_is_right() {
    for arguments in ["--ranks 1 -b 0 -e 100 -i 50", "--ranks 5 -b 0 -e 62 -i 31 -d half"] {
        for what in ["allreduce", "allgather"] {
            expect_right(&run(&format!("bench {what} --threads {arguments} {SHORT}")));
        }
    }
}

#[test]
fn graphs_and_plain_buffers_give_the_same_results() {
    let ended = run(&format!(
        "bench allreduce --threads --ranks 2 -b 1K -e 16K -f 16 -G 3 -c 3 --buffers plain {SHORT}"
    ));
    expect_right(&ended);
}

#[test]
fn rows_have_the_promised_fields() {
    let ended = run(&format!("bench allgather --threads --ranks 2 -b 1K -e 1K --json - {SHORT}"));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let rows = rows(&ended.stdout);
    assert_eq!(rows.len(), 2);
    for (row, in_place) in rows.iter().zip([false, true]) {
        assert_eq!(row["op"], "allgather");
        assert_eq!(row["bytes"], 1024);
        assert_eq!(row["count"], 128);
        assert_eq!(row["dtype"], "float");
        assert_eq!(row["redop"], "none");
        assert_eq!(row["in_place"], in_place);
        assert_eq!(row["wrong"], 0);
        assert_eq!(row["ranks"], 2);
        let time = row["time_us"].as_f64().expect("number");
        assert!(time > 0.0 && row["spread_us"].as_f64().is_some());
        let algbw = row["algbw_gbps"].as_f64().expect("number");
        // All have six digits.
        assert!((algbw * time * 1e3 / 1024.0 - 1.0).abs() < 1e-4, "{row}");
        let busbw = row["busbw_gbps"].as_f64().expect("number");
        assert!((busbw * 2.0 / algbw - 1.0).abs() < 1e-4, "{row}");
        assert!(row["algorithm"].is_string() && row["device"].is_string());
    }
    assert!(ended.stderr.contains("out-of-place"), "the table goes to standard error");
}

#[test]
fn files_hold_rows_and_drawing() {
    let folder = tempfile::tempdir().expect("folder");
    let (json, plot) = (folder.path().join("rows.json"), folder.path().join("rows.svg"));
    let ended = run(&format!(
        "bench allreduce --threads --ranks 2 -b 64 -e 1K -f 4 {SHORT} --json {} --plot {}",
        json.display(),
        plot.display()
    ));
    expect_right(&ended);
    assert_eq!(rows(&std::fs::read_to_string(json).expect("written")).len(), 6);
    assert!(std::fs::read_to_string(plot).expect("written").starts_with("<svg"));
}

#[test]
fn an_injected_fault_is_seen() {
    for (fault, words) in [
        ("output", "wrong, first element"),
        ("guard", "bytes behind the output were overwritten"),
        ("input", "elements of the input were changed"),
    ] {
        for form in ["", "--threads"] {
            let ended = run(&format!(
                "bench allreduce --ranks 2 {form} -b 1K -e 1K {SHORT} --inject-fault={fault}"
            ));
            assert_eq!(ended.status, Some(1), "{fault}: {}\n{}", ended.stdout, ended.stderr);
            assert!(ended.stdout.contains("FAILED"), "{fault}: {}", ended.stdout);
            assert!(ended.stderr.contains(words), "{fault}: {}", ended.stderr);
            assert!(ended.stderr.contains("rank 1"), "{fault}: {}", ended.stderr);
        }
    }
}

#[test]
fn unchecked_runs_say_so() {
    let ended =
        run(&format!("bench allreduce --threads --ranks 2 -b 8 -e 8 -c 0 {SHORT} --inject-fault"));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("N/A") && ended.stdout.contains("nothing was checked"));
}

#[test]
fn hops_are_measured_between_two_ranks() {
    for (what, kinds) in [("signal", 2), ("packet", 2)] {
        for form in ["", "--threads"] {
            let ended = run(&format!("bench {what} -n 20 {form} --json -"));
            assert_eq!(ended.status, Some(0), "{}", ended.stderr);
            let rows = rows(&ended.stdout);
            assert_eq!(rows.len(), kinds);
            assert!(rows.iter().all(|row| row["time_us"].as_f64() > Some(0.0)));
        }
    }
}

/// The processes of a group of ranks: children of `parent`.
fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses.
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn wait_until(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    while since.elapsed() < limit {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// A run of `ranks` processes that would go on for long, caught while it measures.
fn long_run(ranks: usize) -> (Running, Vec<u32>) {
    let mut command = mscclrs(&format!("bench allreduce --ranks {ranks} -b 1K -e 1K -n 1000000"));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut running = Running(child);
    let parent = running.0.id();
    assert!(wait_until(Duration::from_secs(20), || children(parent).len() == ranks));
    // The head of the table is printed when all ranks are ready to measure.
    let stdout = running.0.stdout.as_mut().expect("piped");
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("(GB/s)") {
        let mut byte = [0];
        assert_eq!(stdout.read(&mut byte).expect("read"), 1, "ended before it measured");
        seen.push(byte[0]);
    }
    std::thread::sleep(Duration::from_millis(500));
    let ranks = children(parent);
    (running, ranks)
}

#[test]
fn a_killed_rank_ends_the_others_within_two_seconds() {
    let (mut running, ranks) = long_run(4);
    let victim = ranks[2];
    let since = Instant::now();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(victim as i32).expect("a process"),
        rustix::process::Signal::KILL,
    )
    .expect("killed");
    assert!(wait_until(Duration::from_secs(10), || !ranks.iter().any(|&pid| is_alive(pid))));
    let took = since.elapsed();
    let status = running.0.wait().expect("ended");
    let mut stderr = String::new();
    running.0.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(took < Duration::from_secs(2), "{took:?}\n{stderr}");
    for rank in [0, 1, 3] {
        let line = stderr.lines().find(|line| line.starts_with(&format!("rank {rank}: ")));
        assert!(line.is_some_and(|line| line.contains("rank 2")), "rank {rank}:\n{stderr}");
    }
    assert!(stderr.contains("rank 2 was killed by signal 9"), "{stderr}");
}

#[test]
fn ranks_do_not_outlive_the_command() {
    let (running, ranks) = long_run(3);
    drop(running);
    assert!(wait_until(Duration::from_secs(5), || !ranks.iter().any(|&pid| is_alive(pid))));
}

#[test]
fn a_rank_that_fails_takes_the_others_with_it_at_once() {
    for form in ["", "--threads"] {
        let mut command = mscclrs(&format!("bench allreduce --ranks 3 {form}"));
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let child = command.stdout(full).stderr(Stdio::piped()).spawn().expect("started");
        let mut running = Running(child);
        let mut stderr = String::new();
        running.0.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
        assert_eq!(running.0.wait().expect("ended").code(), Some(1), "{stderr}");
        assert!(stderr.contains("rank 0: the table cannot be written"), "{stderr}");
        for rank in ["rank 1: ", "rank 2: "] {
            let line = stderr.lines().find(|line| line.starts_with(rank));
            assert!(line.is_some_and(|line| line.contains("rank 0 failed")), "{stderr}");
        }
    }
}

/// Two ranks as a launcher starts them, each with options of its own.
fn launched(options: [&str; 2], variables: &[(&str, &str)]) -> [Ended; 2] {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    let start = |rank: usize| {
        let mut command = mscclrs(&format!("bench allreduce -b 1K -e 1K {}", options[rank]));
        command
            .env("MSCCLRS_RANK", rank.to_string())
            .env("MSCCLRS_WORLD_SIZE", "2")
            .env("MSCCLRS_LOCAL_RANK", rank.to_string())
            .env("MSCCLRS_ADDRESS", &address)
            .env("MSCCLRS_SECRET", "a secret of this test")
            .envs(variables.iter().copied());
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started"))
    };
    [start(0), start(1)].map(|mut running| {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        running.0.stdout.take().expect("piped").read_to_string(&mut stdout).expect("text");
        running.0.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        Ended { status: running.0.wait().expect("ended").code(), stdout, stderr }
    })
}

#[test]
fn launched_ranks_are_one_run() {
    let [first, second] = launched(["-n 2", "-n 2"], &[]);
    expect_right(&first);
    assert_eq!(second.status, Some(0), "{}", second.stderr);
    assert_eq!(second.stdout, "", "only rank 0 prints");
}

#[test]
fn ranks_with_different_options_are_told_which() {
    let since = Instant::now();
    for ended in launched(["-n 5", "-n 50"], &[]) {
        assert_eq!(ended.status, Some(2), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("rank 1 was started with -n 50, rank 0 with -n 5"),
            "{}",
            ended.stderr
        );
    }
    assert!(since.elapsed() < Duration::from_secs(10));
}

#[test]
fn the_set_up_deadline_is_the_variables() {
    let since = Instant::now();
    let ended = mscclrs("bench allreduce -b 1K -e 1K")
        .envs([("MSCCLRS_RANK", "0"), ("MSCCLRS_WORLD_SIZE", "2"), ("MSCCLRS_LOCAL_RANK", "0")])
        .envs([("MSCCLRS_ADDRESS", "127.0.0.1:0"), ("MSCCLRS_SECRET", "a secret of this test")])
        .env("MSCCLRS_BOOTSTRAP_TIMEOUT", "0.5")
        .output()
        .expect("ran");
    assert!(!ended.status.success());
    assert!(since.elapsed() < Duration::from_secs(10), "it took {:?}", since.elapsed());
}

//! What ranks get, and what becomes of them.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// The environment of each rank, by rank.
fn environments(options: &str) -> BTreeMap<u32, BTreeMap<String, String>> {
    let ended = run(launch(options, "env"));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let mut ranks = BTreeMap::<u32, BTreeMap<String, String>>::new();
    for line in ended.stdout.lines() {
        let (rank, rest) = line.strip_prefix('[').and_then(|l| l.split_once("] ")).expect("marked");
        if let Some((name, value)) = rest.split_once('=') {
            let rank = ranks.entry(rank.parse().expect("a rank")).or_default();
            rank.insert(name.into(), value.into());
        }
    }
    ranks
}

#[test]
fn ranks_know_their_places_under_our_names_and_pytorchs() {
    let ranks = environments("-n 3 -x EXTRA=a=b");
    assert_eq!(ranks.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
    for (rank, variables) in &ranks {
        let number = rank.to_string();
        for name in ["MSCCLRS_RANK", "MSCCLRS_LOCAL_RANK", "RANK", "LOCAL_RANK"] {
            assert_eq!(variables[name], number, "{name}");
        }
        for name in
            ["MSCCLRS_WORLD_SIZE", "MSCCLRS_LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]
        {
            assert_eq!(variables[name], "3", "{name}");
        }
        for name in ["MSCCLRS_ADDRESS", "MSCCLRS_SECRET", "MASTER_ADDR", "MASTER_PORT"] {
            assert_eq!(variables[name], ranks[&0][name], "{name}");
        }
        assert_eq!(variables["MASTER_ADDR"], "127.0.0.1");
        let port: u16 = variables["MASTER_PORT"].parse().expect("a port");
        assert_eq!(variables["MSCCLRS_ADDRESS"], format!("127.0.0.1:{}", port + 1));
        assert_eq!(variables["EXTRA"], "a=b");
        // What `bench` prepares for itself is not for other programs.
        assert!(!variables.contains_key("NCCL_NVLS_ENABLE"));
    }
    let others = environments("-n 1");
    assert_ne!(others[&0]["MSCCLRS_SECRET"], ranks[&0]["MSCCLRS_SECRET"]);
}

#[test]
fn an_address_of_the_users_choice_is_the_ranks() {
    let ranks = environments("-n 2 --address lo:localhost");
    let port: u16 = ranks[&1]["MASTER_PORT"].parse().expect("a port");
    assert_eq!(ranks[&1]["MSCCLRS_ADDRESS"], format!("lo:localhost:{}", port + 1));
    assert_eq!(ranks[&1]["MASTER_ADDR"], "localhost");
}

#[test]
fn ranks_of_this_command_meet() {
    for count in [1, 3] {
        let mut command = Command::new(program());
        command.args(["launch", "-n", &count.to_string(), "--"]).arg(program());
        command.args(BENCH.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = run(command);
        assert_eq!(ended.status, Some(0), "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains("[0] # Out of bounds values : 0 OK"), "{}", ended.stdout);
        let ranks = ended.stdout.lines().filter(|line| line.contains("#  Rank ")).count();
        assert_eq!(ranks, count, "{}", ended.stdout);
    }
}

#[test]
fn hundreds_of_ranks_are_started_and_heard() {
    let ended = run(launch("-n 256", "echo $RANK of $WORLD_SIZE"));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let lines: BTreeSet<&str> = ended.stdout.lines().collect();
    let expected: BTreeSet<String> = (0..256).map(|r| format!("[{r}] {r} of 256")).collect();
    assert_eq!(lines, expected.iter().map(String::as_str).collect());
}

#[test]
fn the_status_is_that_of_the_rank_that_failed_first() {
    for (script, status, words) in [
        ("exit 0", 0, ""),
        ("exit $((RANK * 7))", 7, "exited with status 7"),
        ("test $RANK = 1 && kill -9 $$; sleep 60", 137, "was killed by signal 9 (SIGKILL)"),
        (
            "trap 'exit 9' TERM; test $RANK = 1 && exit 5; sleep 60 & wait",
            5,
            "exited with status 5",
        ),
    ] {
        let ended = run(launch("-n 2", script));
        assert_eq!(ended.status, Some(status), "{script}: {}", ended.stderr);
        let sentences = sentences(&ended.stderr);
        if status == 0 {
            assert!(sentences.is_empty(), "{script}: {}", ended.stderr);
            continue;
        }
        assert_eq!(sentences.len(), 1, "{script}: {}", ended.stderr);
        assert!(sentences[0].starts_with("mscclrs: rank 1 (pid "), "{}", ended.stderr);
        assert!(sentences[0].contains(words), "{}", ended.stderr);
    }
}

#[test]
fn a_rank_that_fails_ends_all_that_the_others_have_started() {
    let census = Census::new();
    let script = format!(
        "test $RANK = 1 && {{ until test -e {0}/inner2; do sleep 0.01; done; exit 3; }}; \
         {1}; sh -c '{2}; sleep 60; sleep 60' & wait; sleep 60",
        census.path().display(),
        census.note("outer$RANK"),
        census.note("inner$RANK"),
    );
    let ended = run(launch("-n 3", &script));
    assert_eq!(ended.status, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("the other 2 ranks are ended"), "{}", ended.stderr);
    let pids = census.pids();
    assert!(pids.len() >= 3);
    assert!(pids.iter().all(|&pid| is_gone(pid)), "{pids:?}");
}

#[test]
fn who_does_not_end_in_time_is_killed() {
    let since = Instant::now();
    let script = "trap '' TERM; test $RANK = 0 && { sleep 0.3; exit 3; }; sleep 60; sleep 60";
    let ended = run(launch("-n 2 --grace 0.2", script));
    assert_eq!(ended.status, Some(3), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("mscclrs: rank 1 did not end within 0.2 s and is killed"),
        "{}",
        ended.stderr
    );
    assert!(since.elapsed() < Duration::from_secs(30));
}

#[test]
fn what_ranks_leave_behind_is_ended_with_the_launch() {
    let census = Census::new();
    // The second stays although it is asked.
    let script = format!(
        "(test $RANK = 1 && trap '' TERM; sh -c '{}; sleep 60; sleep 60') & \
         until test -e {}/left$RANK; do sleep 0.01; done",
        census.note("left$RANK"),
        census.path().display()
    );
    let since = Instant::now();
    let ended = run(launch("-n 2 --grace 0.2", &script));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(since.elapsed() < Duration::from_secs(30));
    let pids = census.pids();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|&pid| is_gone(pid)), "{pids:?}");
}

#[test]
fn a_killed_launcher_leaves_nothing_behind() {
    let census = Census::new();
    let script = format!(
        "{}; sh -c '{}; sleep 60; sleep 60' & wait",
        census.note("outer$RANK"),
        census.note("inner$RANK")
    );
    let running = Running::start(launch("-n 3", &script));
    let pids = census.wait(6);
    running.signal(Signal::KILL);
    // The system reaps them when it likes.
    until("the end of all", || pids.iter().all(|&pid| matches!(state(pid), None | Some('Z'))));
}

#[test]
fn rank_0_reads_standard_input_and_the_others_find_its_end() {
    let mut command = launch("-n 3", "echo $RANK got $(cat)");
    let mut child = command.stdin(Stdio::piped()).spawn().expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, b"hello").expect("written");
    drop(stdin);
    let ended = Running(child).ended();
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let lines: BTreeSet<&str> = ended.stdout.lines().collect();
    assert_eq!(
        lines,
        BTreeSet::from(["[0] 0 got hello", "[1] 1 got ", "[2] 2 got "].map(str::trim_end))
    );
}

#[test]
fn what_cannot_be_started_is_told_as_shells_do() {
    for (program, status, words) in
        [("/nowhere/program", 127, "name in PATH"), ("/etc/passwd", 126, "may be executed")]
    {
        let mut command = Command::new(super::program());
        command.args(["launch", "-n", "2", program, "--option"]);
        let ended = run({
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        });
        assert_eq!(ended.status, Some(status), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(program) && ended.stderr.contains(words), "{}", ended.stderr);
    }
}

#[test]
fn ranks_keep_the_limits_of_their_user() {
    let own = run({
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    let ended = run(launch("-n 1 --no-prefix", "ulimit -n"));
    assert_eq!(ended.stdout, own.stdout);
}

#[test]
fn waiting_costs_nothing() {
    let census = Census::new();
    let script = format!("{}; sleep 60 & wait", census.note("rank$RANK"));
    let running = Running::start(launch("-n 8", &script));
    census.wait(8);
    let used = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.0.id())).expect("read");
        let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
        // In hundredths of a second, in user and in system mode.
        fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
    };
    let before = used();
    std::thread::sleep(Duration::from_secs(1));
    assert!(used() - before <= 2, "{} hundredths of a second in one", used() - before);
    running.signal(Signal::TERM);
    assert_eq!(running.ended().status, Some(143));
}

#[test]
fn ranks_that_are_too_many_leave_none_behind() {
    let census = Census::new();
    let script = format!("{}; sleep 60; sleep 60", census.note("rank$RANK"));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]).arg(program());
    command.args(["launch", "-n", "100", "--", "sh", "-c", &script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = run(command);
    assert_eq!(ended.status, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("ulimit -n"), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(census.pids().iter().all(|&pid| is_gone(pid)));
}

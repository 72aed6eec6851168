//! Signals reach the ranks, and what they ask for happens.

use super::*;

/// Ranks that have begun.
fn started(options: &str, ranks: usize, script: &str) -> (Running, Vec<u32>) {
    let census = Census::new();
    let script = format!("{script}; {}; sleep 60 & wait; sleep 60", census.note("rank$RANK"));
    let running = Running::start(launch(&format!("-n {ranks} {options}"), &script));
    let pids = census.wait(ranks);
    (running, pids)
}

#[test]
fn signals_that_end_ranks_are_passed_on() {
    for (signal, number, name) in [
        (Signal::INT, 2, "SIGINT"),
        (Signal::TERM, 15, "SIGTERM"),
        (Signal::HUP, 1, "SIGHUP"),
        (Signal::QUIT, 3, "SIGQUIT"),
    ] {
        let (running, pids) = started("", 2, "ulimit -c 0");
        running.signal(signal);
        let ended = running.ended();
        assert_eq!(ended.status, Some(128 + number), "{name}: {}", ended.stderr);
        let words = format!("was killed by signal {number} ({name}), which was passed on");
        assert_eq!(sentences(&ended.stderr).len(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(&words), "{}", ended.stderr);
        assert!(pids.iter().all(|&pid| is_gone(pid)));
    }
}

#[test]
fn ranks_decide_what_signals_mean() {
    for (signal, name) in [(Signal::USR1, "USR1"), (Signal::USR2, "USR2"), (Signal::INT, "INT")] {
        let script = format!("trap 'echo got {name}; exit 0' {name}");
        let (running, _) = started("", 2, &script);
        running.signal(signal);
        let ended = running.ended();
        assert_eq!(ended.status, Some(0), "{name}: {}", ended.stderr);
        for rank in 0..2 {
            assert!(ended.stdout.contains(&format!("[{rank}] got {name}")), "{}", ended.stdout);
        }
        assert!(sentences(&ended.stderr).is_empty(), "{}", ended.stderr);
    }
}

#[test]
fn a_second_interrupt_kills() {
    let (running, pids) = started("--grace 60", 2, "trap '' INT");
    running.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(300));
    // They ignore it, and nobody insists.
    assert!(pids.iter().all(|&pid| !is_gone(pid)));
    let since = Instant::now();
    running.signal(Signal::INT);
    let ended = running.ended();
    assert_eq!(ended.status, Some(130), "{}", ended.stderr);
    assert!(ended.stderr.contains("interrupted again; ranks are killed"), "{}", ended.stderr);
    assert!(since.elapsed() < Duration::from_secs(10));
    assert!(pids.iter().all(|&pid| is_gone(pid)));
}

#[test]
fn two_interrupts_at_once_are_one() {
    let (running, _) = started("", 2, "trap 'sleep 0.5; echo orderly; exit 0' INT");
    // As `timeout` does it.
    running.signal(Signal::INT);
    running.signal(Signal::INT);
    let ended = running.ended();
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.matches("orderly").count(), 2, "{}", ended.stdout);
}

#[test]
fn ranks_that_ignore_the_wish_to_end_are_killed_after_the_grace() {
    let (running, pids) = started("--grace 0.2", 2, "trap '' TERM");
    running.signal(Signal::TERM);
    let ended = running.ended();
    assert_eq!(ended.status, Some(143), "{}", ended.stderr);
    assert!(ended.stderr.contains("rank 0, rank 1 did not end within 0.2 s and are killed"));
    assert!(pids.iter().all(|&pid| is_gone(pid)));
}

#[test]
fn ranks_stop_and_go_on_with_their_launcher() {
    let (running, pids) = started("", 2, ":");
    let launcher = running.0.id();
    running.signal(Signal::TSTP);
    until("a stop", || [launcher, pids[0], pids[1]].iter().all(|&pid| state(pid) == Some('T')));
    running.signal(Signal::CONT);
    until("going on", || pids.iter().all(|&pid| state(pid) == Some('S')));
    running.signal(Signal::TERM);
    assert_eq!(running.ended().status, Some(143));
}

#[test]
fn what_nohup_ignores_stays_ignored() {
    let census = Census::new();
    let script = format!("{}; sleep 0.5; echo done", census.note("rank$RANK"));
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(program());
    command.args(["launch", "-n", "1", "--", "sh", "-c", &script]);
    let running = Running::start({
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    census.wait(1);
    running.signal(Signal::HUP);
    let ended = running.ended();
    assert_eq!((ended.status, ended.stdout.as_str()), (Some(0), "[0] done\n"), "{}", ended.stderr);
}

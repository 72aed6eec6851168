//! Several hosts, by a stand-in for ssh: it runs the command here, out of reach of the launcher's
//! signals and without its environment, as on another host, and notes what it was asked for.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use super::*;

struct Network {
    folder: tempfile::TempDir,
}

impl Network {
    fn new() -> Network {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let script = format!(
            "#!/bin/sh\n\
             printf '%s\\n' \"$*\" >> {}\n\
             while :; do case $1 in -T) shift;; -o) shift 2;; *) break;; esac; done\n\
             host=$1; shift\n\
             test \"$host\" = down && {{ echo 'ssh: no route to host' >&2; exit 255; }}\n\
             exec env -i HOST=\"$host\" PATH=\"$PATH\" setsid --wait sh -c \"$*\"\n",
            log.display()
        );
        let ssh = folder.path().join("ssh");
        std::fs::write(&ssh, script).expect("written");
        std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).expect("set");
        Network { folder }
    }

    /// `PATH` with the stand-in in front.
    fn path(&self) -> std::ffi::OsString {
        let mut path = self.folder.path().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path
    }

    fn launch(&self, options: &str, script: &str) -> Command {
        let mut command = launch(options, script);
        command.env("PATH", self.path());
        command
    }

    /// What ssh was asked for, one line a call.
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

const PLACE: &str = "echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $HOST";

#[test]
fn ranks_are_numbered_over_all_hosts() {
    let network = Network::new();
    let ended = run(network.launch("--hosts a,me@b:3 -n 2 --run", PLACE));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let expected = [
        "[0] rank 0 of 5, 0 of 2 on a",
        "[1] rank 1 of 5, 1 of 2 on a",
        "[2] rank 2 of 5, 0 of 3 on me@b",
        "[3] rank 3 of 5, 1 of 3 on me@b",
        "[4] rank 4 of 5, 2 of 3 on me@b",
    ];
    assert_eq!(lines(&ended.stdout), BTreeSet::from(expected));
}

#[test]
fn ranks_of_two_hosts_meet() {
    let network = Network::new();
    let mut command = Command::new(program());
    command.args(["launch", "--hosts", "a,b:1", "-n", "2", "--run", "--address", "127.0.0.1"]);
    command.arg("--").arg(program()).args(BENCH.split_whitespace()).env("PATH", network.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = run(command);
    assert_eq!(ended.status, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("[0] # Out of bounds values : 0 OK"), "{}", ended.stdout);
    assert!(ended.stdout.contains("#  Rank   2 "), "{}", ended.stdout);
}

#[test]
fn the_secret_is_on_no_command_line() {
    let network = Network::new();
    let ended = run(network.launch("--hosts a:1,b:1 --run", "echo $MSCCLRS_SECRET"));
    let secrets: BTreeSet<&str> =
        ended.stdout.lines().map(|line| line.split_once("] ").expect("marked").1).collect();
    assert_eq!(secrets.len(), 1, "all ranks have one secret: {}", ended.stdout);
    let secret = secrets.into_iter().next().expect("one");
    assert_eq!(secret.len(), 64);
    assert!(network.log().contains("-T -o BatchMode=yes a cd "), "{}", network.log());
    assert!(!network.log().contains(secret));
}

#[test]
fn the_printed_script_starts_the_same_ranks() {
    let network = Network::new();
    let words = ["it's", "", "$HOME `id` \"\\", "two\nlines", "*"];
    let script = "printf '<%s>' \"$@\"; echo \" $RANK\"";
    let mut command = network.launch("--hosts a:1,b:1", script);
    let printed = run({
        command.arg("sh").args(words);
        command
    });
    assert_eq!(printed.status, Some(0), "{}", printed.stderr);
    assert!(network.log().is_empty(), "printing starts nothing");
    let mut shell = Command::new("sh");
    shell.args(["-c", &printed.stdout]).env("PATH", network.path());
    let ended = run({
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        shell
    });
    assert_eq!(ended.status, Some(0), "{}{}", printed.stdout, ended.stderr);
    let all: String = words.iter().map(|word| format!("<{word}>")).collect();
    for rank in 0..2 {
        let expected =
            format!("[{rank}] {all} {rank}\n").replace("two\n", &format!("two\n[{rank}] "));
        assert!(ended.stdout.contains(&expected), "{expected:?} in {:?}", ended.stdout);
    }
    // Every run of the script draws a secret of its own.
    assert!(printed.stdout.contains("/dev/urandom") && !network.log().contains("secret="));
}

#[test]
fn variables_travel_where_they_hold_on_other_hosts_too() {
    let network = Network::new();
    let script = "echo $MSCCLRS_TIMEOUT,$MSCCLRS_HOSTID,$GIVEN,$HERE,$OTHER";
    let mut command = network.launch("--hosts a:1 --run -x GIVEN=it's -x HERE", script);
    command.envs([
        ("MSCCLRS_TIMEOUT", "7"),
        ("MSCCLRS_HOSTID", "x"),
        ("HERE", "$1"),
        ("OTHER", "y"),
    ]);
    let ended = run(command);
    assert_eq!(ended.stdout, "[0] 7,,it's,$1,\n", "{}", ended.stderr);
}

#[test]
fn a_rank_that_fails_ends_those_of_all_hosts() {
    let network = Network::new();
    let census = Census::new();
    let script = format!(
        "{}; until test -e {}/rank3; do sleep 0.01; done; test $RANK = 2 && exit 9; sleep 60",
        census.note("rank$RANK"),
        census.path().display()
    );
    let ended = run(network.launch("--hosts a,b -n 2 --run", &script));
    assert_eq!(ended.status, Some(9), "{}", ended.stderr);
    let sentences = sentences(&ended.stderr);
    assert!(
        sentences[0].contains("rank 2 on ") && sentences[0].contains("status 9"),
        "{sentences:?}"
    );
    assert!(
        sentences[1].contains("host b (pid") && sentences[1].ends_with("the other host is ended"),
        "{sentences:?}"
    );
    assert_eq!(sentences.len(), 2, "{sentences:?}");
    assert!(census.pids().iter().all(|&pid| is_gone(pid)));
}

#[test]
fn a_host_that_cannot_be_reached_is_named() {
    let network = Network::new();
    let ended = run(network.launch("--hosts a:1,down:1 --run", "sleep 60"));
    assert_eq!(ended.status, Some(255), "{}", ended.stderr);
    assert!(ended.stderr.contains("ssh: no route to host"), "{}", ended.stderr);
    assert!(ended.stderr.contains("mscclrs: host down (pid"), "{}", ended.stderr);
    assert!(ended.stderr.contains("the host was not reached or lost"), "{}", ended.stderr);
}

#[test]
fn signals_travel_to_the_ranks() {
    let network = Network::new();
    let census = Census::new();
    let script = format!(
        "trap 'echo got it; exit 0' USR1 INT; {}; sleep 60 & wait; sleep 60",
        census.note("rank$RANK")
    );
    for signal in [Signal::USR1, Signal::INT] {
        let running = Running::start(network.launch("--hosts a:1,b:1 --run", &script));
        census.wait(2);
        running.signal(signal);
        let ended = running.ended();
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        assert_eq!(lines(&ended.stdout), BTreeSet::from(["[0] got it", "[1] got it"]));
        for rank in 0..2 {
            std::fs::remove_file(census.path().join(format!("rank{rank}"))).expect("removed");
        }
    }
}

#[test]
fn ranks_end_when_the_launcher_is_lost() {
    let network = Network::new();
    let census = Census::new();
    let script = format!("trap '' TERM; {}; sleep 60; sleep 60", census.note("rank$RANK"));
    let running = Running::start(network.launch("--hosts a:1,b:1 --run --grace 0.2", &script));
    let pids = census.wait(2);
    running.signal(Signal::KILL);
    until("the end of all ranks", || pids.iter().all(|&pid| is_gone(pid)));
}

#[test]
fn a_part_of_a_launch_can_be_started_by_hand() {
    let part = |rank: &str, secret: &str| {
        let options =
            format!("-n 1 --first-rank {rank} --world-size 2 --address head:23457 --no-prefix");
        let mut command =
            launch(&options, "echo $RANK $WORLD_SIZE $MSCCLRS_ADDRESS $MSCCLRS_SECRET");
        command.env("MSCCLRS_SECRET", secret);
        run(command)
    };
    assert_eq!(part("1", "long enough").stdout, "1 2 head:23457 long enough\n");
    let without = part("1", "");
    assert_eq!(without.status, Some(2));
    assert!(without.stderr.contains("MSCCLRS_SECRET"), "{}", without.stderr);
    let short = part("1", "short");
    assert_eq!(short.status, Some(2), "{}", short.stderr);
}

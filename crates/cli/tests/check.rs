//! `mscclrs check`: what it finds, what it does not let pass, and what it says then.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// The example whose kernel has a race, which is mended by `--mended`.
fn race() -> PathBuf {
    // Beside this test's own program, in cargo's folder of examples.
    let own = std::env::current_exe().expect("known");
    let folder = own.parent().and_then(Path::parent).expect("cargo's folder");
    let race = folder.join("examples/race");
    let build =
        "`cargo build -p mscclrs-cli --examples` makes it, as tests of the whole package do";
    assert!(race.exists(), "{} is not there: {build}", race.display());
    race
}

fn check(arguments: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("mscclrs"));
    command.arg("check").args(arguments.split_whitespace()).stdin(Stdio::null());
    command.env_remove("RUST_BACKTRACE");
    command
}

fn sh(arguments: &str, script: &str) -> Output {
    let mut command = check(arguments);
    command.args(["--", "sh", "-c", script]);
    command.env("RACE", race()).env("MSCCLRS", assert_cmd::cargo::cargo_bin!("mscclrs"));
    command.output().expect("ran")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The status, and what was printed.
fn ended(output: &Output, status: i32) -> String {
    let (out, err) = (out(output), err(output));
    assert_eq!(output.status.code(), Some(status), "{out}{err}");
    out
}

#[test]
fn the_projects_own_algorithms_have_no_findings() {
    let folder = tempfile::tempdir().expect("folder");
    let json = folder.path().join("rows");
    let output = check("--seeds 2 allreduce --algorithm mesh:1x32 --ranks 2 -e 64 --json")
        .arg(&json)
        .args(["--algorithm", "one-shot-ll8"])
        .output()
        .expect("ran");
    let said = ended(&output, 0);
    assert!(said.contains("# Nothing was found."), "{said}");
    let rows = std::fs::read_to_string(&json).expect("written");
    let rows: Vec<serde_json::Value> =
        rows.lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    let told: Vec<_> = rows
        .iter()
        .map(|row| (row["algorithm"].as_str().unwrap(), row["mode"].as_str().unwrap()))
        .collect();
    let (mesh, packets) = ("mesh:1x32", "one-shot-ll8:2x64");
    assert_eq!(told, [(mesh, "checked"), (mesh, "weak"), (packets, "checked"), (packets, "weak")]);
    for row in &rows {
        assert_eq!((row["seeds"].as_u64(), row["findings"].as_u64()), (Some(2), Some(0)), "{row}");
        assert!(row["accesses"].as_u64().unwrap() > 100, "{row}");
    }
}

#[test]
fn a_seed_makes_the_same_accesses_again() {
    let rows = || {
        let output = check("allgather --algorithm direct:1x32 --ranks 2 --seeds 3 --json - -e 64");
        ended(&{ output }.output().expect("ran"), 0)
    };
    assert_eq!(rows(), rows());
}

#[test]
fn a_wrong_result_is_a_finding() {
    let output = check("allgather --algorithm direct:1x32 --ranks 2 --mode ordered --seeds 3")
        .arg("--inject-fault")
        .output()
        .expect("ran");
    let said = ended(&output, 1);
    assert!(said.contains("wrong result: rank 1: allgather of 64 bytes of float"), "{said}");
    assert!(said.contains("# One run with a finding."), "{said}");
    let again = said.lines().find(|line| line.contains("    mscclrs check ")).expect("again");
    let words = "allgather --algorithm direct:1x32 --ranks 2 -b 4 -f 16 -d float --mode ordered";
    let seed = format!("{words} --first-seed 0 --seeds 1");
    assert!(again.ends_with(&seed), "{again}");
    ended(&check(&seed).output().expect("ran"), 0);
    // The byte is wrong in every order.
    let shortest = format!("{words} --schedule departures:none");
    assert!(said.lines().any(|line| line.ends_with(&shortest)), "{said}");
    let again = check(&shortest).arg("--inject-fault").output().expect("ran");
    let again = ended(&again, 1);
    assert!(again.contains("wrong result: rank 1") && !again.contains("told is"), "{again}");
}

#[test]
fn a_fault_of_a_seed_is_told_by_its_shortest_run() {
    let output = check("--mode weak --seeds 20 --json - --").arg(race()).output().expect("ran");
    let row: serde_json::Value = serde_json::from_str(&ended(&output, 1)).expect("one row");
    let (found, told) = (&row["found"][0], err(&output));
    let again = found["shortest"]["again"].as_str().expect("a shorter run");
    assert!(again.contains("MSCCLRS_SIM=weak,schedule=departures:"), "{again}");
    // Nothing is late in the run that has no departure, and one load is in what is told.
    assert!(!again.contains("departures:none") && !again.contains('+'), "{again}");
    assert!(told.contains(again) && told.contains("that has the fewest departures; "), "{told}");
    let again = Command::new("sh").args(["-c", again]).output().expect("ran");
    assert!(err(&again).contains("a wrong message"), "{}", err(&again));
    // The same by the option, which needs no seed.
    let mode = found["shortest"]["mode"].as_str().expect("a mode");
    let schedule = mode.split_once("schedule=").expect("departures").1;
    let output = check(&format!("--mode weak --schedule {schedule} --")).arg(race()).output();
    let said = ended(&output.expect("ran"), 1);
    assert!(said.contains("a wrong message") && !said.contains("fewest departures"), "{said}");
}

#[test]
fn nobody_shortens_what_nobody_wants_shortened() {
    let output = check("--mode checked --seeds 1 --shorten 0 --").arg(race()).output();
    let said = ended(&output.expect("ran"), 1);
    assert!(said.contains("race: two accesses") && !said.contains("departures"), "{said}");
}

#[test]
fn a_shorter_run_is_looked_for_no_longer_than_was_said() {
    // The seed's run is quick, and all others take long.
    let folder = tempfile::tempdir().expect("folder");
    let again = folder.path().join("again");
    let script = format!("test -e {0} && sleep 100; touch {0}; \"$RACE\"", again.display());
    let since = Instant::now();
    let said = ended(&sh("--mode checked --seeds 1 --shorten 0.5", &script), 1);
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    let none =
        "no shorter run is known: 0 runs were made within 0.5 s, without a fault of this kind";
    assert!(said.contains("race: two accesses") && said.contains(none), "{said}");
}

#[test]
fn what_cannot_be_shortened_says_why() {
    // Two processes with kernels have an order each.
    let script = "\"$RACE\" --mended; \"$RACE\"";
    let said = ended(&sh("--mode checked --seeds 1", script), 1);
    assert!(said.contains("race: two accesses"), "{said}");
    assert!(said.contains("it was not shortened: several processes of the command"), "{said}");
}

#[test]
fn every_order_of_few_departures_can_be_run() {
    let output =
        check("--exhaustive=1 --json - --").arg(race()).arg("--mended").output().expect("ran");
    let rows: Vec<serde_json::Value> =
        ended(&output, 0).lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    for row in &rows {
        assert_eq!(row["orders"]["complete"].as_bool(), Some(true), "{row}");
        assert_eq!(row["orders"]["within"].as_u64(), Some(1), "{row}");
        assert!(row["orders"]["runs"].as_u64() > Some(2), "{row}");
    }
    let told = err(&output);
    let complete = "complete: every order with up to 1 departure, ";
    assert_eq!(told.matches(complete).count(), rows.len(), "{told}");
    // Less than all is told as that.
    let some =
        "allreduce --algorithm mesh:1x32 --ranks 2 -e 4 --mode checked --exhaustive --max-runs 3";
    let said = ended(&check(some).output().expect("ran"), 0);
    let stopped = "stopped after 3 runs (--max-runs); the default order was run";
    assert!(said.contains(stopped), "{said}");
    // It ends with the first finding.
    let output = check("--mode weak --exhaustive --").arg(race()).output().expect("ran");
    let said = ended(&output, 1);
    assert!(said.contains("ended by a finding after "), "{said}");
    assert!(said.contains("; the default order had none"), "{said}");
    assert!(said.contains("found with weak,schedule=departures:"), "{said}");
}

#[test]
fn departures_that_are_not_reached_are_an_error() {
    let own = "allgather --algorithm direct:1x32 --ranks 2 --mode checked --schedule";
    let own = check(own).arg("departures:99999999=1").output().expect("ran");
    let command = check("--mode weak --schedule departures:99999999=1 --")
        .args([race().as_os_str(), "--mended".as_ref()])
        .output()
        .expect("ran");
    for output in [own, command] {
        let text = err(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("the departure 99999999=1 was not reached: the run has"), "{text}");
    }
}

#[test]
fn options_of_seeds_and_of_departures_exclude_each_other() {
    for (arguments, word) in [
        ("--exhaustive --seeds 3", "--seeds and --exhaustive"),
        ("--exhaustive --schedule random", "--schedule and --exhaustive"),
        ("--exhaustive --shorten 1", "--shorten and --exhaustive"),
        ("--max-runs 3", "--max-runs is for --exhaustive"),
        ("--mode weak --schedule departures:none --first-seed 2", "--first-seed and --schedule"),
        ("--schedule departures:none", "allowed is --mode with one"),
        ("--mode weak --schedule departures:2=0", "is no list of departures"),
        ("--schedule fast", "departures:none"),
    ] {
        let output = check(arguments).args(["--", "true"]).output().expect("ran");
        let text = err(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_race_is_told_once_with_what_shows_it_again_and_its_trace() {
    let folder = tempfile::tempdir().expect("folder");
    let trace = folder.path().join("trace.json");
    let output = check("--mode checked --first-seed 3 --seeds 4 --trace")
        .arg(&trace)
        .arg("--")
        .arg(race())
        .output()
        .expect("ran");
    let said = ended(&output, 1);
    assert_eq!(said.matches("race: two accesses to the same memory").count(), 1, "{said}");
    assert!(said.contains("examples/race/src/lib.rs"), "{said}");
    assert!(said.contains("found with checked,seed=3"), "{said}");
    let again = said.lines().find(|line| line.contains("MSCCLRS_SIM=")).expect("again").trim();
    let race = race();
    assert_eq!(again, format!("MSCCLRS_DEVICE=cpu MSCCLRS_SIM=checked,seed=3 {}", race.display()));
    let again = Command::new("sh").args(["-c", again]).output().expect("ran");
    assert!(err(&again).contains("race: two accesses"), "{}", err(&again));

    let text = std::fs::read_to_string(&trace).expect("written");
    let trace: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(trace["traceEvents"].as_array().expect("events").len() > 10);
}

/// Without the command too, whatever the program prints of its errors; with a report the report has it.
#[test]
fn what_the_environment_asks_for_is_told_on_standard_error() {
    let run = |report: Option<&Path>| {
        let mut command = Command::new(race());
        command.env("MSCCLRS_DEVICE", "cpu").env("MSCCLRS_SIM", "checked,seed=3");
        command.env_remove("RUST_BACKTRACE").stdin(Stdio::null());
        command.envs(report.map(|folder| ("MSCCLRS_SIM_REPORT", folder)));
        let output = command.output().expect("ran");
        assert!(!output.status.success());
        err(&output).matches("MSCCLRS_SIM has found a fault: race: two accesses").count()
    };
    let folder = tempfile::tempdir().expect("folder");
    assert_eq!((run(None), run(Some(folder.path()))), (1, 0));
}

#[test]
fn the_mended_kernel_has_no_findings() {
    let folder = tempfile::tempdir().expect("folder");
    let trace = folder.path().join("trace.json");
    let run = |arguments: &str| {
        let mut command = check(arguments);
        command.arg("--trace").arg(&trace).arg("--").arg(race()).arg("--mended");
        command.output().expect("ran")
    };
    let output = run("--seeds 3 --json -");
    for row in ended(&output, 0).lines() {
        let row: serde_json::Value = serde_json::from_str(row).expect("JSON");
        assert_eq!((row["seeds"].as_u64(), row["kernels"].as_u64()), (Some(3), Some(6)), "{row}");
        assert_eq!(row["findings"].as_u64(), Some(0), "{row}");
    }
    assert!(err(&output).contains("was not written") && !trace.exists(), "{}", err(&output));
    // The only run there is has its trace.
    ended(&run("--seeds 1 --mode checked"), 0);
    assert!(std::fs::read_to_string(&trace).expect("written").contains("traceEvents"));
}

#[test]
fn in_weak_mode_missing_order_shows_in_what_the_program_checks() {
    let output = check("--mode weak --seeds 20 --").arg(race()).output().expect("ran");
    let said = ended(&output, 1);
    assert!(said.contains("failure: the command exited with status 1"), "{said}");
    assert!(said.contains("weak mode") && said.contains("a wrong message"), "{said}");
    // The load and the store that nothing orders.
    let (load, store) = said.split_once("what was there before\n").expect("a late load");
    for (told, words, rank) in
        [(load, "plain load", "device 1"), (store, "plain store", "device 0")]
    {
        assert!(told.contains(words) && told.contains(rank), "{said}");
        assert!(told.contains("examples/race/src/lib.rs"), "{said}");
    }
}

#[test]
fn equal_findings_are_told_once_with_their_number() {
    let output = check("--mode checked --seeds 12 --keep-going --json - --")
        .arg(race())
        .output()
        .expect("ran");
    let row: serde_json::Value = serde_json::from_str(&ended(&output, 1)).expect("one row");
    assert_eq!((row["seeds"].as_u64(), row["findings"].as_u64()), (Some(12), Some(12)), "{row}");
    let found = row["found"].as_array().expect("findings");
    let runs: u64 = found.iter().map(|found| found["runs"].as_u64().unwrap()).sum();
    assert_eq!(runs, 12, "{row}");
    assert!(found.len() < 12, "{row}");
    let told = err(&output);
    assert_eq!(told.matches("found with ").count(), found.len(), "{told}");
}

#[test]
fn what_a_program_does_with_its_error_hides_no_finding() {
    // Also not behind other processes of the command that have no finding.
    let script = "\"$RACE\" --mended; \"$RACE\" >/dev/null 2>&1; \"$RACE\" --mended; exit 0";
    let said = ended(&sh("--mode checked --seeds 1", script), 1);
    assert!(said.contains("race: two accesses"), "{said}");
}

#[test]
fn a_command_without_kernels_does_not_pass() {
    let output = sh("--seeds 3", "echo nothing");
    let text = err(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.contains(
            "ran no kernel on a CPU device, or ended before its first one began; allowed are"
        ),
        "{text}"
    );
    assert!(text.contains("threads") && output.stdout.is_empty(), "{text}");
}

#[test]
fn ranks_have_to_be_threads() {
    let bench = "\"$MSCCLRS\" bench allreduce --ranks 2 -b 64 -e 64 -n 1 -w 0";
    let said = ended(&sh("--seeds 1", bench), 1);
    assert!(said.contains("exited with status 2 before it ran a kernel"), "{said}");
    assert!(said.contains("with --threads"), "{said}");
    let said = ended(&sh("--seeds 1", &format!("{bench} --threads")), 0);
    assert!(said.contains("# Nothing was found."), "{said}");
}

#[test]
fn how_a_command_failed_is_told_with_its_last_words() {
    for (script, words) in [
        ("echo some words; echo more >&2; exit 3", &["exited with status 3", "some words", "more"]),
        ("echo some words; kill -9 $$", &["was killed by signal 9 (SIGKILL)", "some words", ""]),
        ("\"$RACE\" --mendde", &["exited with status 1", "before it ran a kernel", "--mendde"]),
        ("\"$RACE\" --mended; exit 5", &["exited with status 5, and no", "every word is 42", ""]),
    ] {
        let said = ended(&sh("--mode checked --seeds 2", script), 1);
        for word in words {
            assert!(said.contains(word), "{script}: {said}");
        }
        assert!(!said.contains("weak mode"), "{said}");
    }
}

#[test]
fn who_cannot_be_started_is_told_as_shells_do() {
    for (command, status) in [("/nowhere/program", 127), ("/etc/passwd", 126)] {
        let output = check("--seeds 2 --").arg(command).output().expect("ran");
        let text = err(&output);
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.contains(&format!("'{command}' cannot be started")), "{text}");
    }
}

fn is_gone(pid: &str) -> bool {
    let pid = pid.trim().parse().ok().and_then(Pid::from_raw).expect("a process");
    test_kill_process(pid).is_err()
}

#[test]
fn a_time_limit_ends_all_that_the_command_started() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("pid");
    let since = Instant::now();
    let script = format!("sleep 100 & echo $! > {}; echo waiting; wait", path.display());
    let said = ended(&sh("--time-limit 0.5 --seeds 5", &script), 1);
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    assert!(said.contains("did not end within 0.5 s") && said.contains("waiting"), "{said}");
    assert!(is_gone(&std::fs::read_to_string(path).expect("written")));
}

#[test]
fn who_interrupts_a_check_ends_the_command() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 100", path.display());
    let mut command = check("--seeds 5");
    command.args(["--", "sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().expect("started");
    let until = Instant::now() + Duration::from_secs(30);
    while !path.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("ended");
    assert_eq!(output.status.code(), Some(130), "{}", err(&output));
    assert!(err(&output).contains("interrupted"), "{}", err(&output));
    assert!(is_gone(&std::fs::read_to_string(path).expect("written")));
}

#[test]
fn who_interrupts_the_search_for_a_shorter_run_is_told_what_was_found() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("second");
    // The first run is the seed's; the second one never ends.
    let runs = "[ -e $0 ] && { touch $0.begun; exec sleep 100; }; touch $0; exec \"$RACE\"";
    let mut command = check("--mode checked --shorten 100");
    command.args(["--", "sh", "-c", runs]).arg(&path).env("RACE", race());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let begun = path.with_extension("begun");
    let until = Instant::now() + Duration::from_secs(30);
    while !begun.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("ended");
    let said = ended(&output, 130);
    assert!(said.contains("race: two accesses"), "{said}");
    assert!(said.contains("found with checked,seed=0; to see it again"), "{said}");
    assert!(err(&output).contains("interrupted"), "{}", err(&output));
}

#[test]
fn a_command_that_runs_in_another_mode_is_not_checked() {
    let output = sh("--mode checked --seeds 2", "MSCCLRS_SIM=ordered exec \"$RACE\" --mended");
    let text = err(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    let modes = "with MSCCLRS_SIM=ordered,seed=0, and was told to with checked,seed=0";
    assert!(text.contains(modes) && output.stdout.is_empty(), "{text}");
}

#[test]
fn a_report_or_trace_without_room_is_told_as_that() {
    // As a process leaves it that finds no room.
    let output = sh("--seeds 1", "touch \"$MSCCLRS_SIM_REPORT/7-1.unfinished\"");
    let text = err(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("could not write what it reports to"), "{text}");
    assert!(text.contains("TMPDIR names another folder"), "{text}");

    let folder = tempfile::tempdir().expect("folder");
    let trace = folder.path().join("trace.json");
    let mut command = check("--mode checked --seeds 1 --shorten 0 --trace");
    let script = "\"$RACE\" --mended; rm \"$MSCCLRS_SIM_TRACE\"";
    command.arg(&trace).args(["--", "sh", "-c", script]).env("RACE", race());
    let output = command.output().expect("ran");
    ended(&output, 0);
    assert!(!trace.exists());
    assert!(
        err(&output).contains("the run left no trace, or there was no room"),
        "{}",
        err(&output)
    );
}

#[test]
fn what_ran_no_kernel_is_not_shortened() {
    let said = ended(&sh("--mode checked --seeds 2", "exit 3"), 1);
    assert!(said.contains("before it ran a kernel") && !said.contains("told is"), "{said}");
}

#[test]
fn a_trace_goes_to_a_file() {
    let output = check("--trace -").args(["--", "true"]).output().expect("ran");
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("--trace: '-' is not a file"), "{}", err(&output));
}

/// What stands between "```text" and "```" on a page.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next())
}

#[test]
fn the_page_shows_the_report_of_the_example() {
    let page = include_str!("../../../docs/src/checking.md");
    let told = blocks(page).find(|block| block.contains("race: two accesses")).expect("quoted");
    // What stands in front of the report, and behind it, names the command as it was started.
    let report = |said: &str| {
        let from = said.find("race: two").expect("found");
        let to = said.find("  found with").expect("found");
        // Memory is numbered as the ranks' threads come to it.
        let parts = said[from..to].trim_end().split(" of memory ");
        let rest = parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
        rest.collect::<Vec<_>>().join(" of memory ")
    };
    let output = check("--mode checked --seeds 1 --").arg(race()).output().expect("ran");
    let said = ended(&output, 1);
    assert_eq!(report(&said), report(told), "docs/src/checking.md does not show this:\n{said}");
}

//! `mscclrs info` as people and programs see it: bounded, without noise, honest about what is wrong,
//! silent about secrets.

use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;

/// What a run printed. The environment is this test's, without what a launcher may have left in it.
fn info(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = Command::cargo_bin("mscclrs").expect("built");
    command.arg("info").args(arguments);
    told(command, environment)
}

fn told(mut command: Command, environment: &[(&str, &str)]) -> String {
    for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"] {
        command.env_remove(name);
    }
    let output = command.envs(environment.iter().copied()).output().expect("ran");
    assert_eq!(output.status.code(), Some(0), "{environment:?}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(environment: &[(&str, &str)]) -> Value {
    serde_json::from_str(&info(&["--json"], environment)).expect("one object")
}

/// The problems as one text a problem.
fn problems(info: &Value) -> Vec<String> {
    let problems = info["problems"].as_array().expect("a list");
    let text = |field: &Value| field.as_str().expect("text").to_owned();
    problems.iter().map(|one| format!("{} -> {}", text(&one["what"]), text(&one["fix"]))).collect()
}

#[test]
fn the_report_fits_a_page_and_ends_soon() {
    let begin = Instant::now();
    let text = info(&[], &[]);
    assert!(begin.elapsed() < Duration::from_secs(90));
    for line in text.lines() {
        let words = line.split_whitespace().count();
        assert!(line.chars().count() <= 100 || words == 1, "{line}");
    }
    for part in ["Devices", "cpu:0", "Network", "Libraries", "Launch", "Limits", "MSCCLRS_TIMEOUT"]
    {
        assert!(text.contains(part), "{part} is missing");
    }
}

#[test]
fn memory_of_the_cpu_device_reaches_another_process() {
    let info = json(&[]);
    let devices = info["devices"].as_array().expect("a list");
    let cpu = devices.iter().find(|device| device["kind"] == "cpu").expect("always there");
    let handles = cpu["handles"].as_array().expect("a list");
    let works = |kind: &str| {
        let handle = handles.iter().find(|handle| handle["kind"] == kind).expect("tried");
        assert_eq!(handle["works"] == false, handle["why"].is_string());
        handle["works"].as_bool().expect("yes or no")
    };
    assert_eq!([works("Fabric"), works("PosixFd"), works("RuntimeIpc")], [false, true, false]);
}

#[test]
fn what_the_environment_says_is_told_with_what_is_wrong() {
    let info = json(&[
        ("MSCCLRS_TIMEOUT", "soon"),
        ("MSCCLRS_TIMOUT", "3"),
        ("MSCCLRS_CPU_THREADS", "33"),
        ("MSCCLRS_ADDRESS", "here"),
        ("MSCCLRS_SOCKET_IFNAME", "no-such"),
        ("WORLD_SIZE", "2"),
    ]);
    let problems = problems(&info);
    for part in [
        "MSCCLRS_TIMEOUT=soon: the value is not allowed -> set it to seconds, more than 0",
        "MSCCLRS_TIMOUT is set, and nobody reads it -> did you mean MSCCLRS_TIMEOUT?",
        "MSCCLRS_CPU_THREADS=33: the value is not allowed -> set it to a multiple of 32",
        "port is missing",
        "no network interface with an address fits \"no-such\"",
        "RANK is not set, but WORLD_SIZE needs it",
    ] {
        let told = problems.iter().filter(|problem| problem.contains(part)).count();
        assert_eq!(told, 1, "{part}: {problems:#?}");
    }
    let variables = info["variables"].as_array().expect("a list");
    let find = |name: &str| variables.iter().find(|one| one["name"] == name).expect("there");
    assert_eq!(find("MSCCLRS_TIMEOUT")["value"], "soon");
    assert_eq!(find("MSCCLRS_HOSTID")["value"], Value::Null);
    assert_eq!(find("MSCCLRS_HOSTID")["alias"], "MSCCLPP_HOSTID");
}

#[test]
fn what_a_launcher_says_is_told() {
    let info = json(&[
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
    ]);
    let launch = &info["launch"];
    assert_eq!((&launch["launcher"], &launch["rank"]), (&"torchrun".into(), &1.into()));
    assert_eq!(launch["rendezvous"], "node0:29501");
    assert_eq!(launch["error"], Value::Null);
}

#[test]
fn secrets_are_never_printed() {
    let secrets = [
        ("MSCCLRS_SECRET", "sesame-sesame"),
        ("TORCHELASTIC_RUN_ID", "sesame-run"),
        ("SLURM_JOB_ID", "sesame-job"),
        ("MSCCLRS_BENCH_RENDEZVOUS", "sesame-id"),
    ];
    for arguments in [&[] as &[&str], &["--json"]] {
        let text = info(arguments, &secrets);
        assert!(!text.contains("sesame"), "{text}");
        for part in ["set, 13 bytes", "set, 10 bytes", "set, 9 bytes"] {
            assert!(text.contains(part), "{part}");
        }
    }
    let short = info(&["--json"], &[("MSCCLRS_SECRET", "sesame")]);
    assert!(!short.contains("sesame") && short.contains("at least 8 bytes"));
}

#[test]
fn low_limits_are_problems() {
    let mut command = Command::new("/bin/sh");
    let program = assert_cmd::cargo::cargo_bin("mscclrs");
    command.args(["-c", "ulimit -n 200 && exec \"$0\" info --json"]).arg(program);
    let info = serde_json::from_str(&told(command, &[])).expect("one object");
    let problems = problems(&info);
    assert!(problems.iter().any(|problem| problem.contains("200 files open")), "{problems:?}");
}

#[test]
fn a_question_that_nobody_asked_is_refused() {
    let mut command = Command::cargo_bin("mscclrs").expect("built");
    let output = command.arg("info").env("MSCCLRS_INFO_PROBE", "1").output().expect("ran");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("MSCCLRS_INFO_PROBE") && text.contains("unset it"), "{text}");
    assert_eq!(text.lines().count(), 1);
}

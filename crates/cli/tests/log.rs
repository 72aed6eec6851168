//! The log of the command and of the ranks that it starts.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The command on the CPU device, without a log of whoever runs the tests.
fn mscclrs(arguments: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("mscclrs"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.contains("_DEBUG") || name.starts_with("MSCCLPP_LOG") {
            command.env_remove(name.as_ref());
        }
    }
    command
        .args(arguments.split_whitespace())
        .env("MSCCLRS_DEVICE", "cpu")
        .envs(variables.iter().copied())
        .output()
        .expect("ran")
}

const BENCH: &str = "bench allreduce --ranks 2 -e 8 -n 1";

fn stderr(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn without_a_wish_nothing_is_said() {
    assert_eq!(stderr(&mscclrs(BENCH, &[])), "");
}

#[test]
fn steps_of_every_rank_are_told_at_info_and_details_at_debug() {
    let info = stderr(&mscclrs(BENCH, &[("MSCCLRS_DEBUG", "info")]));
    for step in [
        "INIT a launcher started this process launcher=mscclrs",
        "BOOTSTRAP all ranks have come",
        "INIT a communicator is made",
        "COLL a table of algorithms is chosen table=\"built in\"",
        "INIT a communicator ends",
    ] {
        for rank in 0..2 {
            let told = format!("[{rank}] INFO {step}");
            assert!(info.lines().any(|line| line.contains(&told)), "{told}\n{info}");
        }
    }
    // The lines of all ranks say themselves whose they are, with nothing in front.
    assert!(info.lines().all(mscclrs_log::is_line), "{info}");
    assert!(!info.contains(" DEBUG "), "{info}");
    let debug = stderr(&mscclrs(BENCH, &[("MSCCLRS_DEBUG", "debug")]));
    for detail in ["GPU a device is open", "MEMORY a peer's memory is mapped", "COLL an algorithm"]
    {
        assert!(debug.contains(&format!("[1] DEBUG {detail}")), "{detail}\n{debug}");
    }
}

#[test]
fn only_the_subsystems_asked_for_are_shown() {
    let variables = [("MSCCLRS_DEBUG", "debug"), ("MSCCLRS_DEBUG_SUBSYS", "COLL,conn")];
    let said = stderr(&mscclrs(BENCH, &variables));
    assert!(said.contains(" COLL "), "{said}");
    assert!(said.lines().all(|line| line.contains(" COLL ") || line.contains(" CONN ")), "{said}");
}

#[test]
fn ranks_add_whole_lines_of_json_to_one_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("log");
    let variables =
        [("MSCCLRS_DEBUG", "trace"), ("MSCCLRS_DEBUG_FILE", file.to_str().expect("text"))];
    let output = mscclrs(&format!("--log-json {BENCH}"), &variables);
    assert_eq!(stderr(&output), "");
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).expect("text");
    let mut lines_of = BTreeMap::new();
    for line in objects(&text) {
        assert!(line["message"].is_string() && line["fields"].is_object(), "{line}");
        *lines_of.entry(line["rank"].as_u64()).or_insert(0) += 1;
    }
    // The starter, which is no rank, serves the rendezvous.
    assert_eq!(lines_of.keys().collect::<Vec<_>>(), [&None, &Some(0), &Some(1)]);
    assert!(lines_of[&Some(0)] > 20 && lines_of[&Some(1)] > 20, "{lines_of:?}");
}

#[test]
fn each_rank_has_a_file_of_its_own_where_the_name_says_so() {
    let name_of = |folder: &Path| folder.join("%h.%r").to_str().expect("text").to_owned();
    for form in ["", " --threads"] {
        let folder = tempfile::tempdir().expect("a folder");
        let name = name_of(folder.path());
        let variables = [
            ("MSCCLRS_DEBUG", "info"),
            ("MSCCLRS_DEBUG_FORMAT", "json"),
            ("MSCCLRS_DEBUG_FILE", name.as_str()),
        ];
        stderr(&mscclrs(&format!("{BENCH}{form}"), &variables));
        let mut ranks = Vec::new();
        for entry in std::fs::read_dir(folder.path()).expect("files") {
            let path = entry.expect("a file").path();
            let ending = path.extension().expect("a rank").to_string_lossy().into_owned();
            for line in objects(&std::fs::read_to_string(&path).expect("text")) {
                let rank = line["rank"].as_u64().map_or("none".into(), |rank| rank.to_string());
                assert_eq!(rank, ending, "{line}");
            }
            ranks.push(ending);
        }
        ranks.sort();
        assert_eq!(ranks, ["0", "1", "none"], "{form}");
    }
}

#[test]
fn launch_gives_its_ranks_the_form_of_the_log() {
    let output = mscclrs("launch -n 1 --log-json -- /bin/sh -c env", &[("MSCCLRS_DEBUG", "info")]);
    let said = String::from_utf8(output.stdout.clone()).expect("text");
    assert!(said.contains("MSCCLRS_DEBUG_FORMAT=json"), "{said}");
    let told = objects(&stderr(&output));
    let messages: Vec<_> = told.iter().filter_map(|line| line["message"].as_str()).collect();
    assert_eq!(messages, ["a task is started", "a task has ended"]);
}

#[test]
fn a_warning_is_told_plainly_beside_a_log_in_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("log");
    let variables = [
        ("MSCCLRS_RANK", "0"),
        ("MSCCLRS_WORLD_SIZE", "2"),
        ("MSCCLRS_ADDRESS", "192.0.2.1:9"),
        ("MSCCLRS_BOOTSTRAP_TIMEOUT", "1"),
        ("MSCCLRS_DEBUG", "warn"),
    ];
    let warning = "there is no secret, so";
    let with_file = [&variables[..], &[("MSCCLRS_DEBUG_FILE", file.to_str().expect("text"))]];
    let output = mscclrs(BENCH, &with_file.concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.lines().filter(|line| line.starts_with(warning)).count(), 1, "{said}");
    let logged = std::fs::read_to_string(&file).expect("text");
    assert!(logged.contains("[0] WARN BOOTSTRAP there is no secret"), "{logged}");
    // Once is enough where both would go to the same place.
    let output = mscclrs(BENCH, &variables);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.lines().filter(|line| line.contains(warning)).count(), 1, "{said}");
}

#[test]
fn mistakes_are_one_sentence() {
    for (name, value, says) in [
        ("MSCCLRS_DEBUG", "loud", "allowed is off, error, warn"),
        ("MSCCLRS_DEBUG_SUBSYS", "INIT,NETS", "'NETS' is not a subsystem; allowed are"),
        ("MSCCLRS_DEBUG_FILE", "log.%d", "'%d' in 'log.%d' means nothing; allowed are"),
        ("MSCCLRS_DEBUG_FILE", "/nowhere/log", "\"/nowhere/log\" cannot be opened: No such file"),
        ("MSCCLRS_DEBUG_FORMAT", "xml", "allowed is text or json"),
    ] {
        let output = mscclrs(BENCH, &[(name, value)]);
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("error: ") && said.contains(says), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

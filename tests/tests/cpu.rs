//! Every check on the CPU device, each a test of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mscclrs-conformance")).args(args).output().unwrap()
}

fn passes(check: &str) {
    let output = program(&["--device", "cpu", "--run", check]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

macro_rules! checks {
    ($($group:ident: $($name:ident),*;)*) => {
        const NAMES: &[&str] = &[$($(concat!(stringify!($group), "::", stringify!($name))),*),*];
        $(mod $group {
            $(#[test]
            fn $name() {
                super::passes(concat!(stringify!($group), "::", stringify!($name)));
            })*
        })*
    };
}

checks! {
    ground: contract, replay;
    collectives: fault, order, lap, replays, all_gather, all_reduce;
    numbers: float_sums, special_floats, integers;
    places: one_rank, mixed, registered, shared_device;
    long: rounds;
    mixture: launched, replayed, communicators;
    graphs: outlive, in_place;
    turns: busy;
    timeouts: record, disagreement, mismatch, bad_table;
    loss: threads, goodbye, compute_goes_on, long_graph;
    processes: killed;
    soak: rendezvous, communicators, connections, semaphores, buffers, flood;
}

#[test]
fn every_check_of_the_program_is_a_test_here() {
    let output = program(&["--device", "cpu", "--list"]);
    let listed = String::from_utf8_lossy(&output.stdout);
    let listed: Vec<&str> = listed.lines().filter_map(|line| line.strip_prefix("cpu ")).collect();
    assert_eq!(listed, NAMES);
}

#[test]
fn the_report_has_a_line_for_each_check() {
    let output = program(&["--device", "cpu", "--filter", "ground::", "--json", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2);
}

#[test]
fn unknown_device_is_refused_with_what_is_allowed() {
    let output = program(&["--device", "tpu"]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("tpu") && message.contains("cpu"), "{message}");
}

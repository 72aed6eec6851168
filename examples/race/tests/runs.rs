//! The kernel is wrong as it is said to be, and right when it is mended.

use std::process::{Command, Output};

fn race(arguments: &[&str], simulation: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_race"));
    command.args(arguments).env("MSCCLRS_SIM", simulation);
    command.output().expect("ran")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

#[test]
fn only_the_mended_kernel_is_without_a_race() {
    for seed in 0..5 {
        let simulation = format!("checked,seed={seed}");
        let wrong = race(&[], &simulation);
        assert!(!wrong.status.success());
        assert!(said(&wrong).contains("race: two accesses"), "{}", said(&wrong));
        let mended = race(&["--mended"], &simulation);
        assert!(mended.status.success(), "{}", said(&mended));
    }
}

#[test]
fn late_writes_make_a_wrong_message_of_the_wrong_kernel_only() {
    let results = |arguments: &[&str]| {
        let runs = (0..20).map(|seed| race(arguments, &format!("weak,seed={seed}")));
        runs.filter(|output| !output.status.success())
            .map(|output| said(&output))
            .collect::<Vec<_>>()
    };
    assert!(results(&[]).iter().any(|said| said.contains("a wrong message")));
    assert_eq!(results(&["--mended"]), [""; 0]);
}

#[test]
fn the_mended_message_arrives_without_a_simulation_too() {
    let output = race(&["cpu", "--mended"], "");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(said(&output), "every word is 42\n");
}

#[test]
fn other_arguments_are_refused_with_what_is_allowed() {
    let output = race(&["--mendde"], "");
    assert!(!output.status.success());
    assert!(
        said(&output).contains("'--mendde' is not allowed; allowed are cpu, cuda and --mended")
    );
}

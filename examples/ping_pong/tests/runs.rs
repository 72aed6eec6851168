//! The program runs as its first lines say.

use std::process::Command;

fn ping_pong(arguments: &[&str]) -> (bool, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_ping_pong")).args(arguments).output().expect("ran");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn two_ranks_play_on_the_cpu_device() {
    let (passed, said) = ping_pong(&[]);
    assert!(passed, "{said}");
    assert!(said.contains("rank 0 on cpu:0") && said.contains("every word is 100"), "{said}");
    assert!(said.contains("rank 1 on cpu:1") && said.contains("every word is 99"), "{said}");
}

#[test]
fn unknown_device_is_refused_with_what_is_allowed() {
    let (passed, said) = ping_pong(&["tpu"]);
    assert!(!passed);
    assert!(said.contains("tpu") && said.contains("one of cpu, cuda"), "{said}");
}

#[test]
fn simulations_find_no_fault() {
    for mode in ["checked", "weak"] {
        for seed in 0..3 {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ping_pong"));
            let output = command.env("MSCCLRS_SIM", format!("{mode},seed={seed}")).output();
            let output = output.expect("ran");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

//! The examples run as their first lines say, on the CPU device.

use std::process::Command;

#[test]
fn allreduce_adds_up_four_ranks() {
    // Beside this test's own program, in cargo's folder of examples.
    let own = std::env::current_exe().unwrap();
    let folder = own.parent().and_then(|deps| deps.parent()).unwrap();
    let program = folder.join("examples/allreduce");
    let output = Command::new(&program).env("MSCCLRS_DEVICE", "cpu").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.matches("every element is 10").count(), 4, "{said}");
}

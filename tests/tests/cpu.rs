//! All checks on the CPU device.

use std::process::Command;

#[test]
fn every_check_passes_on_the_cpu_device() {
    let output = Command::new(env!("CARGO_BIN_EXE_mscclrs-conformance"))
        .args(["--device", "cpu", "--json", "-"])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(report.lines().count() >= 2, "{report}");
}

#[test]
fn unknown_device_is_refused_with_what_is_allowed() {
    let output = Command::new(env!("CARGO_BIN_EXE_mscclrs-conformance"))
        .args(["--device", "tpu"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("tpu") && message.contains("cpu"), "{message}");
}

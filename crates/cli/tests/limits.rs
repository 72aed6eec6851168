//! `bench limits` on the CPU device: what makes sense there, and a word about what does not.

use std::time::Duration;

use assert_cmd::Command;
use serde_json::Value;

#[test]
fn cpu_device_has_launches_hops_and_copies_and_says_what_is_left_out() {
    let mut command = Command::cargo_bin("mscclrs").expect("built");
    command.args(["bench", "limits", "--device", "cpu", "--threads", "--json", "-"]);
    let output = command.timeout(Duration::from_secs(60)).output().expect("runs");
    let table = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{table}");
    assert!(table.contains("the bare kernels are for CUDA"), "{table}");

    let text = String::from_utf8(output.stdout).expect("text");
    let rows: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    let count = |limit: &str| rows.iter().filter(|row| row["limit"] == limit).count();
    assert_eq!((count("empty"), count("hop"), count("bandwidth")), (2, 2, 2), "{text}");
    for row in &rows {
        assert!(row["time_us"].as_f64().is_some_and(|time| time > 0.0), "{row}");
    }
}

//! A crate of a user's own becomes files for GPUs, by the tools that `cargo xtask test` installs.

use assert_cmd::Command;

#[test]
fn crate_of_kernels_becomes_files_for_gpus() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::cargo_bin("mscclrs")
        .expect("built")
        .args(["kernel", "build", "../../examples/ping_pong", "--arch", "90", "--out"])
        .arg(folder.path())
        .output()
        .expect("ran");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(2) && said.contains("tools for device code are missing") {
        // Says what to install, and has written nothing.
        assert!(said.contains("install"), "{said}");
        assert_eq!(folder.path().read_dir().expect("read").count(), 0);
        eprintln!("not built: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    for file in ["ping_pong.json", "ping_pong.sm_90.cubin.zst", "ping_pong.sm_90.ptx.zst"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
    let summary = String::from_utf8_lossy(&output.stdout);
    assert!(summary.contains("volley: at most 256 lanes a block"), "{summary}");
}

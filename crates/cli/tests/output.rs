//! Where results go: pipes that nobody reads, files of runs that fail, sizes that are left out, and
//! what a machine without descriptors is told.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mscclrs(arguments: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("mscclrs"));
    command.args(arguments.split_whitespace()).args(["--device", "cpu"]);
    command
}

/// Reads up to `text`.
fn read_until(from: &mut impl Read, text: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let mut byte = [0];
        assert_eq!(from.read(&mut byte).expect("read"), 1, "{}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
}

/// Processes of this program that `parent` started and that still are.
fn ranks_of(parent: u32) -> Vec<String> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_pipe_that_nobody_reads_ends_the_run_without_a_word() {
    let long = "-b 8 -e 64K -n 1";
    for (arguments, text) in [
        (format!("bench allreduce --ranks 3 {long}"), "# mscclrs"),
        (format!("bench allreduce --ranks 3 {long}"), "(GB/s)"),
        (format!("bench allreduce --ranks 3 {long} --threads"), "(GB/s)"),
        (format!("bench allgather --ranks 3 {long} --json -"), "\"bytes\""),
        ("bench signal -n 10".into(), "# mscclrs"),
        ("bench packet --threads -n 10".into(), "# mscclrs"),
    ] {
        let mut command = mscclrs(&arguments);
        // The table of --json - goes there, and nothing else.
        let json = arguments.contains("--json");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running(command.spawn().expect("started"));
        let mut stdout = running.0.stdout.take().expect("piped");
        read_until(&mut stdout, text);
        let ranks = ranks_of(running.0.id());
        drop(stdout);
        let since = Instant::now();
        let mut said = String::new();
        running.0.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        let status = running.0.wait().expect("ended");
        assert_eq!(status.code(), Some(141), "{arguments}: {said}");
        assert!(since.elapsed() < Duration::from_secs(30), "{arguments}");
        let said: Vec<_> = said.lines().filter(|line| !json || line.starts_with("rank")).collect();
        assert!(said.is_empty(), "{arguments}: {said:?}");
        for rank in ranks {
            assert!(!Path::new(&format!("/proc/{rank}")).exists(), "{arguments}: {rank}");
        }
    }
}

#[test]
fn help_and_mistakes_survive_closed_pipes() {
    for (arguments, status) in [("bench allreduce --help", 0), ("bench dance", 2)] {
        let mut command = mscclrs(arguments);
        let mut running = Running(
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started"),
        );
        drop((running.0.stdout.take(), running.0.stderr.take()));
        assert_eq!(running.0.wait().expect("ended").code(), Some(status), "{arguments}");
    }
}

#[test]
fn a_run_that_fails_or_is_interrupted_leaves_files_as_they_were() {
    for (end, fails) in [("interrupted", false), ("failed", true)] {
        let folder = tempfile::tempdir().expect("folder");
        let (json, plot) = (folder.path().join("rows.json"), folder.path().join("rows.svg"));
        std::fs::write(&json, "the rows of before").expect("written");
        let mut command = mscclrs(&format!(
            "bench allreduce --ranks 2 -b 8 -e 16K -n 1 --json {} --plot {}",
            json.display(),
            plot.display()
        ));
        command.stderr(Stdio::null());
        if fails {
            let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
            assert!(!command.stdout(full).status().expect("ran").success());
        } else {
            let mut running = Running(command.stdout(Stdio::piped()).spawn().expect("started"));
            // A row has been measured.
            read_until(running.0.stdout.as_mut().expect("piped"), "one-shot");
            drop(running);
        }
        assert_eq!(std::fs::read_to_string(&json).expect("read"), "the rows of before", "{end}");
        let names: Vec<_> = std::fs::read_dir(folder.path())
            .expect("read")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        assert_eq!(names, ["rows.json"], "{end}");
    }
}

#[test]
fn sizes_that_are_left_out_are_named_and_have_no_row() {
    let output =
        mscclrs("bench allgather --ranks 8 --threads -b 0 -e 64 -n 1 -d half,float --json -")
            .output()
            .expect("ran");
    let table = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{table}");
    let named: Vec<_> = table.lines().filter(|line| line.contains("Left out")).collect();
    assert_eq!(
        named,
        [
            "#  Left out: 8 bytes, less than one half a rank (16 bytes)",
            "#  Left out: 8 and 16 bytes, less than one float a rank (32 bytes)"
        ]
    );
    let rows = String::from_utf8_lossy(&output.stdout);
    let sizes: Vec<(String, u64)> = rows
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .filter(|row| row["in_place"] == true)
        .map(|row| {
            (row["dtype"].as_str().unwrap_or("?").to_owned(), row["bytes"].as_u64().unwrap())
        })
        .collect();
    let of = |dtype: &str, sizes: &[u64]| -> Vec<_> {
        sizes.iter().map(|&size| (dtype.to_owned(), size)).collect()
    };
    assert_eq!(sizes, [of("half", &[0, 16, 32, 64]), of("float", &[0, 32, 64])].concat());
}

#[test]
fn whoever_runs_out_of_descriptors_is_told_the_limit() {
    let program = assert_cmd::cargo::cargo_bin!("mscclrs");
    std::thread::scope(|scope| {
        for (limit, form) in [(4, ""), (8, ""), (14, ""), (8, "--threads"), (16, "--threads")] {
            scope.spawn(move || {
                let script = format!(
                    "ulimit -n {limit} && exec {} bench allreduce --device cpu --ranks 4 -e 8 {form}",
                    program.display()
                );
                let output = Command::new("/bin/sh")
                    .args(["-c", &script])
                    .env("MSCCLRS_BOOTSTRAP_TIMEOUT", "5")
                    .output()
                    .expect("ran");
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(1), "{limit} {form}: {said}");
                assert!(said.contains("`ulimit -n`"), "{limit} {form}: {said}");
                assert!(said.contains(&format!("may have {limit} files")), "{limit} {form}: {said}");
            });
        }
    });
}

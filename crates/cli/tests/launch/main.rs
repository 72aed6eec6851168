//! What `mscclrs launch` promises, seen from outside: ranks, their ends, their output, other hosts; and
//! that ranks of other launchers find each other.

mod hosts;
mod launchers;
mod output;
mod ranks;
mod signals;
mod torchrun;
mod usage;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// The most that anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// A small run of `bench`, as a program that all ranks have to take part in.
const BENCH: &str = "bench allreduce -b 1K -e 1K -n 2 -w 0 --device cpu";

fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin("mscclrs")
}

/// `mscclrs launch` with options in one text, and the script that each rank's shell runs.
fn launch(options: &str, script: &str) -> Command {
    let mut command = Command::new(program());
    command.arg("launch").args(options.split_whitespace()).args(["--", "sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

struct Ended {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(mut command: Command) -> Ended {
    Running(command.spawn().expect("started")).ended()
}

/// A process that is killed when the test ends early.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(mut command: Command) -> Running {
        Running(command.spawn().expect("started"))
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(pid(self.0.id()), signal).expect("signalled");
    }

    /// Reads the head of `bench`'s table, which is printed when all ranks are ready to measure.
    fn wait_until_it_measures(&mut self) {
        let stdout = self.0.stdout.as_mut().expect("piped");
        let mut head = Vec::new();
        while !String::from_utf8_lossy(&head).contains("(GB/s)") {
            let mut byte = [0];
            assert_eq!(stdout.read(&mut byte).expect("read"), 1, "ended before it measured");
            head.push(byte[0]);
        }
    }

    /// Its end; both outputs are read at once, so that it never waits for this test.
    fn ended(mut self) -> Ended {
        let mut stderr = self.0.stderr.take().expect("piped");
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).expect("read");
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let mut stdout = Vec::new();
        if let Some(from) = &mut self.0.stdout {
            from.read_to_end(&mut stdout).expect("read");
        }
        let status = self.0.wait().expect("waited");
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        let status = std::os::unix::process::ExitStatusExt::signal(&status)
            .map_or(status.code(), |signal| Some(-signal));
        Ended { status, stdout, stderr: errors.join().expect("read") }
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32).expect("a process")
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < LONG, "{what} did not come to be");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder into which processes write their numbers, so that a test can see what is left of them.
struct Census(tempfile::TempDir);

impl Census {
    fn new() -> Census {
        Census(tempfile::tempdir().expect("a folder"))
    }

    /// For a script: notes the shell that runs it; `name` is what it counts as.
    fn note(&self, name: &str) -> String {
        format!("echo $$ > {0}/.{name} && mv {0}/.{name} {0}/{name}", self.0.path().display())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Waits until so many have noted themselves; gives their numbers.
    fn wait(&self, count: usize) -> Vec<u32> {
        until("all processes", || self.pids().len() == count);
        self.pids()
    }

    fn pids(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        for entry in self.path().read_dir().expect("read") {
            let path = entry.expect("read").path();
            // Those that begin with a dot are being written.
            if !path.file_name().expect("named").to_string_lossy().starts_with('.') {
                let text = std::fs::read_to_string(path).expect("read");
                pids.push(text.trim().parse().expect("a number"));
            }
        }
        pids
    }
}

/// The state of a process, as the system has it in /proc: none if it is not there.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // It follows the name, which is in parentheses.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether nothing is left of a process, not even one that nobody has reaped.
fn is_gone(pid: u32) -> bool {
    state(pid).is_none()
}

/// The sentences of the launcher's among what was written.
fn sentences(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.starts_with("mscclrs: ")).collect()
}

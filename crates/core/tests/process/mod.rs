//! Processes of a test: its binary, started again with a role.
//!
//! A file that uses this has a test named [`TEST`], which plays the role that it finds and does nothing
//! without one, as among the other tests. No process outlives the test that started it.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub const TEST: &str = "started_process";

const ROLE: &str = "CORE_TEST_ROLE";
/// Begins lines of ours among those of the test runner.
const MARK: &str = "> ";

/// For a process to start and to have met others, on a busy machine.
pub const START: Duration = Duration::from_secs(20);

/// What this process was started for, if it was.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Says a line to the test that started this process.
pub fn say(text: &str) {
    println!("\n{MARK}{text}");
}

/// Until the test that started this process says go, or ends.
pub fn wait_for_input() {
    let _ = std::io::stdin().read(&mut [0]);
}

/// The program of all processes.
pub fn program() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

pub struct Process {
    pub child: Child,
    pub lines: mpsc::Receiver<String>,
}

impl Process {
    pub fn start(role: &str) -> Process {
        Process::start_by(program(), role)
    }

    /// By a command that ends with the program.
    pub fn start_by(mut command: Command, role: &str) -> Process {
        let mut child = command
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix(MARK) {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        Process { child, lines }
    }

    /// The next line that it says.
    #[track_caller]
    pub fn hear(&self, limit: Duration) -> String {
        self.lines.recv_timeout(limit).expect("a process said nothing in time")
    }

    /// All that it says until it ends.
    pub fn hear_out(&self) -> Vec<String> {
        self.lines.iter().collect()
    }

    /// Ends its wait for input.
    pub fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

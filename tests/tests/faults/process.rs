//! Processes of a test: this binary again, in a process group of their own, in an empty folder.
//!
//! Invariant: a process ends when its standard input does, so none outlives its test; and what it says
//! on standard output behind a mark is all that it tells, so that whatever it writes to standard error
//! is noise.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mscclrs_gpu::BackendKind;
use rustix::process::{Pid, Signal, WaitOptions};
use tempfile::TempDir;

const ROLE: &str = "FAULTS_ROLE";

/// What the ranks of the matrix run on: the CPU device, or where `FAULTS_DEVICE` is cuda GPUs.
pub(crate) fn kind() -> BackendKind {
    let gpus = std::env::var("FAULTS_DEVICE").is_ok_and(|kind| kind == "cuda");
    if gpus { BackendKind::Cuda } else { BackendKind::Cpu }
}

/// For a process to start, or to come to what takes it no time.
pub(crate) const START: Duration = Duration::from_secs(30);

/// The work that a role names.
pub(crate) fn be() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (kind, rest) = role.split_once(' ').unwrap_or((&role, ""));
    let control = Control::start();
    match kind {
        "rank" => crate::rank::run(rest, &control),
        "fork" => crate::fork::run(rest, &control),
        "limit" => crate::limits::run(rest, &control),
        other => panic!("{other}"),
    }
}

/// Tells the test something.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {}", text.replace('\n', " ")).unwrap();
    out.flush().unwrap();
}

/// What the test wants of a process.
pub(crate) struct Control(Mutex<Receiver<String>>);

impl Control {
    fn start() -> Control {
        let (send, go) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(std::io::stdin()).lines().map_while(Result::ok) {
                if line == "exit" {
                    std::process::exit(0);
                }
                // Whoever waited may be gone.
                let _ = send.send(line);
            }
            // Whoever started this is gone.
            std::process::exit(3);
        });
        Control(Mutex::new(go))
    }

    /// Blocks until the test says "go".
    pub(crate) fn wait(&self) {
        assert_eq!(self.order(), "go");
    }

    /// Blocks until the test says something that begins with "with".
    pub(crate) fn order(&self) -> String {
        let orders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let order = orders.recv().unwrap();
        order.strip_prefix("with ").map_or(order.clone(), str::to_owned)
    }
}

/// The processes of a test.
pub(crate) struct Group {
    pub(crate) folder: TempDir,
    leader: Option<Pid>,
}

impl Group {
    pub(crate) fn new() -> Group {
        // Processes that ranks leave behind become this one's, and are reaped by `is_alive`.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        Group { folder: tempfile::tempdir().unwrap(), leader: None }
    }

    pub(crate) fn start(&mut self, role: &str) -> Process {
        let folder = self.folder.path();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["started_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(["TMPDIR", "HOME", "XDG_RUNTIME_DIR"].map(|name| (name, folder)))
            .current_dir(folder)
            .process_group(self.leader.map_or(0, |leader| leader.as_raw_nonzero().get()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = Pid::from_child(&child);
        self.leader.get_or_insert(pid);
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, said) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(text) = line.strip_prefix("> ") {
                    // Whoever heard it may be gone.
                    let _ = send.send((Instant::now(), text.to_owned()));
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let noise = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let stdin = child.stdin.take();
        Process { name: role.to_owned(), pid, child, stdin, said, noise: Mutex::new(Some(noise)) }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process_group(self.leader.unwrap(), signal).unwrap();
    }

    /// Whether a process of the group is alive, once all that were started here have ended.
    pub(crate) fn is_alive(&self) -> bool {
        let Some(leader) = self.leader else { return false };
        while let Ok(Some(_)) = rustix::process::waitpgid(leader, WaitOptions::NOHANG) {}
        rustix::process::test_kill_process_group(leader).is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            // None left is what is wanted.
            let _ = rustix::process::kill_process_group(leader, Signal::KILL);
        }
    }
}

/// One of them.
pub(crate) struct Process {
    name: String,
    pid: Pid,
    child: Child,
    stdin: Option<ChildStdin>,
    said: Receiver<(Instant, String)>,
    noise: Mutex<Option<JoinHandle<String>>>,
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn order(&mut self, word: &str) {
        // A process that ended meanwhile shows by what it does not say.
        let _ = writeln!(self.stdin.as_mut().unwrap(), "{word}");
    }

    pub(crate) fn go(&mut self) {
        self.order("go");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid, signal).unwrap();
    }

    /// What it says behind `word` next, and when.
    pub(crate) fn hear(&self, word: &str, limit: Duration) -> (Instant, String) {
        match self.said.recv_timeout(limit) {
            Ok((at, text)) => match text.strip_prefix(word) {
                Some(rest) => (at, rest.trim_start().to_owned()),
                None => panic!("{} said `{text}` instead of `{word}`", self.name),
            },
            Err(RecvTimeoutError::Timeout) => panic!("{} does not say `{word}`", self.name),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{} ended before it said `{word}`: {}", self.name, self.noise());
            }
        }
    }

    /// All that it wrote to standard error, once it has ended.
    fn noise(&self) -> String {
        let noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner).take();
        noise.map_or(String::new(), |noise| noise.join().unwrap())
    }

    /// Waits for its end; it must have been silent on standard error.
    pub(crate) fn end(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "{} does not end", self.name),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let noise = self.noise();
        assert!(noise.is_empty(), "{} ended with {status}, and wrote {noise}", self.name);
        status
    }

    /// Blocks until its thread `thread` sleeps and goes on sleeping: it waits for another rank.
    pub(crate) fn until_blocked(&self, thread: &str) {
        let deadline = Instant::now() + START;
        let mut last = None;
        loop {
            let path = format!("/proc/{}/task/{thread}/status", self.pid());
            let mut text = String::new();
            File::open(&path).unwrap().read_to_string(&mut text).unwrap();
            let value = |name| text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            let switches = value("voluntary_ctxt_switches:").to_owned();
            if value("State:").trim_start().starts_with('S') && last.as_ref() == Some(&switches) {
                return;
            }
            last = Some(switches);
            assert!(Instant::now() < deadline, "{} does not come to wait", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! One command, run to its end in a process group of its own, with the end of its output kept.
//!
//! Invariant: when a run is over, nothing of its group is left, however it ended. While it lasts the guard
//! knows the group, so that nothing is left either if this process is killed.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::guard::Guard;
use super::job::{Event, Refused};
use super::signals;
use super::task::{self, Start, Task, files};

/// How long a command may take to end once it is asked to.
const GRACE: Duration = Duration::from_secs(2);
/// How long one that was killed may take; it hangs in the system then.
const LIMIT: Duration = Duration::from_secs(10);
/// How long output of what has left the group is waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Bytes of output that are kept.
const KEPT: usize = 16 << 10;

/// Runs commands, one after the other.
pub(crate) struct Runner {
    guard: Guard,
    events: Receiver<Event>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with a status.
    Exited(i32),
    /// By a signal that is not of this process.
    Killed(i32),
    /// It took too long, and was ended.
    OverTime,
    /// The user asked this process to end by a signal, and it was ended.
    Asked(i32),
}

/// What became of a command.
pub(crate) struct Ended {
    pub(crate) end: End,
    /// The end of what it wrote to standard output and standard error.
    pub(crate) output: String,
}

impl End {
    /// For people, as in "COMMAND exited with status 3".
    pub(crate) fn told(self, limit: Duration) -> String {
        match self {
            End::Exited(status) => format!("exited with status {status}"),
            End::Killed(signal) => format!("was killed by {}", signals::describe(signal)),
            End::OverTime => format!("did not end within {} s and was ended", limit.as_secs_f64()),
            End::Asked(signal) => format!("was ended after {}", signals::describe(signal)),
        }
    }
}

impl Runner {
    /// Catches signals from now on. The calling thread runs the commands, and has to outlive them.
    pub(crate) fn new() -> Result<Runner> {
        let (sender, events) = mpsc::channel();
        signals::watch(sender)?;
        task::adopt_orphans().context("orphans of the command cannot be adopted")?;
        files::make_room();
        Ok(Runner { guard: Guard::start()?, events })
    }

    /// Runs a command, for at most `limit`. It finds the end of its input at once.
    pub(crate) fn run(
        &mut self,
        mut command: Command,
        limit: Duration,
    ) -> Result<Result<Ended, Refused>> {
        let (from, to) = io::pipe().context("a pipe for the command's output cannot be made")?;
        let also_to = to.try_clone().context("a pipe for the command's output cannot be made")?;
        command.stdin(Stdio::null()).stdout(to).stderr(also_to);
        let output = Output::keep(from)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let start = Start {
            name: "check".into(),
            mark: Vec::new(),
            lifeline: None,
            hint: String::new(),
            command,
        };
        let mut task = match Task::start(start) {
            Ok((task, _)) => task,
            Err(error) => return Ok(Err(Refused::new("check", &program, &error))),
        };
        self.guard.add(task.group());
        let end = self.wait(&mut task, limit);
        // What it has left behind, and what could not be waited for.
        match end {
            Some(_) => task.end(),
            None => task.kill_now(),
        }
        self.guard.remove(task.group());
        let end = end.with_context(|| format!("'{program}' cannot be killed"))?;
        Ok(Ok(Ended { end, output: output.finish() }))
    }

    /// Waits for the end; nothing if it cannot be killed.
    fn wait(&mut self, task: &mut Task, limit: Duration) -> Option<End> {
        let mut until = Instant::now().checked_add(limit);
        let mut ended_for = None;
        let mut is_killed = false;
        loop {
            while let Some((pid, status)) = task::reap() {
                if task.is_running() && pid == task.group() {
                    task.ended();
                    return Some(ended_for.unwrap_or_else(|| end(status)));
                }
            }
            let wait = until.map_or(LIMIT, |until| until.saturating_duration_since(Instant::now()));
            match self.events.recv_timeout(wait) {
                Ok(Event::Signal(signal)) if signals::asks_to_end(signal) => {
                    let again = matches!(ended_for, Some(End::Asked(_)));
                    ended_for = Some(End::Asked(signal.as_raw()));
                    // Asked twice, it is killed at once.
                    until = Instant::now().checked_add(if again { Duration::ZERO } else { GRACE });
                    task.signal(signal);
                    task.signal(Signal::CONT);
                }
                Ok(Event::Stop) => {
                    task.signal(Signal::STOP);
                    signals::stop_self();
                    task.signal(Signal::CONT);
                }
                Ok(_) => {}
                Err(_) if until.is_none_or(|until| Instant::now() < until) => {}
                Err(_) if is_killed => return None,
                Err(_) if ended_for.is_some() => {
                    is_killed = true;
                    until = Instant::now().checked_add(LIMIT);
                    task.kill_now();
                }
                Err(_) => {
                    ended_for = Some(End::OverTime);
                    until = Instant::now().checked_add(GRACE);
                    task.signal(Signal::TERM);
                    task.signal(Signal::CONT);
                }
            }
        }
    }
}

fn end(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited(code),
        (None, signal) => End::Killed(signal.unwrap_or_default()),
    }
}

/// The end of what comes out of a pipe, read by a thread of its own.
struct Output {
    kept: Arc<Mutex<VecDeque<u8>>>,
    over: Receiver<()>,
}

impl Output {
    fn keep(mut from: io::PipeReader) -> Result<Output> {
        let kept = Arc::<Mutex<VecDeque<u8>>>::default();
        let (sender, over) = mpsc::channel::<()>();
        let own = kept.clone();
        // It ends with the pipe, which may be held by what has left the group.
        std::thread::Builder::new()
            .name("mscclrs-output".into())
            .spawn(move || {
                let _sender = sender;
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    let mut kept = own.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.extend(&bytes[..count]);
                    let surplus = kept.len().saturating_sub(KEPT);
                    kept.drain(..surplus);
                }
            })
            .context("a thread cannot be started")?;
        Ok(Output { kept, over })
    }

    fn finish(self) -> String {
        // Nothing is sent: this is the end of the pipe, or the end of patience.
        let _ = self.over.recv_timeout(LAST_WORDS);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(kept.make_contiguous()).into_owned()
    }
}

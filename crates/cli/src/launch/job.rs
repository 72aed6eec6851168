//! What was started, until nothing of it is left.
//!
//! One loop decides: it alone starts, signals and reaps, and it sleeps until a signal, the end of a
//! task, word from the lifeline or a deadline wakes it. What it promises:
//!
//! - A signal that asks to end is passed on, and everything else goes on as the ranks wish.
//! - When a task fails, the others are asked to end, and killed when they do not within the grace.
//! - The loop ends when no process of any group is left; dropping a job kills what is left of it.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::Signal;

use super::guard::Guard;
use super::output::{self, Outputs, Source, Stream};
use super::signals::{self, describe};
use super::task::{self, Start, Task, files};

/// A second signal this soon is the first one again: `timeout` sends each to a process and to its group.
const ECHO: Duration = Duration::from_millis(100);

/// How long those that were killed may take; who takes longer hangs in the system.
const LIMIT: Duration = Duration::from_secs(10);

/// How often groups are looked for whose first process has ended: the system does not tell.
const LOOK: Duration = Duration::from_millis(10);

/// How much longer than the grace a host's part may take, which has the same grace for its ranks.
const TRAVEL: Duration = Duration::from_secs(3);

/// What wakes the loop.
#[derive(Debug)]
pub(super) enum Event {
    /// The lifeline has ended: whoever started this part is gone.
    Abandoned,
    ChildEnded,
    /// To be passed on.
    Signal(Signal),
    /// The terminal asks to stop for a while.
    Stop,
    /// A stream was written to its end, or cannot be.
    Written(Stream, Option<io::Error>),
}

/// What the tasks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hosts,
    /// All ranks, started from a terminal or script.
    Ranks,
    /// The ranks of one host, led by a lifeline: whoever leads knows why it ends them.
    LedRanks,
}

/// Tasks and what becomes of them.
pub(super) struct Job {
    kind: Kind,
    grace: Duration,
    tasks: Vec<Task>,
    guard: Guard,
    events: Receiver<Event>,
    sender: Sender<Event>,
    output: Vec<Source>,
    error: Vec<Source>,
    /// That are not written to their end.
    streams: u32,
    stage: Stage,
    /// Whether what tasks have left behind was asked to end.
    swept: bool,
    /// The signal by which the user asked to end, and when it came last.
    asked: Option<(Signal, Instant)>,
    /// The exit status that the first failure makes.
    failed: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// They were asked to end and are killed then.
    Asked {
        until: Instant,
    },
    /// They were killed; what is not gone by then is left to the system.
    Killed {
        until: Instant,
    },
}

/// Why a task cannot be started; one sentence.
pub(crate) struct Refused {
    sentence: String,
    status: u8,
}

impl Refused {
    /// `name` is who was to run the program.
    pub(super) fn new(name: &str, program: &str, error: &io::Error) -> Refused {
        let (why, status) = match Errno::from_io_error(error) {
            Some(Errno::NOENT) => ("allowed is a program's path or name in PATH", 127),
            Some(Errno::ACCESS) => ("allowed is a file that may be executed", 126),
            Some(Errno::MFILE) => ("`ulimit -n` with a higher number allows more ranks", 1),
            Some(Errno::AGAIN) => ("`ulimit -u` with a higher number allows more ranks", 1),
            _ => ("nothing was left running", 1),
        };
        let sentence = format!("{name}: '{program}' cannot be started: {error}; {why}");
        Refused { sentence, status }
    }

    /// Says so, and gives the exit status: as shells do, 127 for what is not there and 126 for what is no
    /// program.
    pub(crate) fn tell(self) -> ExitCode {
        output::say(&self.sentence);
        ExitCode::from(self.status)
    }
}

impl Job {
    /// Catches signals from now on. The calling thread has to outlive the tasks.
    pub(super) fn new(kind: Kind, grace: Duration) -> Result<Job> {
        let (sender, events) = mpsc::channel();
        signals::watch(sender.clone())?;
        task::adopt_orphans().context("orphans of ranks cannot be adopted")?;
        files::make_room();
        Ok(Job {
            kind,
            grace,
            tasks: Vec::new(),
            guard: Guard::start()?,
            events,
            sender,
            output: Vec::new(),
            error: Vec::new(),
            streams: 2,
            stage: Stage::Running,
            swept: false,
            asked: None,
            failed: None,
        })
    }

    /// Where events come from besides signals.
    pub(super) fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Starts a task.
    pub(super) fn start(&mut self, start: Start) -> Result<(), Refused> {
        let (mark, name) = (start.mark.clone(), start.name.clone());
        let program = start.command.get_program().to_string_lossy().into_owned();
        let (task, streams) =
            Task::start(start).map_err(|error| Refused::new(&name, &program, &error))?;
        let process = task.group().as_raw_nonzero().get();
        mscclrs_log::info!(INIT, task = name, process, program, "a task is started");
        self.guard.add(task.group());
        let source = |from| Source { from, mark: mark.clone() };
        self.output.extend(streams.out.map(source));
        self.error.extend(streams.err.map(source));
        self.tasks.push(task);
        Ok(())
    }

    /// Waits until nothing is left; gives the exit status of the whole: that of the task that failed
    /// first, 128 and the signal for one that was killed, and 0 if none failed.
    pub(super) fn run(mut self) -> Result<ExitCode> {
        let (output, error) = (std::mem::take(&mut self.output), std::mem::take(&mut self.error));
        let outputs = Outputs::start(output, error, &self.sender)?;
        loop {
            self.reap(&outputs);
            if self.tasks.iter().all(Task::is_gone) {
                break;
            }
            let is_over = !self.tasks.iter().any(Task::is_running);
            if is_over && !self.swept {
                // What ranks have started and left behind. It may have been deaf to the signal that ended
                // them, or just between fork and exec, where a shell loses one.
                self.swept = true;
                self.ask();
            }
            let wait = match self.stage {
                _ if is_over => LOOK,
                Stage::Running => Duration::MAX,
                Stage::Asked { until } | Stage::Killed { until } => {
                    until.saturating_duration_since(Instant::now())
                }
            };
            if let Some(event) = self.next(wait) {
                self.handle(event, &outputs);
            }
            if !self.advance(&outputs) {
                break;
            }
        }
        self.finish(&outputs);
        Ok(ExitCode::from(self.failed.unwrap_or(0)))
    }

    /// The next event, unless none comes within `wait`.
    fn next(&self, wait: Duration) -> Option<Event> {
        // The channel is never closed, since this holds a sender.
        if wait == Duration::MAX {
            return self.events.recv().ok();
        }
        self.events.recv_timeout(wait).ok()
    }

    /// Takes note of the tasks that have ended.
    fn reap(&mut self, outputs: &Outputs) {
        let mut failed = Vec::new();
        while let Some((pid, status)) = task::reap() {
            // Others are orphans, or the guard. Once a task has ended, its number may be theirs.
            let is_it = |task: &Task| task.is_running() && task.group() == pid;
            let found = self.tasks.iter().position(is_it);
            let Some(index) = found else { continue };
            self.tasks[index].ended();
            mscclrs_log::info!(INIT, task = self.tasks[index].name, %status, "a task has ended");
            if !status.success() {
                failed.push((index, status));
            }
        }
        for task in &mut self.tasks {
            if task.try_forget() {
                self.guard.remove(task.group());
            }
        }
        if self.failed.is_some() {
            return;
        }
        // Of several that are found at once, one that was killed is likelier to be the cause.
        let killed = failed.iter().find(|(_, status)| status.signal().is_some());
        if let Some(&(index, status)) = killed.or(failed.first()) {
            self.fail(index, status, outputs);
        }
    }

    fn fail(&mut self, index: usize, status: ExitStatus, outputs: &Outputs) {
        let task = &self.tasks[index];
        let own = matches!(self.stage, Stage::Killed { .. });
        let code = match (status.code(), status.signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => 1,
        };
        // What was killed because the user insisted did not fail by itself.
        let code = match self.asked {
            Some((signal, _)) if own => 128 + signal.as_raw(),
            _ => code,
        };
        self.failed = Some(u8::try_from(code).unwrap_or(1).max(1));
        let how = How { status, kind: self.kind };
        let others = match self.tasks.iter().filter(|task| task.is_running()).count() {
            0 => String::new(),
            1 => format!("; the other {} is ended", self.kind.one()),
            n => format!("; the other {n} {}s are ended", self.kind.one()),
        };
        let hint = &task.hint;
        match self.asked {
            None => {
                outputs.say(&format!(
                    "{} (pid {}) {how}{others}{hint}",
                    task.name,
                    task.group().as_raw_nonzero()
                ));
                self.ask();
            }
            // They were asked already, and this one has obeyed; the rest is waited for no longer than
            // the grace.
            Some((signal, _)) => {
                if !own && self.kind != Kind::LedRanks {
                    let passed = if status.signal() == Some(signal.as_raw()) {
                        "which".to_owned()
                    } else {
                        format!("after {}", describe(signal.as_raw()))
                    };
                    outputs.say(&format!("{} {how}, {passed} was passed on", task.name));
                }
                self.begin_grace();
            }
        }
    }

    fn handle(&mut self, event: Event, outputs: &Outputs) {
        match event {
            Event::Abandoned => {
                if self.asked.is_none() && self.failed.is_none() {
                    outputs.say("the command that started these ranks is gone; they are ended");
                    self.asked = Some((Signal::TERM, Instant::now()));
                    self.ask();
                }
            }
            Event::ChildEnded => {}
            Event::Written(stream, broken) => self.written(stream, broken),
            Event::Signal(Signal::KILL) => self.kill(),
            Event::Signal(signal) => self.pass_on(signal, outputs),
            Event::Stop => {
                self.signal(Signal::STOP);
                signals::stop_self();
                self.signal(Signal::CONT);
            }
        }
    }

    fn pass_on(&mut self, signal: Signal, outputs: &Outputs) {
        let asks_to_end = signals::asks_to_end(signal);
        if asks_to_end {
            let now = Instant::now();
            if let Some((_, last)) = self.asked.filter(|_| signal == Signal::INT) {
                if now.duration_since(last) > ECHO {
                    outputs.say(&format!("interrupted again; {}s are killed", self.kind.one()));
                    self.kill();
                }
                return;
            }
            self.asked = Some(self.asked.map_or((signal, now), |(first, _)| (first, now)));
        }
        self.signal(signal);
        if signal == Signal::TERM {
            self.begin_grace();
        }
    }

    /// Asks all to end.
    fn ask(&mut self) {
        self.signal(Signal::TERM);
        // One that somebody has stopped would not hear it.
        self.signal(Signal::CONT);
        self.begin_grace();
    }

    fn begin_grace(&mut self) {
        if self.stage == Stage::Running {
            let travel = if self.kind == Kind::Hosts { TRAVEL } else { Duration::ZERO };
            self.stage = Stage::Asked { until: Instant::now() + self.grace + travel };
        }
    }

    fn kill(&mut self) {
        if !matches!(self.stage, Stage::Killed { .. }) {
            self.signal(Signal::KILL);
            let limit = if self.kind == Kind::Hosts { TRAVEL } else { LIMIT };
            self.stage = Stage::Killed { until: Instant::now() + limit };
        }
    }

    fn signal(&mut self, signal: Signal) {
        self.tasks.iter_mut().for_each(|task| task.signal(signal));
    }

    /// Does what a deadline asks for; whether there is anything left to wait for.
    fn advance(&mut self, outputs: &Outputs) -> bool {
        match self.stage {
            Stage::Asked { until } if Instant::now() >= until => {
                let (grace, are) =
                    (self.grace.as_secs_f64(), if self.running() == 1 { "is" } else { "are" });
                let names = self.names_of_running();
                outputs.say(&format!("{names} did not end within {grace} s and {are} killed"));
                self.kill();
                true
            }
            Stage::Killed { until } if Instant::now() >= until => {
                for task in &mut self.tasks {
                    task.kill_now();
                }
                if self.kind == Kind::Hosts {
                    // Here there is only ssh; each part ends its ranks when that is gone.
                    self.tasks.iter_mut().for_each(Task::end);
                    return false;
                }
                outputs.say(&format!("{} cannot be killed", self.names_of_running()));
                // Nothing more can be done; not even waiting, which `Drop` would do.
                self.tasks.clear();
                self.failed.get_or_insert(1);
                false
            }
            _ => true,
        }
    }

    fn running(&self) -> usize {
        self.tasks.iter().filter(|task| task.is_running()).count()
    }

    /// "rank 3", or "rank 3, rank 4 and 6 others".
    fn names_of_running(&self) -> String {
        const NAMED: usize = 4;
        let running: Vec<_> =
            self.tasks.iter().filter(|task| task.is_running()).map(|task| &*task.name).collect();
        match running.len() {
            0 => "processes that ranks have started".to_owned(),
            n if n <= NAMED => running.join(", "),
            n => format!("{} and {} others", running[..NAMED].join(", "), n - NAMED),
        }
    }

    /// Waits until everything is written.
    fn finish(&mut self, outputs: &Outputs) {
        outputs.finish();
        // Who reads slowly is waited for, unless the user has asked to end.
        let mut until = self.asked.map(|_| Instant::now() + self.grace.max(Duration::from_secs(1)));
        while self.streams > 0 {
            let wait = until
                .map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            match self.next(wait) {
                None => break,
                Some(Event::Written(stream, broken)) => self.written(stream, broken),
                Some(Event::Signal(signal)) if signals::asks_to_end(signal) => {
                    until = Some(Instant::now());
                }
                Some(_) => {}
            }
        }
    }

    fn written(&mut self, stream: Stream, broken: Option<io::Error>) {
        self.streams -= 1;
        // A reader that had enough is no failure of ours.
        if let Some(why) = broken.filter(|why| why.kind() != io::ErrorKind::BrokenPipe) {
            output::say(&format!("{stream} cannot be written: {why}"));
            self.failed.get_or_insert(1);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for task in &mut self.tasks {
            task.end();
            self.guard.remove(task.group());
        }
    }
}

impl Kind {
    fn one(self) -> &'static str {
        match self {
            Kind::Hosts => "host",
            Kind::Ranks | Kind::LedRanks => "rank",
        }
    }
}

/// How a task ended, as the end of a sentence.
struct How {
    status: ExitStatus,
    kind: Kind,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.status.code(), self.status.signal(), self.kind) {
            (Some(255), _, Kind::Hosts) => f.write_str(
                "failed with status 255, which is ssh's own: the host was not reached or lost",
            ),
            (Some(code), _, Kind::Hosts) => write!(f, "failed with status {code}"),
            (Some(code), ..) => write!(f, "exited with status {code}"),
            (None, Some(signal), _) => {
                let core = if self.status.core_dumped() { ", and left a core" } else { "" };
                write!(f, "was killed by {}{core}", describe(signal))
            }
            (None, None, _) => f.write_str("ended in a way that the system does not tell"),
        }
    }
}

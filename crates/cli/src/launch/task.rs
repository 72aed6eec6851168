//! One process that was started, with its process group: a rank, or ssh for a host's part.
//!
//! Invariant: a group is signalled only while it is known to exist. Its number is that of its first
//! process; as long as that is not reaped, or any other process of the group is there, the system gives
//! the number to no other. The launcher is the one that orphans of its tasks fall to, so that none
//! stays unreaped and makes a group look alive.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process_group, setrlimit,
    test_kill_process_group, waitpgid,
};

use super::lifeline::Lifeline;

/// What is to be started.
pub(super) struct Start {
    /// For people: "rank 3".
    pub(super) name: String,
    /// In front of each line of its output.
    pub(super) mark: Vec<u8>,
    /// The secret, for a part that is led by a lifeline.
    pub(super) lifeline: Option<String>,
    /// What a sentence on its failure ends with.
    pub(super) hint: String,
    pub(super) command: Command,
}

/// What was started.
pub(super) struct Task {
    pub(super) name: String,
    pub(super) hint: String,
    group: Pid,
    lifeline: Option<Lifeline>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// The process has ended, others of its group are left.
    Leftover,
    Gone,
}

/// The output of a task, as far as it comes here.
pub(super) struct Streams {
    pub(super) out: Option<OwnedFd>,
    pub(super) err: Option<OwnedFd>,
}

impl Task {
    /// Starts it as a process group of its own, so that signals of the terminal reach the launcher
    /// alone, which decides what becomes of it. It is killed when the thread that calls this ends.
    pub(super) fn start(start: Start) -> io::Result<(Task, Streams)> {
        let Start { name, mark: _, lifeline, hint, mut command } = start;
        command.process_group(0);
        if lifeline.is_some() {
            command.stdin(Stdio::piped());
        }
        let parent = rustix::process::getpid();
        let limit = files::of_ranks();
        // SAFETY: between fork and exec only system calls are made that are safe in a signal handler;
        // no lock is taken and nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have died before the line above.
                if rustix::process::getppid() != Some(parent) {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                Ok(setrlimit(Resource::Nofile, limit)?)
            });
        }
        let mut child = command.spawn()?;
        let streams = Streams {
            out: child.stdout.take().map(OwnedFd::from),
            err: child.stderr.take().map(OwnedFd::from),
        };
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or(io::ErrorKind::InvalidData)?;
        let mut task = Task { name, hint, group, lifeline: None, state: State::Running };
        if let (Some(secret), Some(stdin)) = (lifeline, child.stdin.take()) {
            match Lifeline::new(stdin, &secret) {
                Ok(lifeline) => task.lifeline = Some(lifeline),
                // It has ended, which is seen as of any task.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => {
                    task.end();
                    return Err(error);
                }
            }
        }
        Ok((task, streams))
    }

    /// The number of its group, and of its first process.
    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Its first process was reaped.
    pub(super) fn ended(&mut self) {
        self.state = State::Leftover;
    }

    pub(super) fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Asks the system whether nothing is left of it; true once, when that becomes known.
    pub(super) fn try_forget(&mut self) -> bool {
        let forget = self.state == State::Leftover
            && test_kill_process_group(self.group) == Err(Errno::SRCH);
        if forget {
            self.state = State::Gone;
        }
        forget
    }

    /// Sends a signal to all of its processes, or asks the part that it leads to.
    pub(super) fn signal(&mut self, signal: Signal) {
        match &mut self.lifeline {
            Some(lifeline) if self.state == State::Running => lifeline.signal(signal),
            _ => self.signal_group(signal),
        }
    }

    /// Kills what is here of it.
    pub(super) fn kill_now(&mut self) {
        self.signal_group(Signal::KILL);
    }

    /// Kills and reaps what is here of it.
    pub(super) fn end(&mut self) {
        self.kill_now();
        if self.state != State::Gone {
            // Until no process of the group is a child of this one.
            while waitpgid(self.group, WaitOptions::empty()).is_ok() {}
            self.state = State::Gone;
        }
    }

    fn signal_group(&mut self, signal: Signal) {
        if self.state != State::Gone {
            // One that is not reaped counts as there. It fails if none is left, or none that is this
            // user's.
            let _ = kill_process_group(self.group, signal);
        }
    }
}

/// Makes this process the one that orphans of its tasks fall to, instead of the system's first.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Reaps one child of this process that has ended, if there is one.
pub(super) fn reap() -> Option<(Pid, ExitStatus)> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(found) => {
                return found.map(|(pid, status)| (pid, ExitStatus::from_raw(status.as_raw())));
            }
            Err(Errno::INTR) => {}
            // There are no children.
            Err(_) => return None,
        }
    }
}

/// How many files a process may have open.
pub(super) mod files {
    use std::sync::OnceLock;

    use super::*;

    static OWN: OnceLock<Rlimit> = OnceLock::new();

    /// Makes room for the pipes of many ranks, in this process only.
    pub(in super::super) fn make_room() {
        let own = *OWN.get_or_init(|| getrlimit(Resource::Nofile));
        // If it fails, starting the rank that is too many says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: own.maximum, maximum: own.maximum });
    }

    /// What ranks get: the limit that this process was started with.
    pub(super) fn of_ranks() -> Rlimit {
        *OWN.get_or_init(|| getrlimit(Resource::Nofile))
    }
}

//! Looking at what may hang, or end a process: in processes of their own, with a deadline each.
//!
//! Invariant: this process opens no library and touches no driver. It starts itself again once a
//! probe, reads one answer from each, and goes on at the deadline, whatever became of the process: a
//! driver can hold one beyond any signal. Probes end with this process.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mscclrs_core::env::internal::INFO_PROBE;
use rustix::process::{Pid, Signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::handles::Import;
use super::{devices, handles, libraries, network};
use crate::usage::usage;

/// What a process looks at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Probe {
    /// The CPU device.
    Cpu,
    /// The GPUs and how they are joined.
    Gpus,
    /// The forms in which a GPU's memory goes to another process.
    Handles { ordinal: u32 },
    /// Memory that another probe exported.
    Import(Import),
    /// One library, by its place in the list of them.
    Library { index: usize },
    /// Interfaces and RDMA devices.
    Network,
    /// Nothing: what becomes of the process is what a test is about.
    #[cfg(test)]
    Script(String),
}

/// How a process is asked.
#[derive(Serialize, Deserialize)]
struct Request {
    /// The process that asks.
    parent: i32,
    probe: Probe,
}

/// What to look at, and how long that may take.
pub(super) struct Question {
    pub(super) probe: Probe,
    pub(super) limit: Duration,
    /// A descriptor that goes along.
    pub(super) descriptor: Option<OwnedFd>,
}

/// The longest answer that is read.
const MOST_BYTES: u64 = 16 << 20;
/// How long a killed process is waited for.
const REAP: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(2);

/// Asks all at once; each answer comes in the place of its question, or says why there is none. Blocks
/// until the last has answered or its time is up.
pub(super) fn ask(questions: Vec<Question>) -> Vec<Result<Value, String>> {
    let begin = Instant::now();
    let (sender, receiver) = mpsc::channel();
    let mut answers: Vec<Option<Result<Value, String>>> = Vec::new();
    let mut running: Vec<Option<(Child, Duration)>> = Vec::new();
    for (place, question) in questions.into_iter().enumerate() {
        let limit = question.limit;
        match start(question, place, &sender) {
            Ok(child) => {
                answers.push(None);
                running.push(Some((child, limit)));
            }
            Err(error) => {
                answers.push(Some(Err(format!("{error:#}"))));
                running.push(None);
            }
        }
    }
    while let Some(next) = running.iter().flatten().map(|(_, limit)| *limit).min() {
        let left = next.saturating_sub(begin.elapsed());
        if let Ok((place, bytes)) = receiver.recv_timeout(left) {
            let Some((child, limit)) = running[place].take() else { continue };
            let left = limit.saturating_sub(begin.elapsed());
            answers[place] = Some(finish(child, &bytes, left));
            continue;
        }
        for (place, slot) in running.iter_mut().enumerate() {
            if let Some((mut child, limit)) = slot.take_if(|(_, limit)| *limit <= begin.elapsed()) {
                end(&mut child);
                answers[place] = Some(Err(format!("no answer came within {} s", limit.as_secs())));
            }
        }
    }
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err("nobody asked".into()))).collect()
}

/// An answer as what it means.
pub(super) fn read<T: DeserializeOwned>(answer: Result<Value, String>) -> Result<T, String> {
    serde_json::from_value(answer?)
        .map_err(|error| format!("the answer is not understood: {error}"))
}

fn start(question: Question, place: usize, to: &mpsc::Sender<(usize, Vec<u8>)>) -> Result<Child> {
    let parent = rustix::process::getpid().as_raw_nonzero().get();
    let mut command = command(Request { parent, probe: question.probe })?;
    command
        .stdin(question.descriptor.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    let mut child = command.spawn().context("this program could not be started again")?;
    let answer = child.stdout.take().context("no pipe")?;
    let to = to.clone();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came until an error is judged as what came until the end.
        let _ = answer.take(MOST_BYTES).read_to_end(&mut bytes);
        // Nobody listens any more once the time is up.
        let _ = to.send((place, bytes));
    });
    Ok(child)
}

#[cfg(not(test))]
fn command(request: Request) -> Result<Command> {
    // By this name it is the same file even if another has been put in its place.
    let mut command = Command::new("/proc/self/exe");
    command.arg("info").env(INFO_PROBE.name, serde_json::to_string(&request)?);
    Ok(command)
}

/// In a test this program is another one, so only a shell can be asked.
#[cfg(test)]
fn command(request: Request) -> Result<Command> {
    let Probe::Script(script) = request.probe else { anyhow::bail!("a test asks scripts only") };
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]);
    Ok(command)
}

/// Judges what a process wrote, which is all that it had to do.
fn finish(mut child: Child, bytes: &[u8], left: Duration) -> Result<Value, String> {
    if let Ok(answer) = serde_json::from_slice(bytes) {
        // Closing a driver can take long, or for ever.
        end(&mut child);
        return Ok(answer);
    }
    let status = wait(&mut child, left);
    end(&mut child);
    Err(match status {
        None => "it wrote no answer, and did not end".into(),
        Some(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("it was ended by signal {signal}"),
            (None, code) => format!("it wrote no answer (exit status {})", code.unwrap_or(-1)),
        },
    })
}

fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let since = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if since.elapsed() < limit => std::thread::sleep(LOOK),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Kills a process and what it started, and waits a little for it; one that a driver holds is left to
/// the system.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It is not reaped yet, or `kill` of a group that is gone fails: the number is its own.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    wait(child, REAP);
}

/// Looks at what this process was started for, and writes the answer.
pub(super) fn serve(request: &str) -> Result<ExitCode> {
    let Request { parent, probe } = serde_json::from_str(request).map_err(|_| {
        usage!("{} is for processes that `mscclrs info` starts; unset it", INFO_PROBE.name)
    })?;
    end_with(parent)?;
    let mut out = take_output()?;
    let answer = match probe {
        Probe::Cpu => serde_json::to_vec(&devices::cpu())?,
        Probe::Gpus => serde_json::to_vec(&devices::gpus())?,
        Probe::Handles { ordinal } => serde_json::to_vec(&handles::of_gpu(ordinal))?,
        Probe::Import(import) => serde_json::to_vec(&handles::import(&import))?,
        Probe::Library { index } => serde_json::to_vec(&libraries::look(index))?,
        Probe::Network => serde_json::to_vec(&network::look())?,
        #[cfg(test)]
        Probe::Script(_) => Vec::new(),
    };
    out.write_all(&answer).context("the answer cannot be written")?;
    Ok(ExitCode::SUCCESS)
}

/// The system ends this process when the one that asks is gone.
fn end_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have been gone before the line above.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    anyhow::ensure!(now == Some(parent), "the process that asked is gone");
    Ok(())
}

/// Standard output, which from then on is thrown away: libraries write to it what is no answer.
fn take_output() -> Result<File> {
    let out = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(File::from(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask_scripts(scripts: &[(&str, u64)]) -> Vec<Result<Value, String>> {
        let question = |(script, milliseconds): &(&str, u64)| Question {
            probe: Probe::Script((*script).into()),
            limit: Duration::from_millis(*milliseconds),
            descriptor: None,
        };
        ask(scripts.iter().map(question).collect())
    }

    #[test]
    fn answers_come_in_the_place_of_their_questions() {
        let answers = ask_scripts(&[("sleep 0.2; echo 1", 20_000), ("echo '[2]'", 20_000)]);
        assert_eq!(answers, [Ok(serde_json::json!(1)), Ok(serde_json::json!([2]))]);
    }

    /// How many processes have the mark in their command lines.
    fn left_over(mark: &str) -> usize {
        let processes = std::fs::read_dir("/proc").expect("proc").flatten();
        let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.filter(|line| String::from_utf8_lossy(line).contains(mark)).count()
    }

    #[test]
    fn one_that_hangs_is_killed_with_what_it_started_and_holds_nobody_up() {
        let begin = Instant::now();
        let mark = format!("mscclrs-probe-{}", std::process::id());
        let hang = format!("sh -c 'sleep 60; : {mark}' & sleep 60; : {mark}");
        let answers = ask_scripts(&[(&hang, 1000), ("echo 1", 20_000)]);
        assert_eq!(answers[0], Err("no answer came within 1 s".into()));
        assert_eq!(answers[1], Ok(serde_json::json!(1)));
        assert!(begin.elapsed() < Duration::from_secs(20));
        // What was killed may take a moment to be gone.
        while left_over(&mark) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "a process was left over");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn one_that_answers_and_does_not_end_is_not_waited_for() {
        let begin = Instant::now();
        let answers = ask_scripts(&[("echo 7; exec >&-; sleep 60", 50_000)]);
        assert_eq!(answers, [Ok(serde_json::json!(7))]);
        assert!(begin.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn what_became_of_one_that_did_not_answer_is_said() {
        let answers =
            ask_scripts(&[("kill -SEGV $$", 20_000), ("exit 3", 20_000), ("echo no json", 20_000)]);
        assert_eq!(answers[0], Err("it was ended by signal 11".into()));
        assert_eq!(answers[1], Err("it wrote no answer (exit status 3)".into()));
        assert_eq!(answers[2], Err("it wrote no answer (exit status 0)".into()));
    }
}

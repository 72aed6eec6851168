//! Ranks as processes of this program.
//!
//! No rank outlives this process: the system kills each when its parent dies, and this process kills
//! and reaps all of them on every way out. When one fails, the others get some time to say what they
//! saw, and are killed then. Each rank is a process group of its own, so that a signal from the
//! terminal reaches this process alone, which decides what becomes of them.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use mscclrs_gpu::limit_hint;
use rustix::process::{Pid, Signal};

use super::{GRACE, of_rank, started, status_of_all};
use crate::output::{Closed, say};

/// How often ended ranks are looked for.
const LOOK: Duration = Duration::from_millis(5);

struct Running {
    rank: u32,
    child: Child,
    ended: Option<ExitStatus>,
    messages: Option<JoinHandle<()>>,
}

/// Kills and reaps what still runs when dropped.
struct Ranks(Vec<Running>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for running in self.0.iter_mut().filter(|running| running.ended.is_none()) {
            // It may have ended meanwhile; it is not reaped yet, so the number is still its own.
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
        for running in &mut self.0 {
            if let Some(messages) = running.messages.take() {
                let _ = messages.join();
            }
        }
    }
}

/// Starts this program again as `ranks` ranks, with the same arguments and the environment that
/// `environment` gives for each, and waits for them. The exit status is that of the whole.
pub(super) fn run(
    ranks: u32,
    environment: impl Fn(u32) -> Vec<(&'static str, String)>,
) -> Result<ExitCode> {
    // A rank that did not see that it is one would start ranks of its own, and these again.
    if started::is_by_parent() {
        bail!("a rank tried to start ranks; it was started without the environment of a rank");
    }
    let program = std::env::current_exe().context("this program's own file is not known")?;
    let mut running = Ranks(Vec::with_capacity(ranks as usize));
    for rank in 0..ranks {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).envs(environment(rank)).envs([started::mark()]);
        let child = start(command, rank)
            .map_err(|error| anyhow!("rank {rank} did not start: {error}{}", limit_hint(&error)))?;
        running.0.push(child);
    }
    Ok(ExitCode::from(wait(&mut running, GRACE)))
}

fn start(mut command: Command, rank: u32) -> io::Result<Running> {
    command.stdin(Stdio::null()).process_group(0);
    // The first rank prints the results, and may draw on the terminal.
    if rank > 0 {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    }
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only system calls are made that are safe in a signal handler; no
    // lock is taken and nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the line above.
            if rustix::process::getppid() != Some(parent) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    let messages = child.stderr.take().map(|stderr| {
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                say!("{}", of_rank(rank, &line));
            }
        })
    });
    Ok(Running { rank, child, ended: None, messages })
}

/// Waits until all have ended, or some were killed because another failed.
fn wait(ranks: &mut Ranks, grace: Duration) -> u8 {
    let mut failed = None::<(u32, Instant)>;
    loop {
        for running in ranks.0.iter_mut().filter(|running| running.ended.is_none()) {
            let ended = match running.child.try_wait() {
                Ok(ended) => ended,
                // Nobody else reaps this process's children.
                Err(_) => Some(ExitStatus::from_raw(1 << 8)),
            };
            if let Some(status) = ended {
                running.ended = Some(status);
                if !status.success() {
                    failed.get_or_insert((running.rank, Instant::now()));
                }
                if let Some(signal) = status.signal() {
                    say!("mscclrs: rank {} was killed by signal {signal}", running.rank);
                }
            }
        }
        let left = ranks.0.iter().filter(|running| running.ended.is_none());
        if left.clone().next().is_none() {
            break;
        }
        if let Some((rank, since)) = failed
            && since.elapsed() > grace
        {
            let ended = verdict(ranks.0.iter().filter_map(|running| running.ended));
            for running in left {
                if ended != Closed::STATUS {
                    say!(
                        "mscclrs: rank {} did not end within {} s after rank {rank} failed, and is \
                         killed",
                        running.rank,
                        grace.as_secs()
                    );
                }
                kill(&running.child);
            }
            return if ended == Closed::STATUS { ended } else { 1 };
        }
        std::thread::sleep(LOOK);
    }
    verdict(ranks.0.iter().filter_map(|running| running.ended))
}

fn kill(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Not reaped yet, so the number is its own.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

fn verdict(ends: impl Iterator<Item = ExitStatus>) -> u8 {
    // Without a code it was killed.
    status_of_all(ends.map(|end| end.code().and_then(|code| code.try_into().ok()).unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(rank: u32, script: &str) -> Running {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        start(command, rank).expect("started")
    }

    #[test]
    fn all_right_is_right() {
        let mut ranks = Ranks((0..3).map(|rank| shell(rank, "exit 0")).collect());
        assert_eq!(wait(&mut ranks, GRACE), 0);
    }

    #[test]
    fn one_failure_fails_the_whole_and_the_rest_are_killed() {
        let since = Instant::now();
        let mut ranks = Ranks(vec![shell(0, "exec sleep 60"), shell(1, "exit 3")]);
        let pid = ranks.0[0].child.id();
        assert_eq!(wait(&mut ranks, Duration::from_millis(100)), 1);
        drop(ranks);
        assert!(since.elapsed() < Duration::from_secs(30));
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_killed_rank_fails_the_whole() {
        let mut ranks = Ranks(vec![shell(1, "kill -9 $$"), shell(2, "exit 0")]);
        assert_eq!(wait(&mut ranks, GRACE), 1);
    }

    #[test]
    fn mistakes_of_the_user_keep_their_status() {
        let mut ranks = Ranks(vec![shell(1, "exit 2"), shell(2, "exit 2")]);
        assert_eq!(wait(&mut ranks, GRACE), 2);
        let mut ranks = Ranks(vec![shell(1, "exit 2"), shell(2, "exit 1")]);
        assert_eq!(wait(&mut ranks, GRACE), 1);
    }

    #[test]
    fn results_that_nobody_reads_end_all_ranks() {
        let mut ranks =
            Ranks(vec![shell(0, "exit 141"), shell(1, "exit 1"), shell(2, "exec sleep 60")]);
        let since = Instant::now();
        assert_eq!(wait(&mut ranks, Duration::from_millis(100)), 141);
        assert!(since.elapsed() < Duration::from_secs(30));
    }
}

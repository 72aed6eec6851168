//! A process that ends the ranks when the launcher is killed and can end nothing itself.
//!
//! The system kills a rank when the launcher dies, but not what the rank has started: a launch of
//! shell scripts would leave the programs in them behind. The guard is this program once more. It
//! reads from a pipe which process groups there are, and its end is the end of the launcher. What is
//! left then is killed.
//!
//! A group is taken from the list before its number can be another's: see [`super::task`].

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// What the command is asked for to be the guard.
pub(crate) const COMMAND: &str = "launch-guard";

/// The launcher's side; the guard ends with it.
pub(super) struct Guard {
    process: Child,
    line: Option<ChildStdin>,
}

impl Guard {
    pub(super) fn start() -> Result<Guard> {
        // This very file, even if another has taken its name since.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("mscclrs").arg(COMMAND).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().context("the guard of the ranks does not start")?;
        let line = process.stdin.take();
        if let Some(line) = &line {
            // Somebody may have stopped it; the launcher does not wait for it.
            rustix::io::ioctl_fionbio(line, true).context("the guard of the ranks is not led")?;
        }
        Ok(Guard { process, line })
    }

    /// A group that is to be ended.
    pub(super) fn add(&mut self, group: Pid) {
        self.say('+', group);
    }

    /// A group that has ended.
    pub(super) fn remove(&mut self, group: Pid) {
        self.say('-', group);
    }

    fn say(&mut self, what: char, group: Pid) {
        if let Some(line) = &mut self.line {
            // A guard that somebody killed is missed only if the launcher is killed as well.
            let _ = line.write_all(format!("{what}{}\n", group.as_raw_nonzero()).as_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.line.take());
        let _ = self.process.wait();
    }
}

/// This process as the guard: returns when the launcher has ended.
pub(crate) fn run() -> ExitCode {
    for group in left(io::stdin().lock()).into_iter().filter_map(Pid::from_raw) {
        // One that ended meanwhile needs nothing.
        let _ = kill_process_group(group, Signal::KILL);
    }
    ExitCode::SUCCESS
}

/// Reads to the end; gives the groups that are left then.
fn left(from: impl Read) -> BTreeSet<i32> {
    let mut groups = BTreeSet::new();
    let mut from = BufReader::new(from);
    let mut line = String::new();
    while from.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        // Without its end it may be the beginning of another number.
        let whole = line.strip_suffix('\n').and_then(|whole| whole.split_at_checked(1));
        let (what, number) = whole.unwrap_or_default();
        let group = number.parse().ok().filter(|&number: &i32| number > 1);
        match (what, group) {
            ("+", Some(group)) => drop(groups.insert(group)),
            ("-", Some(group)) => drop(groups.remove(&group)),
            _ => {}
        }
        line.clear();
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_did_not_end_are_left() {
        let said = "+10\n+20\n-10\n+30\n\n+0\n+1\n+-5\n?\n+4x\n";
        assert_eq!(left(said.as_bytes()), BTreeSet::from([20, 30]));
    }

    #[test]
    fn a_line_that_was_cut_short_is_no_group() {
        assert!(left(&b"+4"[..]).is_empty());
    }
}

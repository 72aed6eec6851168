//! Whether this process is a rank that this program started.
//!
//! Invariant: the mark that a rank gets names the process that made it, by its number and when it began,
//! and counts only in a child of that process. What was left in somebody's environment means nothing.

use mscclrs_core::env::internal::BENCH_RANK;
use rustix::process::{Pid, getpid, getppid};

/// The variable for the ranks that this process starts.
pub(super) fn mark() -> (&'static str, String) {
    (BENCH_RANK.name, name(getpid()))
}

/// Whether this process's parent marked it.
pub(super) fn is_by_parent() -> bool {
    let mark = BENCH_RANK.text().unwrap_or_default();
    getppid().is_some_and(|parent| mark == name(parent))
}

/// Names a process among all that there were since the system began.
fn name(pid: Pid) -> String {
    let pid = pid.as_raw_nonzero();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, which may hold anything, stands in parentheses; the time is the twentieth behind it.
    let behind = stat.rsplit(") ").next().unwrap_or_default();
    let began = behind.split_whitespace().nth(19).unwrap_or_default();
    format!("{pid}@{began}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_name_and_no_other_has_it() {
        let (_, mine) = mark();
        assert_eq!(mine, name(getpid()));
        let (pid, began) = mine.split_once('@').expect("both parts");
        assert_eq!(pid, std::process::id().to_string());
        assert!(began.parse::<u64>().is_ok_and(|began| began > 0), "{mine}");
        assert_ne!(getppid().map(name), Some(mine));
    }
}

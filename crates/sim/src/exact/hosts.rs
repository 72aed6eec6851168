//! Whether the host threads of this process are still about to send something.
//!
//! A thread that the system has not asleep may send more work at any moment, one that sleeps waits for
//! something: for a queue, for another rank, for its own thread to end. When all of them sleep at one moment,
//! nothing more comes before lanes have run, so what came can begin at once, and no thread was only slow.

use std::collections::HashSet;
use std::time::Duration;

/// The name of threads that run lanes: these are no hosts.
pub(super) const WORLD_THREAD: &str = "mscclrs-world";

const TASKS: &str = "/proc/self/task";

/// For so long a thread that began since the world did, or that made it, may be awake and yet send
/// nothing: it may not have got a processor.
pub(super) const AWAKE_LIMIT: Duration = Duration::from_millis(20);

/// The threads of a process, as a world sees them.
pub(super) struct Hosts {
    /// Threads that were there before the world and did not make it: they may have nothing to do with it.
    before: HashSet<u32>,
}

/// What the host threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// All slept at one moment.
    Asleep,
    /// One that began since the world did, or made it, is awake.
    Awake,
    /// Some other thread is awake, or the system does not say.
    Unknown,
}

/// A thread, and how often it was given up a processor: equal numbers at two looks mean that it did not
/// run between them.
#[derive(PartialEq, Eq)]
struct Thread {
    id: u32,
    asleep: bool,
    switches: u64,
}

impl Hosts {
    /// To be called by the thread that makes the world.
    pub(super) fn new() -> Hosts {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let before = ids().into_iter().flatten().filter(|&id| id != own).collect();
        Hosts { before }
    }

    /// What they do now.
    pub(super) fn activity(&self) -> Activity {
        let (Some(first), Some(second)) = (look(), look()) else { return Activity::Unknown };
        // Each slept from the first look at it to the second: so all did at the moment between the two.
        if first == second && first.iter().all(|thread| thread.asleep) {
            return Activity::Asleep;
        }
        let slept = |thread: &Thread| thread.asleep && first.contains(thread);
        let mut awake = second.iter().filter(|thread| !slept(thread));
        match awake.any(|thread| !self.before.contains(&thread.id)) {
            true => Activity::Awake,
            false => Activity::Unknown,
        }
    }
}

fn ids() -> Option<impl Iterator<Item = u32>> {
    let tasks = std::fs::read_dir(TASKS).ok()?;
    Some(tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()))
}

/// All threads but those of worlds; `None` if the system does not say.
fn look() -> Option<Vec<Thread>> {
    let mut threads = Vec::new();
    for id in ids()? {
        // It may have ended meanwhile.
        let Ok(status) = std::fs::read_to_string(format!("{TASKS}/{id}/status")) else { continue };
        let line = |name: &str| {
            let mut lines = status.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
        };
        if line("Name") == Some(WORLD_THREAD) {
            continue;
        }
        let number = |name| line(name)?.parse::<u64>().ok();
        let switches = number("voluntary_ctxt_switches")? + number("nonvoluntary_ctxt_switches")?;
        threads.push(Thread { id, asleep: line("State")?.starts_with('S'), switches });
    }
    threads.sort_unstable_by_key(|thread| thread.id);
    Some(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_looks_is_awake() {
        assert_eq!(Hosts::new().activity(), Activity::Awake);
    }
}

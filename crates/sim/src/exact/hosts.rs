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

/// A thread, and how often it gave up a processor: equal numbers at two looks mean that it did not
/// run between them.
#[derive(Clone, Copy, PartialEq, Eq)]
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
        let mut asleep = Vec::new();
        let mut others = false;
        let Some(all) = threads() else { return Activity::Unknown };
        for thread in all {
            match thread {
                Some(Thread { asleep: true, .. }) => asleep.extend(thread),
                Some(Thread { id, .. }) if !self.before.contains(&id) => return Activity::Awake,
                _ => others = true,
            }
        }
        // Each slept from the first look at it to the second: so all did at the moment between the two.
        let same = |all: Vec<Option<Thread>>| {
            all.len() == asleep.len() && all.iter().flatten().all(|thread| asleep.contains(thread))
        };
        match others {
            true => Activity::Unknown,
            false if threads().is_some_and(|all| same(all.collect())) => Activity::Asleep,
            false => Activity::Awake,
        }
    }
}

fn ids() -> Option<impl Iterator<Item = u32>> {
    let tasks = std::fs::read_dir(TASKS).ok()?;
    Some(tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()))
}

/// All threads but those of worlds; `None` in the place of one of which the system says too little, and
/// instead of all if it says nothing.
fn threads() -> Option<impl Iterator<Item = Option<Thread>>> {
    let status = |id| {
        // It may have ended meanwhile.
        let status = std::fs::read_to_string(format!("{TASKS}/{id}/status")).ok()?;
        let (mut asleep, mut switches, mut numbers) = (None, 0, 0);
        for (name, value) in status.lines().filter_map(|line| line.split_once(':')) {
            match name {
                "Name" if value.trim() == WORLD_THREAD => return None,
                "State" => asleep = Some(value.trim().starts_with('S')),
                "voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches" => {
                    switches += value.trim().parse::<u64>().unwrap_or(0);
                    numbers += 1;
                }
                _ => {}
            }
        }
        let asleep = asleep.filter(|_| numbers == 2);
        Some(asleep.map(|asleep| Thread { id, asleep, switches }))
    };
    Some(ids()?.filter_map(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_looks_is_awake() {
        assert_eq!(Hosts::new().activity(), Activity::Awake);
    }

    #[test]
    fn threads_that_wait_are_seen_to_sleep() {
        let hosts = Hosts::new();
        let world = std::thread::Builder::new().name(WORLD_THREAD.into());
        let seen = world.spawn(move || {
            // Other tests of the process may be awake meanwhile.
            let since = std::time::Instant::now();
            while since.elapsed() < Duration::from_secs(30) {
                if hosts.activity() == Activity::Asleep {
                    return true;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            false
        });
        assert!(seen.expect("a thread").join().expect("an answer"));
    }
}

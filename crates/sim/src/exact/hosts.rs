//! Whether the host threads of this process are still about to send something.
//!
//! A thread that the system has not asleep may send more work at any moment, one that sleeps waits for
//! something: for a queue, for another rank, for its own thread to end. When all of them sleep at one moment,
//! nothing more comes before lanes have run, so what came can begin at once, and no thread was only slow.
//!
//! Invariant: a thread that is awake is given up on by the time that it has had on a processor, not by the
//! clock: on a busy machine it may wait long for one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::seen::Link;

const TASKS: &str = "/proc/self/task";

/// For so long on a processor a thread that has to do with the world may be awake and yet send nothing.
const HOST_LIMIT: Duration = Duration::from_millis(20);
/// For so long any other, and for so long by the clock where the system does not say what threads do.
const OTHER_LIMIT: Duration = Duration::from_millis(2);
/// For so long by the clock a thread may be awake and get too little of a processor, and at least so
/// many looks at it: the clock goes on while the whole machine stands still.
const STARVED: Duration = Duration::from_secs(5);
const LOOKS: u32 = 500;
/// How much longer than its time on a processor a thread may take that sleeps again and again, or that
/// the system holds up.
const SLOWER: u32 = 10;

/// Threads that run lanes, which are no hosts, each with its process: the child of a fork has the list
/// of its parent. Without a lock, since a fork may come while anybody looks. Of more threads than have
/// room, some are taken for hosts.
static LANES: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

fn with_process(thread: u32) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(thread)
}

fn runs_lanes(thread: u32) -> bool {
    let name = with_process(thread);
    LANES.iter().any(|place| place.load(Ordering::Relaxed) == name)
}

/// While it lives, the thread that made it runs lanes.
pub(super) struct OfLanes(Option<&'static AtomicU64>);

impl OfLanes {
    pub(super) fn this_thread() -> OfLanes {
        let name = with_process(own_id());
        let take = |place: &&AtomicU64| {
            place.compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        OfLanes(LANES.iter().find(take))
    }
}

impl Drop for OfLanes {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// The system's number of this thread.
pub(super) fn own_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The threads of a process, as a world sees them.
pub(super) struct Hosts {
    /// Threads that were there before the world and did not make it: they may have nothing to do with it.
    before: HashSet<u32>,
    link: Arc<Link>,
}

/// A moment from which on threads that are awake get their time.
pub(super) struct Since {
    at: Instant,
    looks: u32,
    awake: HashMap<u32, Awake>,
}

/// A thread that was seen to be awake.
struct Awake {
    /// Time that it had had on a processor when it was first seen so.
    had: Option<Duration>,
    /// It has slept since then, and so waits for no processor all the time.
    slept: bool,
}

impl Since {
    pub(super) fn now() -> Since {
        Since { at: Instant::now(), looks: 0, awake: HashMap::new() }
    }

    /// Whether a thread that is awake has had its time: on a processor, or by the clock where the system does
    /// not say that.
    fn is_over(&mut self, thread: u32, slept: bool, limit: Duration) -> bool {
        let (now, passed) = (processor_time(thread), self.at.elapsed());
        let awake = self.awake.entry(thread).or_insert(Awake { had: now, slept: false });
        awake.slept |= slept;
        let had = now.zip(awake.had).map_or(passed, |(now, before)| now.saturating_sub(before));
        let starved = passed > STARVED && self.looks > LOOKS;
        had > limit || (awake.slept && passed > SLOWER * limit) || starved
    }
}

/// A thread, and how often it gave up a processor: equal numbers at two looks mean that it did not
/// run between them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Thread {
    id: u32,
    asleep: bool,
    /// It waits for what the system does for it, which may take any time.
    held_up: bool,
    switches: u64,
}

impl Hosts {
    /// To be called by the thread that makes the world.
    pub(super) fn new(link: Arc<Link>) -> Hosts {
        let own = own_id();
        let before = ids().into_iter().flatten().filter(|&id| id != own).collect();
        Hosts { before, link }
    }

    /// What the world and they share.
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Whether nothing more comes from them: all sleep, or those that do not have had their time since then.
    pub(super) fn are_done(&self, since: &mut Since) -> bool {
        let Some(all) = threads() else { return since.at.elapsed() > OTHER_LIMIT };
        since.looks += 1;
        let (asleep, awake): (Vec<_>, Vec<_>) = all.partition(|thread| thread.asleep);
        let mut are_over = |threads: &[Thread], slept| {
            let over = |thread: &Thread| {
                since.is_over(thread.id, slept || thread.held_up, self.limit(thread.id))
            };
            // The time of each begins when it is first seen.
            threads.iter().map(over).fold(true, |all, over| all & over)
        };
        if !are_over(&awake, false) {
            return false;
        }
        // Who slept from the first look at it to the second slept at the moment between the two.
        let is_other = |thread: &Thread| {
            !asleep.contains(thread) && !awake.iter().any(|before| before.id == thread.id)
        };
        let others: Vec<_> = threads().into_iter().flatten().filter(is_other).collect();
        are_over(&others, true)
    }

    /// Whether all sleep now, as far as can be seen.
    pub(super) fn are_asleep(&self) -> bool {
        threads().is_none() || self.are_done(&mut Since::now())
    }

    fn limit(&self, thread: u32) -> Duration {
        match self.before.contains(&thread) && !self.link.has_sent(thread) {
            true => OTHER_LIMIT,
            false => HOST_LIMIT,
        }
    }
}

/// How long a thread of this process was on a processor; none if it has ended, or the system does not say.
fn processor_time(thread: u32) -> Option<Duration> {
    // What pthread_getcpuclockid makes of the thread's number: its own clock (4) of time by the
    // scheduler (2).
    let clock = !(thread as libc::clockid_t) << 3 | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time`, and is refused for what is no clock.
    let refused = unsafe { libc::clock_gettime(clock, &raw mut time) } != 0;
    let (seconds, nanoseconds) = (time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?);
    (!refused).then(|| Duration::new(seconds, nanoseconds))
}

fn ids() -> Option<impl Iterator<Item = u32>> {
    let tasks = std::fs::read_dir(TASKS).ok()?;
    Some(tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()))
}

/// All threads but those that run lanes and those that have ended or are stopped; none if the system says
/// nothing of threads.
fn threads() -> Option<impl Iterator<Item = Thread>> {
    let status = |id| {
        // It may have ended meanwhile.
        let status = std::fs::read_to_string(format!("{TASKS}/{id}/status")).ok()?;
        let mut thread = Thread { id, asleep: false, held_up: false, switches: 0 };
        for (name, value) in status.lines().filter_map(|line| line.split_once(':')) {
            match name {
                "State" => match value.trim().chars().next() {
                    Some('S') => thread.asleep = true,
                    Some('D') => thread.held_up = true,
                    Some('Z' | 'X' | 'T' | 't') => return None,
                    _ => {}
                },
                "voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches" => {
                    thread.switches += value.trim().parse::<u64>().unwrap_or(0);
                }
                _ => {}
            }
        }
        Some(thread)
    };
    Some(ids()?.filter(|&id| !runs_lanes(id)).filter_map(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        Hosts::new(Arc::default())
    }

    #[test]
    fn the_thread_that_looks_is_awake() {
        assert!(!hosts().are_done(&mut Since::now()));
    }

    #[test]
    fn threads_that_wait_are_seen_to_sleep() {
        let hosts = hosts();
        let looks = std::thread::spawn(move || {
            let _looks = OfLanes::this_thread();
            // Other tests of the process may be awake meanwhile.
            let (begin, mut since) = (Instant::now(), Since::now());
            while !hosts.are_done(&mut since) {
                if begin.elapsed() > Duration::from_secs(30) {
                    return false;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            true
        });
        assert!(looks.join().expect("an answer"));
    }
}

//! Waits, and the way out of each of them.
//!
//! A wait polls with relaxed loads and, once it saw what it waits for, makes one acquire load of the
//! same word: an acquire in the loop would empty the L1 cache at each poll. After some dozens of
//! fruitless polls it glances at the claim word, in device memory: work enqueued after a wait that
//! ended early ends soon. After some thousands it looks at the abort word, in host memory, and the
//! clock. A wait that ends early writes one record of who waited for what and returns an error; it
//! never traps.

use crate::arch;
use crate::atomic::{Acquire, Cta, Gpu, Relaxed, Release, Sys};
use crate::ptr::Global;

/// A wait ended because of an abort or its deadline; the [`WaitRecord`] says which wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted;

/// What device functions that wait return; `?` passes an abort on.
pub type DeviceResult<T = ()> = Result<T, Aborted>;

/// What a wait waited for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// The flag of a packet.
    Packet = 1,
    /// An epoch flag.
    EpochFlag = 2,
    /// A semaphore's count.
    Semaphore = 3,
    /// The other blocks of a grid.
    GridBarrier = 4,
    /// A semaphore between blocks of one GPU.
    DeviceSemaphore = 5,
}

impl WaitKind {
    /// From the number in a record.
    pub const fn from_code(code: u32) -> Option<WaitKind> {
        Some(match code {
            1 => WaitKind::Packet,
            2 => WaitKind::EpochFlag,
            3 => WaitKind::Semaphore,
            4 => WaitKind::GridBarrier,
            5 => WaitKind::DeviceSemaphore,
            _ => return None,
        })
    }

    /// The field's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            WaitKind::Packet => "packet",
            WaitKind::EpochFlag => "epoch flag",
            WaitKind::Semaphore => "semaphore",
            WaitKind::GridBarrier => "grid barrier",
            WaitKind::DeviceSemaphore => "device semaphore",
        }
    }
}

/// The first wait that ended early, in memory that the host can read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitRecord {
    /// 0 while nothing is recorded; written last, with release.
    pub valid: u32,
    /// A [`WaitKind`] as a number.
    pub kind: u32,
    /// The rank waited for; `u32::MAX` where the wait is not for one rank.
    pub peer: u32,
    /// Block of the waiting lane.
    pub block: u32,
    /// Index of the waiting lane in its block.
    pub thread: u32,
    /// 1: the abort word was set; 2: the deadline passed; 4: the peer left; 5: the peer came with
    /// something else. 3, never in a record: another wait of this rank ended early before.
    pub cause: u32,
    /// The tag that the host gave the launch, to find the kernel's name.
    pub launch: u64,
    /// Address of the word that did not change.
    pub address: u64,
    /// What it had to become (packet flags: the flag in the upper half).
    pub expected: u64,
    /// What it held.
    pub seen: u64,
}

/// The words by which the host and a rank's kernels speak of aborts; one a rank, in pinned host
/// memory.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    /// Not 0: every wait of this rank's kernels ends. Written by the host.
    pub abort: u32,
    /// Padding to keep the host's word apart from what kernels write.
    pub _pad: [u32; 15],
    /// Bit r % 64 of word r / 64: rank r has left, so a wait for it is in vain. Written by the host.
    pub left: [u64; 8],
    /// The first wait that ended early.
    pub record: WaitRecord,
}

/// What ends a wait: passed by value in a kernel's arguments.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// The rank's control block, in pinned host memory.
    pub control: Global<Control>,
    /// A word in device memory, 0 until the first early end: who sets it writes the record.
    pub claim: Global<u32>,
    /// Nanoseconds a wait may take; 0 is no limit.
    pub timeout_ns: u64,
    /// Copied to the record.
    pub launch: u64,
}

impl Guard {
    /// Whether a wait of this rank has ended early: what was enqueued after it need not begin.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn has_ended(&self) -> bool {
        told(self.claim.load_atomic(Relaxed, Gpu) != 0)
    }

    /// As [`has_ended`](Guard::has_ended), by a load that the lanes of a multiprocessor share: it sees what
    /// was written before the launch.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub(crate) fn had_ended(&self) -> bool {
        told(self.claim.load_atomic(Relaxed, Cta) != 0)
    }
}

/// Whoever learns here that a wait of its rank has ended early goes on, or ends, without what that would
/// have brought.
#[inline(always)]
fn told(has_ended: bool) -> bool {
    if has_ended {
        arch::wait_ended_early();
    }
    has_ended
}

/// Spins between two looks at the abort word and the clock; a power of two.
const SPINS_A_LOOK: u32 = 64;

/// One wait's own state; made when it starts to poll.
struct Waiting {
    spins: u32,
    since: u64,
}

impl Waiting {
    /// After fruitless polls of `at`, which held `seen`: true when the wait has to end.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn give_up(&mut self, guard: &Guard, at: Global<u64>, seen: u64, wanted: Wanted) -> bool {
        self.spins = self.spins.wrapping_add(1);
        let Wanted { kind, peer, .. } = wanted;
        // The CPU device suspends the lane here until the word changes or the host asks for a look.
        let asked = arch::spin(at.raw(), seen, guard.control.raw().cast(), kind.name());
        if arch::SPIN_SUSPENDS && !asked {
            return false;
        }
        // Another wait has ended early: its work is missing, so this one would wait in vain, and so
        // would all that were enqueued after it.
        let cause = if guard.has_ended() {
            3
        } else if asked || self.spins & (SPINS_A_LOOK - 1) == 0 {
            self.look(guard, peer)
        } else {
            0
        };
        if cause != 0 {
            record(guard, at, seen, wanted, cause);
        }
        cause != 0
    }

    #[inline(always)]
    fn look(&mut self, guard: &Guard, peer: u32) -> u32 {
        if guard.control.cast::<u32>().load_atomic(Relaxed, Sys) != 0 {
            return 1;
        }
        if peer < 512 {
            let left = guard.control.cast::<u8>().at(core::mem::offset_of!(Control, left) as u32);
            let word = left.cast::<u64>().at(peer >> 6).load_atomic(Relaxed, Sys);
            if word >> (peer & 63) & 1 != 0 {
                return 4;
            }
        }
        if guard.timeout_ns == 0 {
            return 0;
        }
        let now = arch::global_timer_ns();
        if self.since == 0 {
            self.since = now;
        }
        if now.wrapping_sub(self.since) > guard.timeout_ns { 2 } else { 0 }
    }
}

/// What a wait is for, as its record tells it.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// What the word has to become.
    pub expected: u64,
    /// What is waited for.
    pub kind: WaitKind,
    /// Of which rank; `u32::MAX` where the wait is not for one rank.
    pub peer: u32,
}

/// What a wait polls. A trait and not closures: methods know who called them, for the CPU device's
/// reports.
pub trait Polled {
    /// What one poll gives.
    type Seen: Copy;
    /// Looks once.
    fn peek(&self) -> Self::Seen;
    /// Whether that is what is waited for.
    fn ready(&self, seen: Self::Seen) -> bool;
    /// The word that is not as wanted yet, and what it held.
    fn word(&self, seen: Self::Seen) -> (Global<u64>, u64);
}

/// Polls until what is seen is ready, beginning with what a poll gave before: the loop of every wait.
/// An error if the wait ended early.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn wait_until<T: Polled>(
    guard: &Guard,
    wanted: Wanted,
    polled: &T,
    first: T::Seen,
) -> DeviceResult<T::Seen> {
    let mut waiting = Waiting { spins: 0, since: 0 };
    let mut seen = first;
    while !polled.ready(seen) {
        // A tight loop: what else a wait does is not between its polls.
        let mut left = arch::polls_a_spin();
        while left > 1 {
            arch::keep_rolled();
            seen = polled.peek();
            if polled.ready(seen) {
                return Ok(seen);
            }
            left -= 1;
        }
        let (at, held) = polled.word(seen);
        if waiting.give_up(guard, at, held, wanted) {
            return Err(Aborted);
        }
        seen = polled.peek();
    }
    Ok(seen)
}

#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
fn record(guard: &Guard, at: Global<u64>, seen: u64, wanted: Wanted, cause: u32) {
    arch::wait_ended_early();
    let Wanted { expected, kind, peer } = wanted;
    if guard.claim.compare_exchange(Relaxed, Gpu, 0, 1) != 0 {
        return;
    }
    let to = guard.control.cast::<u8>().at(core::mem::offset_of!(Control, record) as u32);
    let word = |offset: usize| to.at(offset as u32).cast::<u32>();
    let long = |offset: usize| to.at(offset as u32).cast::<u64>();
    use core::mem::offset_of;
    word(offset_of!(WaitRecord, kind)).store_atomic(Relaxed, Sys, kind as u32);
    word(offset_of!(WaitRecord, peer)).store_atomic(Relaxed, Sys, peer);
    word(offset_of!(WaitRecord, block)).store_atomic(Relaxed, Sys, arch::block_idx());
    word(offset_of!(WaitRecord, thread)).store_atomic(Relaxed, Sys, arch::thread_idx());
    word(offset_of!(WaitRecord, cause)).store_atomic(Relaxed, Sys, cause);
    long(offset_of!(WaitRecord, launch)).store_atomic(Relaxed, Sys, guard.launch);
    long(offset_of!(WaitRecord, address)).store_atomic(Relaxed, Sys, at.address());
    long(offset_of!(WaitRecord, expected)).store_atomic(Relaxed, Sys, expected);
    long(offset_of!(WaitRecord, seen)).store_atomic(Relaxed, Sys, seen);
    word(offset_of!(WaitRecord, valid)).store_atomic(Release, Sys, 1);
}

/// The peer at the other end of a wait came with something else than this rank did: recorded as an
/// early end, so that every wait of this rank ends.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn refuse(guard: &Guard, at: Global<u64>, seen: u64, expected: u64, kind: WaitKind, peer: u32) {
    record(guard, at, seen, Wanted { expected, kind, peer }, 5);
}

/// A word that has to become something.
struct Word<F> {
    at: Global<u64>,
    ready: F,
}

impl<F: Fn(u64) -> bool> Polled for Word<F> {
    type Seen = u64;

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn peek(&self) -> u64 {
        self.at.load_atomic(Relaxed, Sys)
    }

    #[inline(always)]
    fn ready(&self, seen: u64) -> bool {
        (self.ready)(seen)
    }

    #[inline(always)]
    fn word(&self, seen: u64) -> (Global<u64>, u64) {
        (self.at, seen)
    }
}

/// Polls `at` with relaxed loads until `ready`, and gives the value seen.
///
/// `expected`, `kind` and `peer` are for the record of a wait that ends early.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn poll(
    guard: &Guard,
    at: Global<u64>,
    expected: u64,
    kind: WaitKind,
    peer: u32,
    ready: impl Fn(u64) -> bool,
) -> DeviceResult<u64> {
    let word = Word { at, ready };
    wait_until(guard, Wanted { expected, kind, peer }, &word, word.peek())
}

/// As [`poll`], then one acquire load of the same word: what was done before the release that wrote
/// it is visible. The word only grows, so that the second load satisfies `ready` too.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn poll_acquire(
    guard: &Guard,
    at: Global<u64>,
    expected: u64,
    kind: WaitKind,
    peer: u32,
    ready: impl Fn(u64) -> bool,
) -> DeviceResult<u64> {
    poll(guard, at, expected, kind, peer, ready)?;
    Ok(at.load_atomic(Acquire, Sys))
}

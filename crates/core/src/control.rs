//! The words by which a rank's host and its kernels speak of aborts.
//!
//! Invariant: the abort word has one writer, the host, and only goes from 0 to 1; the record has one
//! writer, the lane that won the claim word, and is whole once `valid` is read as 1 with acquire.
//! Both lie in pinned host memory that is freed only after the watcher and the last kernel ended:
//! whoever can still write holds an `Arc` of the block.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use mscclrs_device::{Control, Global, Guard, WaitKind, WaitRecord};
use mscclrs_gpu::{Buffer, Device, MemoryKind};

use crate::{EarlyWait, Error, Result, WaitCause};

/// How many ranks the control block can mark as left.
///
/// More would have waits that only a time limit ends, so a communicator has no more ranks: where one
/// leaves, whoever waits for it is to be told, and nobody else. To end all waits of a rank instead,
/// whenever one beyond this number leaves, would end those of ranks that have all they need.
pub(crate) const MOST_RANKS: u32 = left_words() as u32 * u64::BITS;

const fn left_words() -> usize {
    /// The number of words in the field of the control block.
    const fn words<const N: usize>(_: fn(&Control) -> &[u64; N]) -> usize {
        N
    }
    words(|control| &control.left)
}

/// A rank's [`Control`] and claim word.
pub(crate) struct ControlBlock {
    memory: Buffer,
    host: *mut Control,
    claim: Buffer,
    timeout_ns: AtomicU64,
}

// SAFETY: `host` points into `memory`, which lives as long; it is reached by atomics only.
unsafe impl Send for ControlBlock {}
// SAFETY: as above.
unsafe impl Sync for ControlBlock {}

impl ControlBlock {
    pub(crate) fn new(device: &Device) -> Result<Arc<Self>> {
        let memory = device.alloc(size_of::<Control>() as u64, MemoryKind::Host)?;
        let claim = device.alloc(size_of::<u64>() as u64, MemoryKind::Plain)?;
        let Some(host) = memory.host_address() else {
            return Err(Error::Invalid {
                what: "control block",
                value: format!("{memory:?}"),
                allowed: "host memory has to be reachable by the host".into(),
            });
        };
        let host = host.cast::<Control>();
        if !host.is_aligned() {
            return Err(Error::Invalid {
                what: "control block",
                value: format!("{host:p}"),
                allowed: format!("host memory is aligned to {} bytes", align_of::<Control>()),
            });
        }
        Ok(Arc::new(ControlBlock { memory, host, claim, timeout_ns: AtomicU64::new(0) }))
    }

    fn abort_word(&self) -> &AtomicU32 {
        // SAFETY: `host` points to a live, aligned `Control` (see the module), whose abort word is
        // reached by atomics only.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.host).abort) }
    }

    /// Ends every wait of this rank's kernels, from now on.
    pub(crate) fn abort(&self) {
        self.abort_word().store(1, Ordering::Release);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.abort_word().load(Ordering::Acquire) != 0
    }

    /// Waits for this rank end from now on: it has left. It is below [`MOST_RANKS`].
    pub(crate) fn mark_left(&self, rank: u32) {
        let word = (rank / u64::BITS) as usize;
        if word >= left_words() {
            return;
        }
        // SAFETY: as in `abort_word`; the address of a field is taken without a reference. The word
        // lies in the array, and all who reach it do so by atomics.
        let word =
            unsafe { AtomicU64::from_ptr((&raw mut (*self.host).left).cast::<u64>().add(word)) };
        word.fetch_or(1 << (rank % u64::BITS), Ordering::Release);
    }

    pub(crate) fn set_timeout(&self, limit: Option<Duration>) {
        // A limit of zero would mean none to the device.
        let ns = limit.map_or(0, |l| u64::try_from(l.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.timeout_ns.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn guard(&self, launch: u64) -> Guard {
        Guard {
            control: Global::from_address(self.memory.address()),
            claim: Global::from_address(self.claim.address()),
            timeout_ns: self.timeout_ns.load(Ordering::Relaxed),
            launch,
        }
    }

    /// Whether a wait ended early and its record is whole.
    pub(crate) fn has_record(&self) -> bool {
        // SAFETY: as in `abort_word`.
        let valid = unsafe { AtomicU32::from_ptr(&raw mut (*self.host).record.valid) };
        valid.load(Ordering::Acquire) != 0
    }

    /// The first wait that ended early.
    pub(crate) fn record(&self) -> Option<EarlyWait> {
        if !self.has_record() {
            return None;
        }
        // SAFETY: the record is in live memory and, since `valid` was read with acquire, nobody
        // writes it any more.
        let record: WaitRecord = unsafe { (&raw const (*self.host).record).read_volatile() };
        Some(EarlyWait {
            kernel: launch_tag_name(record.launch),
            block: record.block,
            thread: record.thread,
            peer: (record.peer != u32::MAX).then_some(record.peer),
            kind: WaitKind::from_code(record.kind).map_or("word", WaitKind::name),
            address: record.address,
            expected: record.expected,
            seen: record.seen,
            cause: match record.cause {
                2 => WaitCause::Timeout,
                4 => WaitCause::Left,
                5 => WaitCause::Mismatch,
                _ => WaitCause::Abort,
            },
        })
    }
}

fn launch_tags() -> &'static Mutex<Vec<String>> {
    static TAGS: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    TAGS.get_or_init(|| Mutex::new(Vec::new()))
}

/// Gives the tag of a kernel's name for [`Communicator::guard`](crate::Communicator::guard), so that
/// the record of a wait that ended early names the kernel. The same name has the same tag.
///
/// For set-up: it takes a lock and searches.
pub fn register_launch_tag(name: &str) -> u64 {
    let mut tags = launch_tags().lock().unwrap_or_else(PoisonError::into_inner);
    let index = tags.iter().position(|tag| tag == name).unwrap_or_else(|| {
        tags.push(name.to_owned());
        tags.len() - 1
    });
    index as u64 + 1
}

fn launch_tag_name(tag: u64) -> String {
    let tags = launch_tags().lock().unwrap_or_else(PoisonError::into_inner);
    tag.checked_sub(1)
        .and_then(|index| tags.get(usize::try_from(index).ok()?))
        .cloned()
        .unwrap_or_else(|| format!("with launch tag {tag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_tag_names_its_kernel() {
        let tag = register_launch_tag("a_kernel_of_this_test");
        assert_eq!(register_launch_tag("a_kernel_of_this_test"), tag);
        assert_ne!(register_launch_tag("another_kernel_of_this_test"), tag);
        assert_eq!(launch_tag_name(tag), "a_kernel_of_this_test");
        assert_eq!(launch_tag_name(0), "with launch tag 0");
        assert_eq!(launch_tag_name(u64::MAX), format!("with launch tag {}", u64::MAX));
    }
}

//! How a communicator comes to its end before its time: a lost rank, a wait that ended early.

use std::fmt;

use crate::Loss;

/// A rank that was lost, or that said that it failed.
#[derive(Clone, Debug)]
pub struct LostRank {
    /// The rank, and how it was noticed or what the rank said.
    pub loss: Loss,
    /// The wait of this rank that ended because of it, if a kernel was waiting.
    pub wait: Option<EarlyWait>,
}

impl fmt::Display for LostRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.loss)?;
        match &self.wait {
            Some(wait) => write!(f, "; {wait}"),
            None => Ok(()),
        }
    }
}

/// Why a wait ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// The host told it to.
    Abort,
    /// The rank waited for has left.
    Left,
    /// The rank waited for made the call with other arguments.
    Mismatch,
    /// It took longer than the communicator's time limit.
    Timeout,
}

/// A wait of a kernel that ended before it saw what it waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyWait {
    /// The kernel's name, where its launch tag was registered.
    pub kernel: String,
    /// Block of the waiting lane.
    pub block: u32,
    /// The waiting lane in its block.
    pub thread: u32,
    /// The rank waited for, where it is one.
    pub peer: Option<u32>,
    /// What kind of thing was waited for.
    pub kind: &'static str,
    /// Address of the word that did not change.
    pub address: u64,
    /// What it had to become.
    pub expected: u64,
    /// What it held.
    pub seen: u64,
    /// Why the wait ended.
    pub cause: WaitCause,
}

impl fmt::Display for EarlyWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "kernel {} (block {}, thread {}) waited for {} {}",
            self.kernel,
            self.block,
            self.thread,
            article(self.kind),
            self.kind
        )?;
        if let Some(peer) = self.peer {
            write!(f, " of rank {peer}")?;
        }
        write!(f, " at {:#x}: expected {:#x}, saw {:#x}", self.address, self.expected, self.seen)?;
        match self.cause {
            WaitCause::Abort => write!(f, "; it was told to end"),
            WaitCause::Left => write!(f, "; that rank has left"),
            WaitCause::Mismatch => write!(
                f,
                "; that rank made the call with another registration, offset, count, type or \
                 operation"
            ),
            WaitCause::Timeout => {
                write!(f, "; the time limit passed (set_timeout or MSCCLRS_TIMEOUT)")
            }
        }
    }
}

/// What stands before a noun that is spoken as it is written.
fn article(noun: &str) -> &'static str {
    if noun.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" }
}

#[cfg(test)]
mod tests {
    use mscclrs_device::WaitKind;

    use super::*;

    #[test]
    fn every_kind_of_wait_has_its_article() {
        let kinds = (0..64).filter_map(WaitKind::from_code).map(WaitKind::name);
        let told: Vec<String> = kinds
            .chain(["word"])
            .map(|kind| {
                let wait = EarlyWait {
                    kernel: "k".into(),
                    block: 0,
                    thread: 0,
                    peer: None,
                    kind,
                    address: 0,
                    expected: 1,
                    seen: 0,
                    cause: WaitCause::Timeout,
                };
                let text = wait.to_string();
                let (_, rest) = text.split_once("waited for ").unwrap();
                rest.split_once(" at ").unwrap().0.to_owned()
            })
            .collect();
        assert_eq!(
            told,
            [
                "a packet",
                "an epoch flag",
                "a semaphore",
                "a grid barrier",
                "a device semaphore",
                "a word"
            ]
        );
    }
}

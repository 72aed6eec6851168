//! What everybody waits for.

use std::fmt;

use crate::block::Block;
use crate::lane::Waiting;

/// Most rows that a report shows.
const ROWS_SHOWN: usize = 40;

/// Lanes of one block that wait for the same kind of thing at the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRow {
    /// The kernel.
    pub kernel: &'static str,
    /// The block.
    pub block: u32,
    /// What is waited for: barrier, warp, or what a wait for memory says.
    pub what: &'static str,
    /// The word that the first of the lanes waits for; 0 for barrier and warp.
    pub address: u64,
    /// In a simulation: the number of the memory that it lies in, and its byte there.
    pub place: Option<(u32, u64)>,
    /// What it held when that lane looked.
    pub seen: u64,
    /// Source line of the wait, e.g. `wait.rs:12`; empty for barrier and warp.
    pub line: String,
    /// The first of the lanes.
    pub lane: u32,
    /// How many lanes.
    pub lanes: u32,
}

/// What the blocks of a device wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingReport {
    /// The device.
    pub device: u32,
    /// One row a block, kind of wait and source line.
    pub rows: Vec<WaitingRow>,
    /// Kernels with blocks that found no place yet: name, blocks without a place, blocks in all.
    pub not_resident: Vec<(&'static str, u32, u32)>,
    /// Queues that wait for an event.
    pub queues_waiting: u32,
}

impl WaitingReport {
    pub(crate) fn new(device: u32) -> Self {
        WaitingReport { device, ..Default::default() }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.not_resident.is_empty() && self.queues_waiting == 0
    }

    pub(crate) fn add_block(&mut self, block: &Block) {
        let first = self.rows.len();
        for (lane, state) in block.lanes().iter().enumerate() {
            let (what, address, seen, line) = match state.waiting.get() {
                Waiting::No => continue,
                Waiting::Barrier(from) => ("barrier of the block", 0, 0, from.to_string()),
                Waiting::Warp(mask, from) => {
                    ("lanes of the warp", 0, mask.into(), from.to_string())
                }
                Waiting::Word(spin) => {
                    (spin.what, spin.at as usize as u64, spin.seen, spin.from.to_string())
                }
            };
            let same = |row: &&mut WaitingRow| row.what == what && row.line == line;
            if let Some(row) = self.rows[first..].iter_mut().find(same) {
                row.lanes += 1;
                continue;
            }
            self.rows.push(WaitingRow {
                kernel: block.kernel(),
                block: block.index,
                what,
                address,
                place: None,
                seen,
                line,
                lane: lane as u32,
                lanes: 1,
            });
        }
    }

    pub(crate) fn add_not_resident(&mut self, kernel: &'static str, left: u32, blocks: u32) {
        if left > 0 {
            self.not_resident.push((kernel, left, blocks));
        }
    }
}

impl fmt::Display for WaitingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU device {}", self.device)?;
        if self.is_empty() {
            return write!(f, ": nothing waits");
        }
        for row in self.rows.iter().take(ROWS_SHOWN) {
            let WaitingRow { kernel, block, what, address, place, seen, line, lane, lanes } = row;
            write!(f, "\n  kernel {kernel} block {block}: ")?;
            match lanes {
                1 => write!(f, "lane {lane} waits for ")?,
                _ => write!(f, "{lanes} lanes (first {lane}) wait for ")?,
            }
            match (*address, place) {
                (0, _) => write!(f, "the {what}; {line}")?,
                // An address is another one in each run.
                (_, Some((memory, byte))) => write!(
                    f,
                    "a {what}: the word at byte {byte:#x} of memory {memory} holds {seen:#x}; {line}"
                )?,
                _ => write!(f, "a {what}: the word at {address:#x} holds {seen:#x}; {line}")?,
            }
        }
        if let Some(more) = self.rows.len().checked_sub(ROWS_SHOWN).filter(|&more| more > 0) {
            write!(f, "\n  and {more} more rows")?;
        }
        for (kernel, left, blocks) in &self.not_resident {
            write!(f, "\n  kernel {kernel}: {left} of {blocks} blocks have no place yet")?;
        }
        if self.queues_waiting > 0 {
            write!(f, "\n  {} queues wait for events", self.queues_waiting)?;
        }
        Ok(())
    }
}

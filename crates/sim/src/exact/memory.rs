//! What memory there is: its owners tell of what they map, so that accesses past it are seen, and so
//! that two mappings of one piece of memory are known to be one.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pieces of memory that are gone and still remembered.
const REMEMBERED: usize = 256;

/// Bytes behind a piece that are told to be past it.
const NEAR: u64 = 1 << 16;

/// Pages of which it is at hand where they lie.
const AT_HAND: usize = 1024;

/// Who may write memory beside kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOwner {
    /// Only kernels and work of queues: a device's memory.
    Device,
    /// The host too, at any time: nothing is said about races there.
    Host,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// The same for all mappings of one piece of memory.
    pub(crate) object: u64,
    pub(crate) owner: MemoryOwner,
}

impl Entry {
    #[inline]
    fn has(&self, address: u64, size: u64) -> bool {
        self.start <= address && address + size <= self.start + self.bytes
    }

    #[inline]
    fn found(&self, address: u64) -> Found {
        let Entry { start, object, owner, .. } = *self;
        Found::In { object, offset: address - start, owner }
    }
}

struct Table {
    /// By where they begin, and then by when they were told of: pieces may overlap.
    live: BTreeMap<(u64, u64), Entry>,
    gone: VecDeque<Entry>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { live: BTreeMap::new(), gone: VecDeque::new() });
static VERSION: AtomicU64 = AtomicU64::new(1);

fn table() -> MutexGuard<'static, Table> {
    // Whole between any two statements that change it.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What lay in these bytes before is not to be told of any more.
pub(super) fn forget(start: u64, bytes: u64) {
    table().gone.retain(|gone| gone.start >= start + bytes || gone.start + gone.bytes <= start);
}

/// Memory that kernels may use while this lives.
#[derive(Debug)]
pub struct MappedMemory(u64, u64);

impl MappedMemory {
    /// Tells of `bytes` bytes at `start`; `object` is one for all mappings of the same memory.
    pub fn new(start: u64, bytes: u64, object: u64, owner: MemoryOwner) -> MappedMemory {
        forget(start, bytes);
        let mut table = table();
        let version = VERSION.fetch_add(1, Ordering::Release);
        table.live.insert((start, version), Entry { start, bytes, object, owner });
        MappedMemory(start, version)
    }

    /// A number for memory that is mapped once only.
    pub fn new_object() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        let mut table = table();
        if let Some(entry) = table.live.remove(&(self.0, self.1)) {
            table.gone.push_back(entry);
            if table.gone.len() > REMEMBERED {
                table.gone.pop_front();
            }
        }
        VERSION.fetch_add(1, Ordering::Release);
    }
}

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    In {
        object: u64,
        offset: u64,
        owner: MemoryOwner,
    },
    /// It begins so many bytes into memory of so many bytes, and ends behind it.
    Past {
        offset: u64,
        bytes: u64,
    },
    /// It lies so far into memory of so many bytes that is not mapped any more.
    Gone {
        offset: u64,
        bytes: u64,
    },
    Nowhere,
}

/// The table as of some moment.
#[derive(Debug)]
pub(crate) struct View {
    version: u64,
    live: Vec<Entry>,
    /// Where all end that do not begin after each.
    reach: Vec<u64>,
    /// Where pieces are that were found last, by the page of the address.
    at_hand: [u32; AT_HAND],
}

impl Default for View {
    fn default() -> View {
        View { version: 0, live: Vec::new(), reach: Vec::new(), at_hand: [0; AT_HAND] }
    }
}

impl View {
    /// Takes what has changed; true if anything has.
    pub(crate) fn refresh(&mut self) -> bool {
        let version = VERSION.load(Ordering::Acquire);
        if version == self.version {
            return false;
        }
        let table = table();
        self.live = table.live.values().copied().collect();
        drop(table);
        // Who maps memory of others sees whole pages; what they asked for ends where its owner says.
        let mut ends = HashMap::new();
        for Entry { object, bytes, .. } in &self.live {
            ends.entry(*object)
                .and_modify(|end: &mut u64| *end = (*bytes).min(*end))
                .or_insert(*bytes);
        }
        for entry in &mut self.live {
            entry.bytes = ends[&entry.object];
        }
        let reach = self.live.iter().scan(0, |reach, entry| {
            *reach = entry.start.saturating_add(entry.bytes).max(*reach);
            Some(*reach)
        });
        self.reach = reach.collect();
        self.at_hand = [0; AT_HAND];
        self.version = version;
        true
    }

    /// All pieces of memory.
    pub(crate) fn objects(&self) -> HashSet<u64> {
        self.live.iter().map(|entry| entry.object).collect()
    }

    /// How large a piece of memory is; nothing of what is not mapped, as shared memory is not.
    pub(crate) fn bytes(&self, object: u64) -> Option<u64> {
        self.live.iter().find(|entry| entry.object == object).map(|entry| entry.bytes)
    }

    #[inline]
    pub(crate) fn find(&mut self, address: u64, size: u64) -> Found {
        let entry = self.live.get(self.at_hand[Self::at_hand(address)] as usize);
        match entry.filter(|entry| entry.has(address, size)) {
            Some(entry) => entry.found(address),
            None => self.look_up(address, size),
        }
    }

    #[inline]
    fn at_hand(address: u64) -> usize {
        // Pieces of memory lie in any order, and mostly at multiples of large powers of two.
        ((address >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % AT_HAND
    }

    #[cold]
    fn look_up(&mut self, address: u64, size: u64) -> Found {
        let after = self.live.partition_point(|entry| entry.start <= address);
        let mut before = (0..after).rev().take_while(|&index| self.reach[index] > address);
        let Some(index) = before.find(|&index| self.live[index].has(address, size)) else {
            return match (Self::lost(address), after.checked_sub(1)) {
                (Found::Nowhere, Some(index)) => self.behind(index, address),
                (lost, _) => lost,
            };
        };
        self.at_hand[Self::at_hand(address)] = index as u32;
        self.live[index].found(address)
    }

    fn behind(&self, index: usize, address: u64) -> Found {
        let Entry { start, bytes, .. } = self.live[index];
        let offset = address - start;
        // Not somewhere else altogether.
        if offset < bytes + NEAR { Found::Past { offset, bytes } } else { Found::Nowhere }
    }

    fn lost(address: u64) -> Found {
        let table = table();
        let gone = table.gone.iter().rev();
        let mut gone = gone.filter(|e| e.start <= address && address < e.start + e.bytes);
        gone.next().map_or(Found::Nowhere, |entry| Found::Gone {
            offset: address - entry.start,
            bytes: entry.bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_lies_in_past_behind_or_nowhere() {
        // Addresses that no process has.
        let at = 0xf000_0000_0000_0000;
        let object = MappedMemory::new_object();
        let first = MappedMemory::new(at, 100, object, MemoryOwner::Device);
        let again = MappedMemory::new(at + 0x100_0000, 100, object, MemoryOwner::Device);
        let mut view = View::default();
        assert!(view.refresh());
        let owner = MemoryOwner::Device;
        assert_eq!(view.find(at + 8, 8), Found::In { object, offset: 8, owner });
        assert_eq!(view.find(at + 0x100_0008, 8), Found::In { object, offset: 8, owner });
        assert_eq!(view.find(at + 96, 8), Found::Past { offset: 96, bytes: 100 });
        assert_eq!(view.find(at + (1 << 50), 8), Found::Nowhere);
        drop(again);
        assert!(view.refresh() && view.objects().contains(&object));
        assert_eq!(view.find(at + 0x100_0008, 8), Found::Gone { offset: 8, bytes: 100 });
        drop(first);
        assert!(view.refresh() && !view.objects().contains(&object));
        assert_eq!(view.find(at, 1), Found::Gone { offset: 0, bytes: 100 });
    }

    #[test]
    fn all_mappings_of_memory_end_where_the_shortest_does() {
        // Addresses that no process has.
        let at = 0xf200_0000_0000_0000;
        let (object, owner) = (MappedMemory::new_object(), MemoryOwner::Device);
        let own = MappedMemory::new(at, 100, object, owner);
        let _peers = MappedMemory::new(at + 0x10_0000, 4096, object, owner);
        let mut view = View::default();
        view.refresh();
        assert_eq!(view.find(at + 0x10_0060, 4), Found::In { object, offset: 96, owner });
        assert_eq!(view.find(at + 0x10_0060, 8), Found::Past { offset: 96, bytes: 100 });
        drop(own);
        view.refresh();
        assert_eq!(view.find(at + 0x10_0060, 8), Found::In { object, offset: 96, owner });
    }

    #[test]
    fn memory_is_found_behind_many_pieces_that_lie_in_it() {
        // Addresses that no process has.
        let at = 0xf100_0000_0000_0000;
        let piece = |start, bytes| {
            MappedMemory::new(start, bytes, MappedMemory::new_object(), MemoryOwner::Host)
        };
        let whole = MappedMemory::new_object();
        let _whole = MappedMemory::new(at, 1 << 20, whole, MemoryOwner::Host);
        let _pieces: Vec<_> = (1..100).map(|nth| piece(at + 64 * nth, 64)).collect();
        let mut view = View::default();
        view.refresh();
        let found = Found::In { object: whole, offset: 1 << 19, owner: MemoryOwner::Host };
        assert_eq!(view.find(at + (1 << 19), 8), found);
    }
}

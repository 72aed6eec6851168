//! Memory for tests of kernels, without a back end.

use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::{MappedMemory, MemoryOwner, forget};

/// Memory of a test or an example.
pub struct TestMemory {
    words: Vec<AtomicU64>,
    _mapped: MappedMemory,
}

impl TestMemory {
    /// So many bytes of zeros, at a multiple of 16.
    pub fn new(bytes: usize) -> TestMemory {
        TestMemory::owned(bytes, MemoryOwner::Device)
    }

    /// As `new`, of memory that the host too may write at any time.
    pub fn of_host(bytes: usize) -> TestMemory {
        TestMemory::owned(bytes, MemoryOwner::Host)
    }

    fn owned(bytes: usize, owner: MemoryOwner) -> TestMemory {
        let count = bytes.div_ceil(16).max(1) * 2 + 2;
        let words: Vec<_> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let start = (words.as_ptr() as u64).next_multiple_of(16);
        let object = MappedMemory::new_object();
        // What lies behind the bytes belongs to no other memory, whatever was there before.
        forget(words.as_ptr() as u64, 8 * count as u64);
        let mapped = MappedMemory::new(start, bytes as u64, object, owner);
        TestMemory { words, _mapped: mapped }
    }

    /// Where it begins: a multiple of 16.
    pub fn address(&self) -> u64 {
        (self.words.as_ptr() as u64).next_multiple_of(16)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let skipped = (self.address() - self.words.as_ptr() as u64) as usize / 8;
        &self.words[skipped + index]
    }

    /// An 8-byte word of it.
    pub fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Sets an 8-byte word of it, while no kernel runs.
    pub fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }
}

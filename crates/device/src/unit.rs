//! Units that a lane moves at once, and how they are read from and written to a caller's buffer.
//!
//! Protocols count whole units. A caller's buffer may begin anywhere and end within a unit: the
//! [`Access`] deals with that, so that ranks whose buffers are aligned differently still follow one
//! protocol. What a unit holds past the end of the buffer is 0 when read and dropped when written.

use crate::ptr::{Global, Word16};

/// What a lane moves at once: one, two or four 4-byte words.
pub trait Unit: Copy + Default {
    /// Bytes.
    const BYTES: u32;
    /// Unit `index`, at an address that is a multiple of its size.
    fn load(base: Global<u8>, index: u32) -> Self;
    /// Unit `index`, at an address that is a multiple of its size.
    fn store(self, base: Global<u8>, index: u32);
    /// From its 4-byte words.
    fn gather(word: impl Fn(u32) -> u32) -> Self;
    /// To its 4-byte words.
    fn scatter(self, word: impl Fn(u32, u32));
}

impl Unit for u32 {
    const BYTES: u32 = 4;
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn load(base: Global<u8>, index: u32) -> Self {
        base.cast::<u32>().at(index).load()
    }
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn store(self, base: Global<u8>, index: u32) {
        base.cast::<u32>().at(index).store(self);
    }
    #[inline(always)]
    fn gather(word: impl Fn(u32) -> u32) -> Self {
        word(0)
    }
    #[inline(always)]
    fn scatter(self, word: impl Fn(u32, u32)) {
        word(0, self);
    }
}

impl Unit for (u32, u32) {
    const BYTES: u32 = 8;
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn load(base: Global<u8>, index: u32) -> Self {
        let both = base.cast::<u64>().at(index).load();
        (both as u32, (both >> 32) as u32)
    }
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn store(self, base: Global<u8>, index: u32) {
        base.cast::<u64>().at(index).store((self.1 as u64) << 32 | self.0 as u64);
    }
    #[inline(always)]
    fn gather(word: impl Fn(u32) -> u32) -> Self {
        (word(0), word(1))
    }
    #[inline(always)]
    fn scatter(self, word: impl Fn(u32, u32)) {
        word(0, self.0);
        word(1, self.1);
    }
}

impl Unit for Word16 {
    const BYTES: u32 = 16;
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn load(base: Global<u8>, index: u32) -> Self {
        base.cast::<Word16>().at(index).load()
    }
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn store(self, base: Global<u8>, index: u32) {
        base.cast::<Word16>().at(index).store(self);
    }
    #[inline(always)]
    fn gather(word: impl Fn(u32) -> u32) -> Self {
        Word16 { x: word(0), y: word(1), z: word(2), w: word(3) }
    }
    #[inline(always)]
    fn scatter(self, word: impl Fn(u32, u32)) {
        word(0, self.x);
        word(1, self.y);
        word(2, self.z);
        word(3, self.w);
    }
}

/// How a caller's buffer of `bytes` bytes is read and written.
pub trait Access: Copy {
    /// Whether a lane keeps several units in flight; not where each is many small accesses.
    const WIDE: bool;
    /// Unit `index` of the buffer.
    fn load<U: Unit>(base: Global<u8>, index: u32, bytes: u64) -> U;
    /// Unit `index` of the buffer.
    fn store<U: Unit>(base: Global<u8>, index: u32, bytes: u64, unit: U);
}

/// The buffer begins at a multiple of the unit and is a whole number of units.
#[derive(Clone, Copy, Debug)]
pub struct Aligned;

impl Access for Aligned {
    const WIDE: bool = true;

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn load<U: Unit>(base: Global<u8>, index: u32, _bytes: u64) -> U {
        U::load(base, index)
    }
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn store<U: Unit>(base: Global<u8>, index: u32, _bytes: u64, unit: U) {
        unit.store(base, index);
    }
}

/// The buffer begins and ends at any multiple of 2 bytes, the smallest element.
#[derive(Clone, Copy, Debug)]
pub struct Any;

impl Access for Any {
    const WIDE: bool = false;

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn load<U: Unit>(base: Global<u8>, index: u32, bytes: u64) -> U {
        let first = index as u64 * U::BYTES as u64;
        if first + U::BYTES as u64 <= bytes && base.address() & (U::BYTES as u64 - 1) == 0 {
            return U::load(base, index);
        }
        U::gather(
            #[inline(always)]
            |k| load_word(base, first + 4 * k as u64, bytes),
        )
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn store<U: Unit>(base: Global<u8>, index: u32, bytes: u64, unit: U) {
        let first = index as u64 * U::BYTES as u64;
        if first + U::BYTES as u64 <= bytes && base.address() & (U::BYTES as u64 - 1) == 0 {
            return unit.store(base, index);
        }
        unit.scatter(
            #[inline(always)]
            |k, word| store_word(base, first + 4 * k as u64, bytes, word),
        );
    }
}

#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
fn load_word(base: Global<u8>, offset: u64, bytes: u64) -> u32 {
    let at = base.at64(offset).cast::<u16>();
    let low = if offset < bytes { at.load() } else { 0 };
    let high = if offset + 2 < bytes { at.at(1).load() } else { 0 };
    low as u32 | (high as u32) << 16
}

#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
fn store_word(base: Global<u8>, offset: u64, bytes: u64, word: u32) {
    let at = base.at64(offset).cast::<u16>();
    if offset < bytes {
        at.store(word as u16);
    }
    if offset + 2 < bytes {
        at.at(1).store((word >> 16) as u16);
    }
}

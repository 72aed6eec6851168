//! Copies by the lanes of a block, or of several.

use crate::ptr::{Global, Word16};

/// Copies `bytes` bytes of any alignment, shared out among `lanes` lanes of which this is `lane`.
///
/// Where both addresses agree modulo 16 the middle moves as 16-byte words; where they agree modulo 4
/// as 4-byte words, else byte by byte. The ranges do not overlap. No lane waits for another.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn copy_bytes(to: Global<u8>, from: Global<u8>, bytes: u64, lane: u32, lanes: u32) {
    let differ = to.address() ^ from.address();
    let unit = if differ & 15 == 0 {
        16
    } else if differ & 3 == 0 {
        4
    } else {
        1
    };
    let head = (to.address().wrapping_neg() & (unit - 1)).min(bytes);
    let middle = (bytes - head) & !(unit - 1);
    let tail = bytes - head - middle;
    copy_few(to, from, head, lane, lanes);
    let (to, from) = (to.at64(head), from.at64(head));
    if unit == 16 {
        copy_units::<Word16>(to.cast(), from.cast(), middle >> 4, lane, lanes);
    } else if unit == 4 {
        copy_units::<u32>(to.cast(), from.cast(), middle >> 2, lane, lanes);
    } else {
        copy_few(to, from, middle, lane, lanes);
    }
    copy_few(to.at64(middle), from.at64(middle), tail, lane, lanes);
}

#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
fn copy_units<T: crate::arch::Plain>(
    to: Global<T>,
    from: Global<T>,
    count: u64,
    lane: u32,
    lanes: u32,
) {
    let step = lanes as u64;
    let mut i = lane as u64;
    while i + 3 * step < count {
        let a = from.at64(i).load();
        let b = from.at64(i + step).load();
        let c = from.at64(i + 2 * step).load();
        let d = from.at64(i + 3 * step).load();
        to.at64(i).store(a);
        to.at64(i + step).store(b);
        to.at64(i + 2 * step).store(c);
        to.at64(i + 3 * step).store(d);
        i += 4 * step;
    }
    while i < count {
        to.at64(i).store(from.at64(i).load());
        i += step;
    }
}

/// Byte by byte, one in flight a lane: for the ends, and where nothing better is possible.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
fn copy_few(to: Global<u8>, from: Global<u8>, count: u64, lane: u32, lanes: u32) {
    let mut i = lane as u64;
    while i < count {
        to.at64(i).store(from.at64(i).load());
        i += lanes as u64;
    }
}

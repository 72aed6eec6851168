//! LL packets: every 8-byte word carries 4 bytes of data and the flag of the call they belong to, so
//! that data and its arrival are one access and need no fence.
//!
//! LL16 is two such words moved by one instruction. Each half is whole by itself and has a flag of
//! its own, so both kinds share one layout and one scratch. The upper half of a word is the flag.

use core::marker::PhantomData;

use crate::atomic::{Relaxed, Sys};
use crate::ptr::Global;
use crate::wait::{DeviceResult, Guard, Polled, WaitKind, Wanted, wait_until};

#[inline(always)]
const fn word(data: u32, flag: u32) -> u64 {
    (flag as u64) << 32 | data as u64
}

#[inline(always)]
const fn flag_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// A kind of packet.
pub trait Packet: Copy {
    /// The data that one packet carries.
    type Payload: Copy + Default;
    /// A packet as loaded.
    type Raw: Copy + Default;
    /// 8-byte words a packet; also 4-byte words of data it carries.
    const WORDS: u32;

    /// Sends `payload` into the slot at `at`.
    fn put(at: Global<u64>, payload: Self::Payload, flag: u32);
    /// Looks at the slot once.
    fn peek(at: Global<u64>) -> Self::Raw;
    /// Whether what was loaded belongs to the call.
    fn ready(raw: Self::Raw, flag: u32) -> bool;
    /// What it carries.
    fn payload(raw: Self::Raw) -> Self::Payload;
    /// The first word that is not of this call, and what it held.
    fn missing(at: Global<u64>, raw: Self::Raw, flag: u32) -> (Global<u64>, u64);

    /// Polls the slot until it holds this call's packet, beginning with what `peek` gave: ask all
    /// peers first, then wait for each.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn finish(
        guard: &Guard,
        at: Global<u64>,
        raw: Self::Raw,
        flag: u32,
        peer: u32,
    ) -> DeviceResult<Self::Payload> {
        let wanted = Wanted { expected: word(0, flag), kind: WaitKind::Packet, peer };
        let slot = Slot::<Self> { at, flag, _packet: PhantomData };
        Ok(Self::payload(wait_until(guard, wanted, &slot, raw)?))
    }

    /// Waits for this call's packet in the slot.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn take(guard: &Guard, at: Global<u64>, flag: u32, peer: u32) -> DeviceResult<Self::Payload> {
        Self::finish(guard, at, Self::peek(at), flag, peer)
    }
}

/// A slot that has to get a packet of this flag.
struct Slot<P> {
    at: Global<u64>,
    flag: u32,
    _packet: PhantomData<P>,
}

impl<P: Packet> Polled for Slot<P> {
    type Seen = P::Raw;

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn peek(&self) -> P::Raw {
        P::peek(self.at)
    }

    #[inline(always)]
    fn ready(&self, seen: P::Raw) -> bool {
        P::ready(seen, self.flag)
    }

    #[inline(always)]
    fn word(&self, seen: P::Raw) -> (Global<u64>, u64) {
        P::missing(self.at, seen, self.flag)
    }
}

/// 4 bytes of data and a flag in 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ll8;

/// 8 bytes of data and two flags in 16 bytes; slots are multiples of 16.
#[derive(Clone, Copy, Debug)]
pub struct Ll16;

impl Packet for Ll8 {
    type Payload = u32;
    type Raw = u64;
    const WORDS: u32 = 1;

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn put(at: Global<u64>, payload: u32, flag: u32) {
        at.store_atomic(Relaxed, Sys, word(payload, flag));
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn peek(at: Global<u64>) -> u64 {
        at.load_atomic(Relaxed, Sys)
    }

    #[inline(always)]
    fn ready(raw: u64, flag: u32) -> bool {
        flag_of(raw) == flag
    }

    #[inline(always)]
    fn payload(raw: u64) -> u32 {
        raw as u32
    }

    #[inline(always)]
    fn missing(at: Global<u64>, raw: u64, _flag: u32) -> (Global<u64>, u64) {
        (at, raw)
    }
}

impl Packet for Ll16 {
    type Payload = (u32, u32);
    type Raw = (u64, u64);
    const WORDS: u32 = 2;

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn put(at: Global<u64>, payload: (u32, u32), flag: u32) {
        at.store_pair(word(payload.0, flag), word(payload.1, flag));
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn peek(at: Global<u64>) -> (u64, u64) {
        at.load_pair()
    }

    #[inline(always)]
    fn ready(raw: (u64, u64), flag: u32) -> bool {
        (flag_of(raw.0) == flag) & (flag_of(raw.1) == flag)
    }

    #[inline(always)]
    fn payload(raw: (u64, u64)) -> (u32, u32) {
        (raw.0 as u32, raw.1 as u32)
    }

    #[inline(always)]
    fn missing(at: Global<u64>, raw: (u64, u64), flag: u32) -> (Global<u64>, u64) {
        if flag_of(raw.0) == flag { (at.at(1), raw.1) } else { (at, raw.0) }
    }
}

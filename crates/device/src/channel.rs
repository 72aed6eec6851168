//! A channel between two ranks over memory that each can reach: NVLink, PCIe peer access, or shared
//! memory on the CPU device.

use crate::arch::Plain;
use crate::copy::copy_bytes;
use crate::packet::Packet;
use crate::ptr::Global;
use crate::semaphore::Semaphore;
use crate::wait::{DeviceResult, Guard};

/// One side of a memory channel, filled by the host and passed by value in kernel arguments.
///
/// Offsets are bytes. Calls with `lane` and `lanes` are made by all these lanes, which share the work
/// out and do not wait for each other; put a block barrier between a put and the signal that
/// announces it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryChannel {
    /// The signals of this channel.
    pub semaphore: Semaphore,
    /// The peer's memory, mapped here.
    pub remote: Global<u8>,
    /// This rank's memory, which puts read and gets fill.
    pub local: Global<u8>,
    /// This rank's packet memory, into which the peer's packets go; 0 where there is none.
    pub inbox: Global<u64>,
    /// The peer's packet memory.
    pub outbox: Global<u64>,
}

impl MemoryChannel {
    /// Copies `bytes` bytes from this rank's memory to the peer's. Any alignment and length.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn put(&self, to: u64, from: u64, bytes: u64, lane: u32, lanes: u32) {
        copy_bytes(self.remote.at64(to), self.local.at64(from), bytes, lane, lanes);
    }

    /// Copies `bytes` bytes from the peer's memory to this rank's. Any alignment and length.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn get(&self, to: u64, from: u64, bytes: u64, lane: u32, lanes: u32) {
        copy_bytes(self.local.at64(to), self.remote.at64(from), bytes, lane, lanes);
    }

    /// Sends `packets` packets of this rank's memory at byte `from` to the peer's packet memory,
    /// beginning at its 8-byte word `to`. `from` is a multiple of 4.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn put_packets<P: Packet<Payload: Payload>>(
        &self,
        to: u64,
        from: u64,
        packets: u32,
        flag: u32,
        lane: u32,
        lanes: u32,
    ) {
        let source = self.local.at64(from).cast::<u32>();
        let outbox = self.outbox.at64(to);
        let mut i = lane;
        while i < packets {
            P::put(outbox.at(i * P::WORDS), Payload::load(source.at(i * P::WORDS)), flag);
            i += lanes;
        }
    }

    /// Takes `packets` packets of the peer from this rank's packet memory, beginning at its 8-byte
    /// word `from`, into this rank's memory at byte `to`, a multiple of 4.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    #[allow(clippy::too_many_arguments)]
    pub fn take_packets<P: Packet<Payload: Payload>>(
        &self,
        guard: &Guard,
        to: u64,
        from: u64,
        packets: u32,
        flag: u32,
        lane: u32,
        lanes: u32,
    ) -> DeviceResult {
        let target = self.local.at64(to).cast::<u32>();
        let inbox = self.inbox.at64(from);
        let mut i = lane;
        while i < packets {
            let at = inbox.at(i * P::WORDS);
            let payload = P::take(guard, at, flag, self.semaphore.peer as u32)?;
            payload.store(target.at(i * P::WORDS));
            i += lanes;
        }
        Ok(())
    }

    /// Element `index` of the peer's memory seen as an array of T.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn read<T: Plain>(&self, index: u64) -> T {
        self.remote.cast::<T>().at64(index).load()
    }

    /// Sets element `index` of the peer's memory seen as an array of T.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn write<T: Plain>(&self, index: u64, value: T) {
        self.remote.cast::<T>().at64(index).store(value);
    }

    /// Signals the peer; see [`Semaphore::signal`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn signal(&self) {
        self.semaphore.signal();
    }

    /// Signals the peer, ordering nothing; see [`Semaphore::signal_relaxed`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn signal_relaxed(&self) {
        self.semaphore.signal_relaxed();
    }

    /// Waits for the peer's next signal; see [`Semaphore::wait`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn wait(&self, guard: &Guard) -> DeviceResult {
        self.semaphore.wait(guard)
    }

    /// Waits for the peer's next signal, ordering nothing; see [`Semaphore::wait_relaxed`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn wait_relaxed(&self, guard: &Guard) -> DeviceResult {
        self.semaphore.wait_relaxed(guard)
    }

    /// Whether the peer's next signal has come; see [`Semaphore::poll`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn poll(&self) -> bool {
        self.semaphore.poll()
    }
}

/// What a packet carries, moved to and from memory by 4-byte words.
pub trait Payload: Copy {
    /// From memory, 4-byte aligned.
    fn load(at: Global<u32>) -> Self;
    /// To memory, 4-byte aligned.
    fn store(self, at: Global<u32>);
}

impl Payload for u32 {
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn load(at: Global<u32>) -> Self {
        at.load()
    }
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn store(self, at: Global<u32>) {
        at.store(self);
    }
}

impl Payload for (u32, u32) {
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn load(at: Global<u32>) -> Self {
        (at.load(), at.at(1).load())
    }
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn store(self, at: Global<u32>) {
        at.store(self.0);
        at.at(1).store(self.1);
    }
}

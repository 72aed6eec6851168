//! Typed pointers into device global memory.

use crate::arch::{Atom, Plain};
use crate::atomic::{LoadOrder, Order, Scope, StoreOrder};

/// Sixteen bytes, moved by one instruction where the address is a multiple of 16.
#[repr(C, align(16))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Word16 {
    /// Bytes 0 to 3.
    pub x: u32,
    /// Bytes 4 to 7.
    pub y: u32,
    /// Bytes 8 to 11.
    pub z: u32,
    /// Bytes 12 to 15.
    pub w: u32,
}

/// A pointer into device global memory, and the only way to it.
///
/// Who makes one promises that the kernel may do with the memory what it does with it; the methods
/// are safe to call on that promise, as a launch of a kernel is unsafe as a whole.
#[repr(transparent)]
pub struct Global<T>(*mut T);

impl<T> Clone for Global<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Global<T> {}
impl<T> PartialEq for Global<T> {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for Global<T> {}
impl<T> core::fmt::Debug for Global<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:p}", self.0)
    }
}
// SAFETY: an address; what it points to is reached only from device code.
unsafe impl<T> Send for Global<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Global<T> {}

impl<T> Global<T> {
    /// From an address in device memory; 0 is the null pointer.
    #[inline(always)]
    pub const fn from_address(address: u64) -> Self {
        Self(address as usize as *mut T)
    }

    /// The null pointer, for fields that a kernel does not use.
    #[inline(always)]
    pub const fn null() -> Self {
        Self(core::ptr::null_mut())
    }

    /// Whether this is the null pointer.
    #[inline(always)]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address.
    #[inline(always)]
    pub fn address(self) -> u64 {
        self.0 as usize as u64
    }

    /// The raw pointer.
    #[inline(always)]
    pub fn raw(self) -> *mut T {
        self.0
    }

    /// The element `index` further on: one multiply-add on a GPU.
    #[inline(always)]
    pub fn at(self, index: u32) -> Self {
        Self(self.0.wrapping_add(index as usize))
    }

    /// The element `index` further on, past 4 Gi elements.
    #[inline(always)]
    pub fn at64(self, index: u64) -> Self {
        Self(self.0.wrapping_add(index as usize))
    }

    /// The same address as another type.
    #[inline(always)]
    pub fn cast<U>(self) -> Global<U> {
        Global(self.0 as *mut U)
    }
}

impl<T: Plain> Global<T> {
    /// A plain load: may be combined, moved and cached; ordered by barriers and acquires only.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn load(self) -> T {
        // SAFETY: the launch's promise (see the type).
        unsafe { T::load(self.0) }
    }

    /// A plain store: visible to others after a barrier or a release.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn store(self, value: T) {
        // SAFETY: the launch's promise (see the type).
        unsafe { T::store(self.0, value) }
    }
}

impl<T> Global<Global<T>> {
    /// Loads a pointer from a table.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn load_ptr(self) -> Global<T> {
        Global::from_address(self.cast::<u64>().load())
    }
}

impl<T: Atom> Global<T> {
    /// An atomic load.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn load_atomic<O: LoadOrder, S: Scope>(self, _: O, _: S) -> T {
        // SAFETY: the launch's promise (see the type).
        unsafe { T::atomic_load::<O, S>(self.0) }
    }

    /// An atomic store.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn store_atomic<O: StoreOrder, S: Scope>(self, _: O, _: S, value: T) {
        // SAFETY: the launch's promise (see the type).
        unsafe { T::atomic_store::<O, S>(self.0, value) }
    }

    /// Adds and gives the value before.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn fetch_add<O: Order, S: Scope>(self, _: O, _: S, value: T) -> T {
        // SAFETY: the launch's promise (see the type).
        unsafe { T::atomic_add::<O, S>(self.0, value) }
    }

    /// Adds and gives nothing back: one message to a remote GPU, not a round trip.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn reduce_add<O: StoreOrder, S: Scope>(self, _: O, _: S, value: T) {
        // SAFETY: the launch's promise (see the type).
        unsafe { T::reduce_add::<O, S>(self.0, value) }
    }

    /// Stores `new` if the value is `expected`; gives the value before.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn compare_exchange<O: Order, S: Scope>(self, _: O, _: S, expected: T, new: T) -> T {
        // SAFETY: the launch's promise (see the type).
        unsafe { T::atomic_compare_exchange::<O, S>(self.0, expected, new) }
    }
}

impl Global<u64> {
    /// Two 8-byte words by one 16-byte access, each of them whole (relaxed, system scope). The
    /// address is a multiple of 16.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn load_pair(self) -> (u64, u64) {
        // SAFETY: the launch's promise (see the type).
        unsafe { crate::arch::load_pair(self.0) }
    }

    /// Two 8-byte words by one 16-byte access, each of them whole (relaxed, system scope). The
    /// address is a multiple of 16.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn store_pair(self, first: u64, second: u64) {
        // SAFETY: the launch's promise (see the type).
        unsafe { crate::arch::store_pair(self.0, first, second) }
    }
}

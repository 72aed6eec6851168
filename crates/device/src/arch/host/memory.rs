//! Accesses to device memory: straight to it, or while [`WATCHED`](super::WATCHED) through the engine of
//! the lane.

use core::panic::Location;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Access, Bits, Op, watcher};
use crate::atomic::{Order, OrderKind, Relaxed, Scope, ScopeKind, Sys};
use crate::ptr::Word16;

#[inline]
#[track_caller]
pub(super) fn plain(address: usize, size: usize, op: Op) -> Access {
    let (order, scope) = (OrderKind::Relaxed, ScopeKind::Cta);
    Access { address, size: size as u32, op, order, scope, from: Location::caller() }
}

#[inline]
#[track_caller]
fn atomic<O: Order, S: Scope>(address: usize, size: usize, op: Op) -> Access {
    let (order, scope) = (O::KIND, S::KIND);
    Access { address, size: size as u32, op, order, scope, from: Location::caller() }
}

/// Types that plain accesses move.
pub trait Plain: Copy {
    /// The value as the bits of an access.
    fn to_bits(self) -> Bits;
    /// From the bits of an access.
    fn from_bits(bits: Bits) -> Self;

    /// # Safety
    /// The pointer is device memory, aligned to the type, that holds a value.
    #[inline]
    #[track_caller]
    unsafe fn load(p: *const Self) -> Self {
        if let Some(engine) = watcher() {
            let bits = engine.load(plain(p as usize, size_of::<Self>(), Op::Load));
            return Self::from_bits(bits);
        }
        // SAFETY: the caller's promise. Volatile: another thread may write meanwhile, as on a GPU.
        unsafe { p.read_volatile() }
    }

    /// # Safety
    /// The pointer is device memory, aligned to the type.
    #[inline]
    #[track_caller]
    unsafe fn store(p: *mut Self, value: Self) {
        if let Some(engine) = watcher() {
            let access = plain(p as usize, size_of::<Self>(), Op::Store);
            return engine.store(access, value.to_bits());
        }
        // SAFETY: the caller's promise.
        unsafe { p.write_volatile(value) }
    }
}

macro_rules! plain {
    ($($type:ty: $to:expr, $from:expr;)*) => { $(
        impl Plain for $type {
            #[inline]
            fn to_bits(self) -> Bits {
                let to: fn($type) -> Bits = $to;
                to(self)
            }
            #[inline]
            fn from_bits(bits: Bits) -> Self {
                let from: fn(Bits) -> $type = $from;
                from(bits)
            }
        }
    )* };
}
plain! {
    u8: |v| [v.into(), 0], |b| b[0] as u8;
    u16: |v| [v.into(), 0], |b| b[0] as u16;
    u32: |v| [v.into(), 0], |b| b[0] as u32;
    u64: |v| [v, 0], |b| b[0];
    f32: |v| [v.to_bits().into(), 0], |b| f32::from_bits(b[0] as u32);
    Word16: |v| [v.x as u64 | (v.y as u64) << 32, v.z as u64 | (v.w as u64) << 32],
        |b| Word16 { x: b[0] as u32, y: (b[0] >> 32) as u32, z: b[1] as u32, w: (b[1] >> 32) as u32 };
}

fn order(kind: OrderKind) -> Ordering {
    match kind {
        OrderKind::AcqRel => Ordering::AcqRel,
        OrderKind::Acquire => Ordering::Acquire,
        OrderKind::Relaxed => Ordering::Relaxed,
        OrderKind::Release => Ordering::Release,
    }
}

/// Types that atomic accesses move.
///
/// # Safety
/// All methods: the pointer is device memory, aligned to the type.
#[allow(clippy::missing_safety_doc)]
pub trait Atom: Plain {
    /// Atomic load.
    unsafe fn atomic_load<O: Order, S: Scope>(p: *const Self) -> Self;
    /// Atomic store.
    unsafe fn atomic_store<O: Order, S: Scope>(p: *mut Self, value: Self);
    /// Adds; gives the value before.
    unsafe fn atomic_add<O: Order, S: Scope>(p: *mut Self, value: Self) -> Self;
    /// Adds; gives nothing back.
    unsafe fn reduce_add<O: Order, S: Scope>(p: *mut Self, value: Self);
    /// Stores `new` if the value is `expected`; gives the value before.
    unsafe fn atomic_compare_exchange<O: Order, S: Scope>(
        p: *mut Self,
        expected: Self,
        new: Self,
    ) -> Self;
}

macro_rules! atom {
    ($type:ty, $atomic:ty) => {
        impl Atom for $type {
            #[inline]
            #[track_caller]
            unsafe fn atomic_load<O: Order, S: Scope>(p: *const Self) -> Self {
                if let Some(engine) = watcher() {
                    let access = atomic::<O, S>(p as usize, size_of::<Self>(), Op::AtomicLoad);
                    return engine.load(access)[0] as $type;
                }
                // SAFETY: the caller's promise.
                unsafe { <$atomic>::from_ptr(p.cast_mut()) }.load(order(O::KIND))
            }

            #[inline]
            #[track_caller]
            unsafe fn atomic_store<O: Order, S: Scope>(p: *mut Self, value: Self) {
                if let Some(engine) = watcher() {
                    let access = atomic::<O, S>(p as usize, size_of::<Self>(), Op::AtomicStore);
                    return engine.store(access, [value.into(), 0]);
                }
                // SAFETY: the caller's promise.
                unsafe { <$atomic>::from_ptr(p) }.store(value, order(O::KIND));
            }

            #[inline]
            #[track_caller]
            unsafe fn atomic_add<O: Order, S: Scope>(p: *mut Self, value: Self) -> Self {
                if let Some(engine) = watcher() {
                    let access = atomic::<O, S>(p as usize, size_of::<Self>(), Op::AtomicRmw);
                    let change = |held: u64| Some((held as $type).wrapping_add(value).into());
                    return engine.modify(access, &change) as $type;
                }
                // SAFETY: the caller's promise.
                unsafe { <$atomic>::from_ptr(p) }.fetch_add(value, order(O::KIND))
            }

            #[inline]
            #[track_caller]
            unsafe fn reduce_add<O: Order, S: Scope>(p: *mut Self, value: Self) {
                // SAFETY: the caller's promise.
                unsafe { Self::atomic_add::<O, S>(p, value) };
            }

            #[inline]
            #[track_caller]
            unsafe fn atomic_compare_exchange<O: Order, S: Scope>(
                p: *mut Self,
                expected: Self,
                new: Self,
            ) -> Self {
                if let Some(engine) = watcher() {
                    let access = atomic::<O, S>(p as usize, size_of::<Self>(), Op::AtomicRmw);
                    let change = |held: u64| (held as $type == expected).then_some(new.into());
                    return engine.modify(access, &change) as $type;
                }
                let failure = match O::KIND {
                    OrderKind::AcqRel | OrderKind::Acquire => Ordering::Acquire,
                    OrderKind::Relaxed | OrderKind::Release => Ordering::Relaxed,
                };
                // SAFETY: the caller's promise.
                let cell = unsafe { <$atomic>::from_ptr(p) };
                match cell.compare_exchange(expected, new, order(O::KIND), failure) {
                    Ok(before) | Err(before) => before,
                }
            }
        }
    };
}
atom!(u32, AtomicU32);
atom!(u64, AtomicU64);

/// Two 8-byte words, each of them whole (relaxed, system scope).
///
/// # Safety
/// The pointer is device memory, a multiple of 16.
#[inline]
#[track_caller]
pub unsafe fn load_pair(p: *const u64) -> (u64, u64) {
    // SAFETY: the caller's promise.
    unsafe {
        (u64::atomic_load::<Relaxed, Sys>(p), u64::atomic_load::<Relaxed, Sys>(p.wrapping_add(1)))
    }
}

/// Two 8-byte words, each of them whole (relaxed, system scope).
///
/// # Safety
/// The pointer is device memory, a multiple of 16.
#[inline]
#[track_caller]
pub unsafe fn store_pair(p: *mut u64, first: u64, second: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        u64::atomic_store::<Relaxed, Sys>(p, first);
        u64::atomic_store::<Relaxed, Sys>(p.wrapping_add(1), second);
    }
}

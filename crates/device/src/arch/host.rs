//! The CPU device's side of the contract.
//!
//! A GPU thread ("lane") is a fiber of the simulator; while it runs, its [`Engine`] is installed in a
//! thread-local. Without an engine, device code runs as a single lane of a 1 x 1 grid, so that it has
//! plain unit tests.

use core::cell::{Cell, UnsafeCell};
use core::panic::Location;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::atomic::{Order, OrderKind, Relaxed, Scope, ScopeKind, Sys};
use crate::ptr::Word16;

/// Where a lane is in its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coords {
    /// Index in the block.
    pub thread: u32,
    /// Index of the block.
    pub block: u32,
    /// Lanes a block.
    pub block_dim: u32,
    /// Blocks of the grid.
    pub grid_dim: u32,
}

/// The kind of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Atomic load.
    AtomicLoad,
    /// Atomic read-modify-write.
    AtomicRmw,
    /// Atomic store.
    AtomicStore,
    /// Plain load.
    Load,
    /// Plain store.
    Store,
}

/// One access to device memory, as told to the engine when [`WATCHED`] is set.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// First byte.
    pub address: usize,
    /// Bytes.
    pub size: u32,
    /// What it does.
    pub op: Op,
    /// Its order; relaxed for plain accesses.
    pub order: OrderKind,
    /// Its scope; block for plain accesses.
    pub scope: ScopeKind,
    /// Source line.
    pub from: &'static Location<'static>,
}

/// One fruitless poll: the lane may sleep until the word at `at` no longer holds `seen`, or until
/// the word at `abort` is not 0, or for a while.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    /// The polled word.
    pub at: *const u64,
    /// What it held.
    pub seen: u64,
    /// The abort word.
    pub abort: *const u32,
    /// What is waited for, for a deadlock report.
    pub what: &'static str,
    /// Source line.
    pub from: &'static Location<'static>,
}

/// What the simulator does for the lane that runs.
pub trait Engine {
    /// Where the lane is.
    fn coords(&self) -> Coords;
    /// Waits for all lanes of the block that have not exited.
    fn block_sync(&self) {
        self.block_any(false);
    }
    /// Waits for all lanes of the block that have not exited; whether the predicate holds on any.
    fn block_any(&self, predicate: bool) -> bool;
    /// Exchanges `value` among the lanes of `mask` in this warp: gives the value of lane
    /// `lane ^ lane_mask`. All lanes of the mask meet here.
    fn warp_exchange(&self, mask: u32, value: u32, lane_mask: u32) -> u32;
    /// Bit i is lane i's predicate; all lanes of the mask meet here.
    fn warp_ballot(&self, mask: u32, predicate: bool) -> u32;
    /// Suspends the lane after a fruitless poll; true asks it to look at the abort word and the
    /// clock before it polls again.
    fn spin(&self, spin: Spin) -> bool;
    /// Base of the block's shared memory.
    fn shared(&self) -> *mut u8;
    /// Told of each access to device memory, before a store and after a load, while [`WATCHED`].
    fn access(&self, access: Access);
}

/// Whether engines are told of accesses. Off in fast mode, at no cost but one branch.
pub static WATCHED: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    static CURRENT: Cell<Option<*const dyn Engine>> = const { Cell::new(None) };
    static ALONE: UnsafeCell<[u64; 6144]> = const { UnsafeCell::new([0; 6144]) };
}

/// Installs the engine of the lane that runs next on this thread; gives the one before.
///
/// # Safety
/// The engine outlives its being installed, and calls on it come from this thread only.
pub unsafe fn set_engine(engine: Option<*const dyn Engine>) -> Option<*const dyn Engine> {
    CURRENT.with(|c| c.replace(engine))
}

#[inline]
fn engine() -> Option<&'static dyn Engine> {
    // SAFETY: `set_engine`'s promise.
    CURRENT.with(|c| c.get().map(|e| unsafe { &*e }))
}

const ALONE_COORDS: Coords = Coords { thread: 0, block: 0, block_dim: 1, grid_dim: 1 };

#[inline]
fn coords() -> Coords {
    engine().map_or(ALONE_COORDS, |e| e.coords())
}

#[inline]
#[track_caller]
fn note(address: usize, size: usize, op: Op, order: OrderKind, scope: ScopeKind) {
    if WATCHED.load(Ordering::Relaxed)
        && let Some(engine) = engine()
    {
        let from = Location::caller();
        engine.access(Access { address, size: size as u32, op, order, scope, from });
    }
}

/// Index of the lane in its block.
#[inline]
pub fn thread_idx() -> u32 {
    coords().thread
}

/// Index of the block in its grid.
#[inline]
pub fn block_idx() -> u32 {
    coords().block
}

/// Lanes a block.
#[inline]
pub fn block_dim() -> u32 {
    coords().block_dim
}

/// Blocks of the grid.
#[inline]
pub fn grid_dim() -> u32 {
    coords().grid_dim
}

/// Index of the lane in its warp of 32.
#[inline]
pub fn lane() -> u32 {
    thread_idx() & 31
}

/// Waits for all lanes of the block that have not exited; orders their memory accesses.
#[inline]
pub fn block_sync() {
    if let Some(engine) = engine() {
        engine.block_sync();
    }
}

/// As [`block_sync`], and gives every lane whether the predicate holds on any lane.
#[inline]
pub fn block_any(predicate: bool) -> bool {
    engine().map_or(predicate, |e| e.block_any(predicate))
}

/// Waits for the lanes of `mask` in this warp; orders their memory accesses.
#[inline]
pub fn warp_sync(mask: u32) {
    if let Some(engine) = engine() {
        engine.warp_exchange(mask, 0, 0);
    }
}

/// The value of lane `lane ^ lane_mask`; every lane of `mask` takes part.
#[inline]
pub fn shuffle_xor(mask: u32, value: u32, lane_mask: u32) -> u32 {
    engine().map_or(value, |e| e.warp_exchange(mask, value, lane_mask))
}

/// Bit i is lane i's predicate; every lane of `mask` takes part.
#[inline]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    engine().map_or(predicate as u32, |e| e.warp_ballot(mask, predicate))
}

/// Nanoseconds of a clock that all lanes share.
#[inline]
pub fn global_timer_ns() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    1 + START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

/// Ends the program: a broken invariant.
pub fn trap() -> ! {
    panic!("device trap")
}

/// A value that is worked out before what follows, however late it is used.
#[inline]
pub fn settle(value: u64) -> u64 {
    value
}

/// Whether [`spin`] returns only when the word has changed or a look is due.
pub const SPIN_SUSPENDS: bool = true;

/// Polls of a wait for one call of [`spin`].
#[inline]
pub const fn polls_a_spin() -> u32 {
    1
}

/// Said first in a loop: its body is not written out several times.
#[inline]
pub fn keep_rolled() {}

/// A count of nanoseconds, from no particular moment on, that wraps; of cycles on a GPU.
#[inline]
pub fn cycles() -> u32 {
    global_timer_ns() as u32
}

/// Does nothing for some cycles of a GPU; here no time at all.
#[inline]
pub fn pause(_cycles: u32) {}

/// One fruitless poll; true asks the wait to look at the abort word and the clock now.
#[inline]
#[track_caller]
pub fn spin(at: *const u64, seen: u64, abort: *const u32, what: &'static str) -> bool {
    match engine() {
        Some(engine) => engine.spin(Spin { at, seen, abort, what, from: Location::caller() }),
        None => {
            std::thread::yield_now();
            true
        }
    }
}

/// Orders this lane's accesses before and after it, as `fence.acq_rel` of the scope does.
#[inline]
pub fn fence<S: Scope>() {
    core::sync::atomic::fence(Ordering::AcqRel);
}

/// Base of the block's shared memory, as an offset that the shared accesses take.
#[inline]
pub fn shared_base() -> u32 {
    0
}

fn shared(at: u32) -> *mut u8 {
    let base = engine().map_or_else(|| ALONE.with(|a| a.get().cast()), |e| e.shared());
    base.wrapping_add(at as usize)
}

/// A 4-byte word of the block's shared memory.
#[inline]
pub fn shared_load(at: u32) -> u32 {
    // SAFETY: the launch's promise: `at` lies in the shared memory it asked for.
    unsafe { shared(at).cast::<u32>().read() }
}

/// A 4-byte word of the block's shared memory.
#[inline]
pub fn shared_store(at: u32, value: u32) {
    // SAFETY: as in `shared_load`.
    unsafe { shared(at).cast::<u32>().write(value) }
}

/// Types that plain accesses move.
pub trait Plain: Copy {
    /// # Safety
    /// The pointer is device memory, aligned to the type, that holds a value.
    #[inline]
    #[track_caller]
    unsafe fn load(p: *const Self) -> Self {
        // SAFETY: the caller's promise. Volatile: another thread may write meanwhile, as on a GPU.
        let value = unsafe { p.read_volatile() };
        note(p as usize, size_of::<Self>(), Op::Load, OrderKind::Relaxed, ScopeKind::Cta);
        value
    }

    /// # Safety
    /// The pointer is device memory, aligned to the type.
    #[inline]
    #[track_caller]
    unsafe fn store(p: *mut Self, value: Self) {
        note(p as usize, size_of::<Self>(), Op::Store, OrderKind::Relaxed, ScopeKind::Cta);
        // SAFETY: the caller's promise.
        unsafe { p.write_volatile(value) }
    }
}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for f32 {}
impl Plain for u64 {}
impl Plain for Word16 {}

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
                // SAFETY: the caller's promise.
                let value = unsafe { <$atomic>::from_ptr(p.cast_mut()) }.load(order(O::KIND));
                note(p as usize, size_of::<Self>(), Op::AtomicLoad, O::KIND, S::KIND);
                value
            }

            #[inline]
            #[track_caller]
            unsafe fn atomic_store<O: Order, S: Scope>(p: *mut Self, value: Self) {
                note(p as usize, size_of::<Self>(), Op::AtomicStore, O::KIND, S::KIND);
                // SAFETY: the caller's promise.
                unsafe { <$atomic>::from_ptr(p) }.store(value, order(O::KIND));
            }

            #[inline]
            #[track_caller]
            unsafe fn atomic_add<O: Order, S: Scope>(p: *mut Self, value: Self) -> Self {
                note(p as usize, size_of::<Self>(), Op::AtomicRmw, O::KIND, S::KIND);
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
                note(p as usize, size_of::<Self>(), Op::AtomicRmw, O::KIND, S::KIND);
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

/// IEEE half precision to f32.
fn f16_to_f32(half: u16) -> f32 {
    let sign = ((half as u32) & 0x8000) << 16;
    let exponent = (half >> 10) & 0x1f;
    let mantissa = (half & 0x3ff) as u32;
    let bits = match exponent {
        0 => {
            return f32::from_bits(
                sign | (mantissa as f32 * f32::from_bits(0x3380_0000)).to_bits(),
            );
        }
        0x1f => 0x7f80_0000 | mantissa << 13,
        _ => ((exponent as u32) + 112) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | bits)
}

/// f32 to IEEE half precision, to nearest, ties to even; NaN becomes 0x7fff as on a GPU.
fn f32_to_f16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Adding 0.5 puts the last bit of a subnormal half at the last bit of the sum, which rounds.
        let shifted = f32::from_bits(magnitude) + 0.5;
        return sign | (shifted.to_bits() - 0x3f00_0000) as u16;
    }
    let odd = (magnitude >> 13) & 1;
    sign | ((magnitude - 0x3800_0000 + 0xfff + odd) >> 13) as u16
}

/// f32 to bfloat16, to nearest, ties to even; NaN becomes 0x7fff as on a GPU.
fn f32_to_bf16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

fn bf16_to_f32(value: u16) -> f32 {
    f32::from_bits((value as u32) << 16)
}

/// The smaller or larger of two f32: -0 is less than +0, a NaN loses, two give the GPU's NaN.
fn pick_f32(a: f32, b: f32, larger: bool) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f32::from_bits(0x7fff_ffff),
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if (a.total_cmp(&b) == core::cmp::Ordering::Less) == larger {
                b
            } else {
                a
            }
        }
    }
}

fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    f(a as u16, b as u16) as u32 | (f((a >> 16) as u16, (b >> 16) as u16) as u32) << 16
}

/// Adds two halves by two, rounding to nearest.
pub fn add_f16x2(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| f32_to_f16(f16_to_f32(a) + f16_to_f32(b)))
}

/// Adds two bfloat16 by two, rounding to nearest.
pub fn add_bf16x2(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b)))
}

/// The smaller, half by half; a NaN loses.
pub fn min_f16x2(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| f32_to_f16(pick_f32(f16_to_f32(a), f16_to_f32(b), false)))
}

/// The larger, half by half; a NaN loses.
pub fn max_f16x2(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| f32_to_f16(pick_f32(f16_to_f32(a), f16_to_f32(b), true)))
}

/// The smaller, half by half; a NaN loses.
pub fn min_bf16x2(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| f32_to_bf16(pick_f32(bf16_to_f32(a), bf16_to_f32(b), false)))
}

/// The larger, half by half; a NaN loses.
pub fn max_bf16x2(a: u32, b: u32) -> u32 {
    halves(a, b, |a, b| f32_to_bf16(pick_f32(bf16_to_f32(a), bf16_to_f32(b), true)))
}

/// Adds two f32, as bits. A NaN becomes the GPU's: a processor keeps one operand's bits, and which one
/// is the compiler's choice, so that ranks would differ.
pub fn add_f32(a: u32, b: u32) -> u32 {
    let sum = f32::from_bits(a) + f32::from_bits(b);
    if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() }
}

/// The smaller of two f32, as bits; a NaN loses.
pub fn min_f32(a: u32, b: u32) -> u32 {
    pick_f32(f32::from_bits(a), f32::from_bits(b), false).to_bits()
}

/// The larger of two f32, as bits; a NaN loses.
pub fn max_f32(a: u32, b: u32) -> u32 {
    pick_f32(f32::from_bits(a), f32::from_bits(b), true).to_bits()
}

/// Two halves as f32, the lower first.
pub fn unpack_f16x2(word: u32) -> (f32, f32) {
    (f16_to_f32(word as u16), f16_to_f32((word >> 16) as u16))
}

/// Two f32 rounded to halves, the first in the lower half.
pub fn pack_f16x2(low: f32, high: f32) -> u32 {
    f32_to_f16(low) as u32 | (f32_to_f16(high) as u32) << 16
}

/// Two bfloat16 as f32, the lower first.
pub fn unpack_bf16x2(word: u32) -> (f32, f32) {
    (bf16_to_f32(word as u16), bf16_to_f32((word >> 16) as u16))
}

/// Two f32 rounded to bfloat16, the first in the lower half.
pub fn pack_bf16x2(low: f32, high: f32) -> u32 {
    f32_to_bf16(low) as u32 | (f32_to_bf16(high) as u32) << 16
}

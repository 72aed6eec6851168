//! The GPU's side of the contract, as PTX.
//!
//! Rules of this file. Whatever involves other threads of the warp or block goes through `llvm.nvvm`
//! intrinsics, which the compiler knows to be convergent; inline assembly is duplicated and moved.
//! Inline assembly is for memory accesses, conversions and special registers. Plain loads are `pure,
//! readonly` (they may be combined, never over a barrier or an atomic); stores and atomics are not.
//! `core`'s atomics are not used: they lose order and scope on this target.

use core::arch::{asm, nvptx};

use crate::atomic::{Order, OrderKind, Scope, ScopeKind};
use crate::ptr::Word16;

#[allow(improper_ctypes)]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.all"]
    fn barrier_cta_sync_all(id: u32);
    #[link_name = "llvm.nvvm.barrier.cta.red.or.all"]
    fn barrier_cta_red_or_all(id: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_sync_bfly(mask: u32, value: u32, lane_mask: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot_sync(mask: u32, predicate: bool) -> u32;
}

/// Index of the lane in its block.
#[inline(always)]
pub fn thread_idx() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_thread_idx_x() as u32 }
}

/// Index of the block in its grid.
#[inline(always)]
pub fn block_idx() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_idx_x() as u32 }
}

/// Lanes a block.
#[inline(always)]
pub fn block_dim() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_dim_x() as u32 }
}

/// Blocks of the grid.
#[inline(always)]
pub fn grid_dim() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_grid_dim_x() as u32 }
}

/// Index of the lane in its warp of 32.
#[inline(always)]
pub fn lane() -> u32 {
    thread_idx() & 31
}

/// Waits for all lanes of the block that have not exited; orders their memory accesses.
#[inline(always)]
pub fn block_sync() {
    // SAFETY: the barrier that does not need the warp's lanes to arrive together.
    unsafe { barrier_cta_sync_all(0) }
}

/// As [`block_sync`], and gives every lane whether the predicate holds on any lane.
#[inline(always)]
pub fn block_any(predicate: bool) -> bool {
    // SAFETY: as in `block_sync`.
    unsafe { barrier_cta_red_or_all(0, predicate) }
}

/// Waits for the lanes of `mask` in this warp; orders their memory accesses.
#[inline(always)]
pub fn warp_sync(mask: u32) {
    // SAFETY: every lane of the mask calls it.
    unsafe { bar_warp_sync(mask) }
}

/// The value of lane `lane ^ lane_mask`; every lane of `mask` takes part.
#[inline(always)]
pub fn shuffle_xor(mask: u32, value: u32, lane_mask: u32) -> u32 {
    // SAFETY: every lane of the mask calls it.
    unsafe { shfl_sync_bfly(mask, value, lane_mask, 0x1f) }
}

/// Bit i is lane i's predicate; every lane of `mask` takes part.
#[inline(always)]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    // SAFETY: every lane of the mask calls it.
    unsafe { vote_ballot_sync(mask, predicate) }
}

/// Nanoseconds of a clock that all lanes share.
#[inline(always)]
pub fn global_timer_ns() -> u64 {
    let now: u64;
    // SAFETY: reads a special register.
    unsafe {
        asm!("mov.u64 {0}, %globaltimer;", out(reg64) now, options(nomem, nostack, preserves_flags));
    }
    now
}

/// Ends the kernel with an error: a broken invariant.
#[inline(always)]
pub fn trap() -> ! {
    // SAFETY: ends the kernel.
    unsafe { nvptx::trap() }
}

/// A value that is worked out before what follows, however late it is used.
#[inline(always)]
pub fn settle(value: u64) -> u64 {
    let settled;
    // SAFETY: a move. Not `pure`: a volatile statement stays where it is.
    unsafe {
        asm!("mov.b64 {0}, {1};", out(reg64) settled, in(reg64) value, options(nomem, nostack, preserves_flags));
    }
    settled
}

/// Whether [`spin`] returns only when the word has changed or a look is due.
pub const SPIN_SUSPENDS: bool = false;

/// Polls of a wait for one call of [`spin`]. Not a constant to the compiler, which would write their
/// loop out that many times.
#[inline(always)]
pub fn polls_a_spin() -> u32 {
    settle(64) as u32
}

/// Nobody is to be told here that a wait ends early.
#[inline(always)]
pub fn wait_ended_early() {}

/// Said first in a loop: its body is not written out several times.
#[inline(always)]
pub fn keep_rolled() {
    // SAFETY: a directive to the assembler.
    unsafe { asm!(".pragma \"nounroll\";", options(nomem, nostack, preserves_flags)) }
}

/// A count of cycles, from no particular moment on, that wraps.
#[inline(always)]
pub fn cycles() -> u32 {
    let now;
    // SAFETY: reads a special register.
    unsafe {
        asm!("mov.u32 {0}, %clock;", out(reg32) now, options(nostack, preserves_flags));
    }
    now
}

/// Does nothing for some cycles; 0 is no time at all.
#[inline(always)]
pub fn pause(cycles: u32) {
    if cycles != 0 {
        let since = self::cycles();
        while self::cycles().wrapping_sub(since) < cycles {}
    }
}

/// After some fruitless polls: a GPU only polls again.
#[inline(always)]
pub fn spin(_at: *const u64, _seen: u64, _abort: *const u32, _what: &'static str) -> bool {
    false
}

/// Orders this lane's accesses before and after it.
#[inline(always)]
pub fn fence<S: Scope>() {
    // SAFETY: a fence.
    unsafe {
        match S::KIND {
            ScopeKind::Cta => asm!("fence.acq_rel.cta;", options(nostack, preserves_flags)),
            ScopeKind::Gpu => asm!("fence.acq_rel.gpu;", options(nostack, preserves_flags)),
            ScopeKind::Sys => asm!("fence.acq_rel.sys;", options(nostack, preserves_flags)),
        }
    }
}

/// A word of the kernel's arguments, at an address in parameter space.
#[inline(always)]
pub fn load_param(address: u64) -> u64 {
    let value: u64;
    // SAFETY: parameters are constant; `Params` keeps the address inside them.
    unsafe {
        asm!(
            "ld.param.b64 {0}, [{1}];",
            out(reg64) value,
            in(reg64) address,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    value
}

core::arch::global_asm!(".extern .shared .align 16 .b8 MSCCLRS_SHARED[];");

/// Base of the block's shared memory, as large as the launch asked for.
#[inline(always)]
pub fn shared_base() -> u32 {
    let base;
    // SAFETY: gives an address.
    unsafe {
        asm!(
            "mov.u32 {0}, MSCCLRS_SHARED;",
            out(reg32) base,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    base
}

/// A 4-byte word of the block's shared memory.
#[inline(always)]
pub fn shared_load(at: u32) -> u32 {
    let value;
    // SAFETY: the launch's promise: `at` lies in the shared memory it asked for.
    unsafe {
        asm!(
            "ld.shared.u32 {0}, [{1}];",
            out(reg32) value,
            in(reg32) at,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    value
}

/// A 4-byte word of the block's shared memory.
#[inline(always)]
pub fn shared_store(at: u32, value: u32) {
    // SAFETY: as in `shared_load`.
    unsafe {
        asm!(
            "st.shared.u32 [{1}], {0};",
            in(reg32) value,
            in(reg32) at,
            options(nostack, preserves_flags)
        );
    }
}

/// Types that plain accesses move.
pub trait Plain: Copy {
    /// # Safety
    /// The pointer is device memory, aligned to the type, that holds a value.
    unsafe fn load(p: *const Self) -> Self;
    /// # Safety
    /// The pointer is device memory, aligned to the type.
    unsafe fn store(p: *mut Self, value: Self);
}

macro_rules! plain {
    ($type:ty, $class:ident, $suffix:literal) => {
        impl Plain for $type {
            #[inline(always)]
            unsafe fn load(p: *const Self) -> Self {
                let value;
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        concat!("ld.global.", $suffix, " {0}, [{1}];"),
                        out($class) value,
                        in(reg64) p,
                        options(pure, readonly, nostack, preserves_flags)
                    );
                }
                value
            }

            #[inline(always)]
            unsafe fn store(p: *mut Self, value: Self) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        concat!("st.global.", $suffix, " [{1}], {0};"),
                        in($class) value,
                        in(reg64) p,
                        options(nostack, preserves_flags)
                    );
                }
            }
        }
    };
}
plain!(u16, reg16, "u16");
plain!(u32, reg32, "u32");
plain!(f32, reg32, "f32");
plain!(u64, reg64, "u64");

impl Plain for u8 {
    #[inline(always)]
    unsafe fn load(p: *const Self) -> Self {
        let value: u32;
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ld.global.u8 {0}, [{1}];",
                out(reg32) value,
                in(reg64) p,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        value as u8
    }

    #[inline(always)]
    unsafe fn store(p: *mut Self, value: Self) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "st.global.u8 [{1}], {0};",
                in(reg32) value as u32,
                in(reg64) p,
                options(nostack, preserves_flags)
            );
        }
    }
}

impl Plain for Word16 {
    #[inline(always)]
    unsafe fn load(p: *const Self) -> Self {
        let (x, y, z, w);
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ld.global.v4.u32 {{{0},{1},{2},{3}}}, [{4}];",
                out(reg32) x,
                out(reg32) y,
                out(reg32) z,
                out(reg32) w,
                in(reg64) p,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        Word16 { x, y, z, w }
    }

    #[inline(always)]
    unsafe fn store(p: *mut Self, value: Self) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "st.global.v4.u32 [{4}], {{{0},{1},{2},{3}}};",
                in(reg32) value.x,
                in(reg32) value.y,
                in(reg32) value.z,
                in(reg32) value.w,
                in(reg64) p,
                options(nostack, preserves_flags)
            );
        }
    }
}

macro_rules! by_scope {
    ($scope:ty, $instruction:literal, $operation:literal, $rest:expr, $($operands:tt)*) => {
        match <$scope>::KIND {
            ScopeKind::Cta => asm!(concat!($instruction, ".cta.global.", $operation, $rest), $($operands)*),
            ScopeKind::Gpu => asm!(concat!($instruction, ".gpu.global.", $operation, $rest), $($operands)*),
            ScopeKind::Sys => asm!(concat!($instruction, ".sys.global.", $operation, $rest), $($operands)*),
        }
    };
}

/// Types that atomic accesses move.
///
/// # Safety
/// All methods: the pointer is device memory, aligned to the type.
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
    ($type:ty, $class:ident, $u:literal, $b:literal) => {
        impl Atom for $type {
            #[inline(always)]
            unsafe fn atomic_load<O: Order, S: Scope>(p: *const Self) -> Self {
                let value;
                // SAFETY: the caller's promise.
                unsafe {
                    match O::KIND {
                        OrderKind::Acquire | OrderKind::AcqRel => by_scope!(S, "ld.acquire", $u, " {0}, [{1}];",
                            out($class) value, in(reg64) p, options(nostack, preserves_flags)),
                        OrderKind::Relaxed | OrderKind::Release => by_scope!(S, "ld.relaxed", $u, " {0}, [{1}];",
                            out($class) value, in(reg64) p, options(nostack, preserves_flags)),
                    }
                }
                value
            }

            #[inline(always)]
            unsafe fn atomic_store<O: Order, S: Scope>(p: *mut Self, value: Self) {
                // SAFETY: the caller's promise.
                unsafe {
                    match O::KIND {
                        OrderKind::Release | OrderKind::AcqRel => by_scope!(S, "st.release", $u, " [{1}], {0};",
                            in($class) value, in(reg64) p, options(nostack, preserves_flags)),
                        OrderKind::Relaxed | OrderKind::Acquire => by_scope!(S, "st.relaxed", $u, " [{1}], {0};",
                            in($class) value, in(reg64) p, options(nostack, preserves_flags)),
                    }
                }
            }

            #[inline(always)]
            unsafe fn atomic_add<O: Order, S: Scope>(p: *mut Self, value: Self) -> Self {
                let before;
                // SAFETY: the caller's promise.
                unsafe {
                    match O::KIND {
                        OrderKind::AcqRel => by_scope!(S, "atom.acq_rel", "add.", concat!($u, " {0}, [{1}], {2};"),
                            out($class) before, in(reg64) p, in($class) value, options(nostack, preserves_flags)),
                        OrderKind::Acquire => by_scope!(S, "atom.acquire", "add.", concat!($u, " {0}, [{1}], {2};"),
                            out($class) before, in(reg64) p, in($class) value, options(nostack, preserves_flags)),
                        OrderKind::Relaxed => by_scope!(S, "atom.relaxed", "add.", concat!($u, " {0}, [{1}], {2};"),
                            out($class) before, in(reg64) p, in($class) value, options(nostack, preserves_flags)),
                        OrderKind::Release => by_scope!(S, "atom.release", "add.", concat!($u, " {0}, [{1}], {2};"),
                            out($class) before, in(reg64) p, in($class) value, options(nostack, preserves_flags)),
                    }
                }
                before
            }

            #[inline(always)]
            unsafe fn reduce_add<O: Order, S: Scope>(p: *mut Self, value: Self) {
                // SAFETY: the caller's promise.
                unsafe {
                    match O::KIND {
                        OrderKind::Release | OrderKind::AcqRel => by_scope!(S, "red.release", "add.", concat!($u, " [{0}], {1};"),
                            in(reg64) p, in($class) value, options(nostack, preserves_flags)),
                        OrderKind::Relaxed | OrderKind::Acquire => by_scope!(S, "red.relaxed", "add.", concat!($u, " [{0}], {1};"),
                            in(reg64) p, in($class) value, options(nostack, preserves_flags)),
                    }
                }
            }

            #[inline(always)]
            unsafe fn atomic_compare_exchange<O: Order, S: Scope>(
                p: *mut Self,
                expected: Self,
                new: Self,
            ) -> Self {
                let before;
                // SAFETY: the caller's promise.
                unsafe {
                    match O::KIND {
                        OrderKind::AcqRel => by_scope!(S, "atom.acq_rel", "cas.", concat!($b, " {0}, [{1}], {2}, {3};"),
                            out($class) before, in(reg64) p, in($class) expected, in($class) new, options(nostack, preserves_flags)),
                        OrderKind::Acquire => by_scope!(S, "atom.acquire", "cas.", concat!($b, " {0}, [{1}], {2}, {3};"),
                            out($class) before, in(reg64) p, in($class) expected, in($class) new, options(nostack, preserves_flags)),
                        OrderKind::Relaxed => by_scope!(S, "atom.relaxed", "cas.", concat!($b, " {0}, [{1}], {2}, {3};"),
                            out($class) before, in(reg64) p, in($class) expected, in($class) new, options(nostack, preserves_flags)),
                        OrderKind::Release => by_scope!(S, "atom.release", "cas.", concat!($b, " {0}, [{1}], {2}, {3};"),
                            out($class) before, in(reg64) p, in($class) expected, in($class) new, options(nostack, preserves_flags)),
                    }
                }
                before
            }
        }
    };
}
atom!(u32, reg32, "u32", "b32");
atom!(u64, reg64, "u64", "b64");

/// Two 8-byte words by one 16-byte access, each of them whole (relaxed, system scope).
///
/// # Safety
/// The pointer is device memory, a multiple of 16.
#[inline(always)]
pub unsafe fn load_pair(p: *const u64) -> (u64, u64) {
    let (first, second);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.relaxed.sys.global.v2.u64 {{{0},{1}}}, [{2}];",
            out(reg64) first,
            out(reg64) second,
            in(reg64) p,
            options(nostack, preserves_flags)
        );
    }
    (first, second)
}

/// Two 8-byte words by one 16-byte access, each of them whole (relaxed, system scope).
///
/// # Safety
/// The pointer is device memory, a multiple of 16.
#[inline(always)]
pub unsafe fn store_pair(p: *mut u64, first: u64, second: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.relaxed.sys.global.v2.u64 [{2}], {{{0},{1}}};",
            in(reg64) first,
            in(reg64) second,
            in(reg64) p,
            options(nostack, preserves_flags)
        );
    }
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident: $instruction:literal;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(a: u32, b: u32) -> u32 {
            let result;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!(
                    concat!($instruction, " {0}, {1}, {2};"),
                    out(reg32) result,
                    in(reg32) a,
                    in(reg32) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            result
        }
    )* };
}
binary! {
    /// Adds two halves by two, rounding to nearest.
    add_f16x2: "add.rn.f16x2";
    /// The smaller, half by half; a NaN loses.
    min_f16x2: "min.f16x2";
    /// The larger, half by half; a NaN loses.
    max_f16x2: "max.f16x2";
    /// The smaller, half by half; a NaN loses.
    min_bf16x2: "min.bf16x2";
    /// The larger, half by half; a NaN loses.
    max_bf16x2: "max.bf16x2";
    /// The smaller of two f32, as bits; a NaN loses.
    min_f32: "min.f32";
    /// The larger of two f32, as bits; a NaN loses.
    max_f32: "max.f32";
}

/// Adds two f32, as bits.
#[inline(always)]
pub fn add_f32(a: u32, b: u32) -> u32 {
    (f32::from_bits(a) + f32::from_bits(b)).to_bits()
}

/// Adds two bfloat16 by two, rounding to nearest.
#[inline(always)]
pub fn add_bf16x2(a: u32, b: u32) -> u32 {
    let result;
    // SAFETY: arithmetic on registers.
    unsafe {
        #[cfg(target_feature = "sm_90")]
        asm!(
            "add.rn.bf16x2 {0}, {1}, {2};",
            out(reg32) result,
            in(reg32) a,
            in(reg32) b,
            options(pure, nomem, nostack, preserves_flags)
        );
        // sm_80 has no add: a * 1.0 + b rounds the same. 0x3f80 is 1.0.
        #[cfg(not(target_feature = "sm_90"))]
        asm!(
            "fma.rn.bf16x2 {0}, {1}, {2}, {3};",
            out(reg32) result,
            in(reg32) a,
            in(reg32) 0x3f80_3f80u32,
            in(reg32) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    result
}

/// Two halves as f32, the lower first.
#[inline(always)]
pub fn unpack_f16x2(word: u32) -> (f32, f32) {
    let (low, high);
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "{{.reg .b16 l, h; mov.b32 {{l, h}}, {2}; cvt.f32.f16 {0}, l; cvt.f32.f16 {1}, h;}}",
            out(reg32) low,
            out(reg32) high,
            in(reg32) word,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    (low, high)
}

/// Two f32 rounded to halves, the first in the lower half.
#[inline(always)]
pub fn pack_f16x2(low: f32, high: f32) -> u32 {
    let word;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rn.f16x2.f32 {0}, {2}, {1};",
            out(reg32) word,
            in(reg32) low,
            in(reg32) high,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    word
}

/// Two bfloat16 as f32, the lower first.
#[inline(always)]
pub fn unpack_bf16x2(word: u32) -> (f32, f32) {
    (f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000))
}

/// Two f32 rounded to bfloat16, the first in the lower half.
#[inline(always)]
pub fn pack_bf16x2(low: f32, high: f32) -> u32 {
    let word;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rn.bf16x2.f32 {0}, {2}, {1};",
            out(reg32) word,
            in(reg32) low,
            in(reg32) high,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    word
}

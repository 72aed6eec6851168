//! Reductions over 32-bit words: two 16-bit elements or one 32-bit element a word.
//!
//! Sums of 16-bit floats over more than two ranks are kept in f32 and rounded once, so that the
//! result does not lose a bit a rank; over two ranks the one rounding is the hardware's own add.
//! Ranks add in rank order, so every rank gets the same bits.

use crate::arch;
use crate::number::{DataType, ReduceOp};
use crate::ptr::Word16;

/// Markers of the element types.
pub mod element {
    macro_rules! markers {
        ($($(#[$doc:meta])* $name:ident),*) => { $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name;
        )* };
    }
    markers!(
        /// bfloat16.
        Bf16,
        /// IEEE half precision.
        F16,
        /// IEEE single precision.
        F32,
        /// Signed 32-bit integer.
        I32,
        /// Unsigned 32-bit integer.
        U32
    );
}
use element::{Bf16, F16, F32, I32, U32};

/// One type and operation, known when the kernel is compiled.
pub trait Reduction: Copy {
    /// A word while it is being summed.
    type Acc: Copy;
    /// The first rank's word.
    fn start(word: u32) -> Self::Acc;
    /// One rank more.
    fn fold(acc: Self::Acc, word: u32) -> Self::Acc;
    /// The result.
    fn finish(acc: Self::Acc) -> u32;
    /// Two ranks at once: the same as start, fold, finish.
    #[inline(always)]
    fn pair(a: u32, b: u32) -> u32 {
        Self::finish(Self::fold(Self::start(a), b))
    }
}

macro_rules! operation {
    ($($(#[$doc:meta])* $name:ident),*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<E>(core::marker::PhantomData<E>);
    )* };
}
operation!(
    /// Addition.
    Sum,
    /// The smaller element.
    Min,
    /// The larger element.
    Max
);

macro_rules! by_word {
    ($($reduction:ty: $word:expr;)*) => { $(
        impl Reduction for $reduction {
            type Acc = u32;
            #[inline(always)]
            fn start(word: u32) -> u32 {
                word
            }
            #[inline(always)]
            fn fold(acc: u32, word: u32) -> u32 {
                $word(acc, word)
            }
            #[inline(always)]
            fn finish(acc: u32) -> u32 {
                acc
            }
        }
    )* };
}

macro_rules! by_halves {
    ($($reduction:ty: $unpack:path, $pack:path, $pair:path;)*) => { $(
        impl Reduction for $reduction {
            type Acc = (f32, f32);
            #[inline(always)]
            fn start(word: u32) -> (f32, f32) {
                $unpack(word)
            }
            #[inline(always)]
            fn fold(acc: (f32, f32), word: u32) -> (f32, f32) {
                let (low, high) = $unpack(word);
                (acc.0 + low, acc.1 + high)
            }
            #[inline(always)]
            fn finish(acc: (f32, f32)) -> u32 {
                $pack(acc.0, acc.1)
            }
            #[inline(always)]
            fn pair(a: u32, b: u32) -> u32 {
                $pair(a, b)
            }
        }
    )* };
}

by_word! {
    Sum<F32>: arch::add_f32;
    Sum<I32>: u32::wrapping_add;
    Sum<U32>: u32::wrapping_add;
    Min<F32>: arch::min_f32;
    Min<I32>: |a, b| if (a as i32) < b as i32 { a } else { b };
    Min<U32>: |a, b| if a < b { a } else { b };
    Min<F16>: arch::min_f16x2;
    Min<Bf16>: arch::min_bf16x2;
    Max<F32>: arch::max_f32;
    Max<I32>: |a, b| if a as i32 > b as i32 { a } else { b };
    Max<U32>: |a, b| if a > b { a } else { b };
    Max<F16>: arch::max_f16x2;
    Max<Bf16>: arch::max_bf16x2;
}
by_halves! {
    Sum<F16>: arch::unpack_f16x2, arch::pack_f16x2, arch::add_f16x2;
    Sum<Bf16>: arch::unpack_bf16x2, arch::pack_bf16x2, arch::add_bf16x2;
}

/// Several words that travel together, reduced word by word.
pub trait Fold: Copy {
    /// The words while they are being summed.
    type Acc<R: Reduction>: Copy;
    /// The first rank's words.
    fn start<R: Reduction>(self) -> Self::Acc<R>;
    /// One rank more.
    fn fold<R: Reduction>(acc: Self::Acc<R>, words: Self) -> Self::Acc<R>;
    /// The result.
    fn finish<R: Reduction>(acc: Self::Acc<R>) -> Self;
    /// Two ranks at once.
    fn pair<R: Reduction>(self, other: Self) -> Self;
}

impl Fold for u32 {
    type Acc<R: Reduction> = R::Acc;
    #[inline(always)]
    fn start<R: Reduction>(self) -> R::Acc {
        R::start(self)
    }
    #[inline(always)]
    fn fold<R: Reduction>(acc: R::Acc, words: Self) -> R::Acc {
        R::fold(acc, words)
    }
    #[inline(always)]
    fn finish<R: Reduction>(acc: R::Acc) -> u32 {
        R::finish(acc)
    }
    #[inline(always)]
    fn pair<R: Reduction>(self, other: Self) -> Self {
        R::pair(self, other)
    }
}

impl Fold for (u32, u32) {
    type Acc<R: Reduction> = (R::Acc, R::Acc);
    #[inline(always)]
    fn start<R: Reduction>(self) -> Self::Acc<R> {
        (R::start(self.0), R::start(self.1))
    }
    #[inline(always)]
    fn fold<R: Reduction>(acc: Self::Acc<R>, words: Self) -> Self::Acc<R> {
        (R::fold(acc.0, words.0), R::fold(acc.1, words.1))
    }
    #[inline(always)]
    fn finish<R: Reduction>(acc: Self::Acc<R>) -> Self {
        (R::finish(acc.0), R::finish(acc.1))
    }
    #[inline(always)]
    fn pair<R: Reduction>(self, other: Self) -> Self {
        (R::pair(self.0, other.0), R::pair(self.1, other.1))
    }
}

impl Fold for Word16 {
    type Acc<R: Reduction> = (R::Acc, R::Acc, R::Acc, R::Acc);
    #[inline(always)]
    fn start<R: Reduction>(self) -> Self::Acc<R> {
        (R::start(self.x), R::start(self.y), R::start(self.z), R::start(self.w))
    }
    #[inline(always)]
    fn fold<R: Reduction>(acc: Self::Acc<R>, words: Self) -> Self::Acc<R> {
        (
            R::fold(acc.0, words.x),
            R::fold(acc.1, words.y),
            R::fold(acc.2, words.z),
            R::fold(acc.3, words.w),
        )
    }
    #[inline(always)]
    fn finish<R: Reduction>(acc: Self::Acc<R>) -> Self {
        Word16 {
            x: R::finish(acc.0),
            y: R::finish(acc.1),
            z: R::finish(acc.2),
            w: R::finish(acc.3),
        }
    }
    #[inline(always)]
    fn pair<R: Reduction>(self, other: Self) -> Self {
        Word16 {
            x: R::pair(self.x, other.x),
            y: R::pair(self.y, other.y),
            z: R::pair(self.z, other.z),
            w: R::pair(self.w, other.w),
        }
    }
}

/// Runs `$body` with `$reduction` standing for the reduction of a type and operation that a kernel is
/// told at run time: one loop a reduction, the branch outside it.
#[macro_export]
macro_rules! with_reduction {
    ($data_type:expr, $op:expr, $reduction:ident => $body:expr) => {{
        macro_rules! by_op {
            ($element:ident) => {
                match $op {
                    0 => {
                        type $reduction = $crate::Sum<$crate::element::$element>;
                        $body
                    }
                    1 => {
                        type $reduction = $crate::Min<$crate::element::$element>;
                        $body
                    }
                    _ => {
                        type $reduction = $crate::Max<$crate::element::$element>;
                        $body
                    }
                }
            };
        }
        match $data_type {
            0 => by_op!(F16),
            1 => by_op!(Bf16),
            2 => by_op!(F32),
            3 => by_op!(I32),
            _ => by_op!(U32),
        }
    }};
}

const _: () = {
    assert!(ReduceOp::Sum as u32 == 0 && ReduceOp::Min as u32 == 1 && ReduceOp::Max as u32 == 2);
    assert!(DataType::F16 as u32 == 0 && DataType::Bf16 as u32 == 1 && DataType::F32 as u32 == 2);
    assert!(DataType::I32 as u32 == 3 && DataType::U32 as u32 == 4);
};

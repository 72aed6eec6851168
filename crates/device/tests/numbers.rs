//! Reductions of words against a library of number formats, and the GPU's rules for NaN and zeros.

use half::{bf16, f16};
use mscclrs_device::element::{Bf16, F16, F32, I32, U32};
use mscclrs_device::{Fold, Max, Min, Reduction, Sum, Word16};
use proptest::prelude::*;

fn word(low: u16, high: u16) -> u32 {
    low as u32 | (high as u32) << 16
}

fn same_f16(ours: u16, theirs: f16) -> bool {
    ours == theirs.to_bits() || (f16::from_bits(ours).is_nan() && theirs.is_nan())
}

fn same_bf16(ours: u16, theirs: bf16) -> bool {
    ours == theirs.to_bits() || (bf16::from_bits(ours).is_nan() && theirs.is_nan())
}

#[test]
fn every_f16_survives_a_sum_with_negative_zero() {
    for bits in 0..=u16::MAX {
        let sum = Sum::<F16>::pair(word(bits, bits), word(0x8000, 0x8000));
        assert!(same_f16(sum as u16, f16::from_bits(bits)), "{bits:#x} became {sum:#x}");
        assert_eq!(sum as u16, (sum >> 16) as u16);
    }
}

#[test]
fn nan_loses_against_a_number_and_negative_zero_is_less() {
    let (nan, one) = (0x7fc0_7fc0u32, 0x3f80_3f80u32);
    assert_eq!(Min::<Bf16>::pair(nan, one), one);
    assert_eq!(Max::<Bf16>::pair(one, nan), one);
    assert_eq!(Min::<Bf16>::pair(nan, nan), 0x7fff_7fff);
    assert_eq!(Min::<F32>::pair(0, 0x8000_0000), 0x8000_0000);
    assert_eq!(Max::<F32>::pair(0x8000_0000, 0), 0);
    assert_eq!(Min::<F16>::pair(0x0000_8000, 0x8000_0000), 0x8000_8000);
}

#[test]
fn integers_are_compared_with_their_sign() {
    let minus_one = u32::MAX;
    assert_eq!(Min::<I32>::pair(minus_one, 1), minus_one);
    assert_eq!(Min::<U32>::pair(minus_one, 1), 1);
    assert_eq!(Max::<I32>::pair(minus_one, 1), 1);
    assert_eq!(Max::<U32>::pair(minus_one, 1), minus_one);
    assert_eq!(Sum::<I32>::pair(minus_one, 3), 2);
}

#[test]
fn sums_over_many_ranks_round_once() {
    // 1 + eight times half a unit in the last place: rounding at each step would stay at 1.
    let (one, half_ulp) = (bf16::from_f32(1.0), bf16::from_f32(0.00390625));
    let small = word(half_ulp.to_bits(), half_ulp.to_bits());
    let mut acc = Sum::<Bf16>::start(word(one.to_bits(), one.to_bits()));
    for _ in 0..8 {
        acc = Sum::<Bf16>::fold(acc, small);
    }
    assert_eq!(bf16::from_bits(Sum::<Bf16>::finish(acc) as u16).to_f32(), 1.03125);
}

proptest! {
    #[test]
    fn f16_pairs_add_as_the_library_does(a: u16, b: u16, c: u16, d: u16) {
        let sum = Sum::<F16>::pair(word(a, b), word(c, d));
        prop_assert!(same_f16(sum as u16, f16::from_bits(a) + f16::from_bits(c)));
        prop_assert!(same_f16((sum >> 16) as u16, f16::from_bits(b) + f16::from_bits(d)));
    }

    #[test]
    fn bf16_pairs_add_as_the_library_does(a: u16, b: u16, c: u16, d: u16) {
        let sum = Sum::<Bf16>::pair(word(a, b), word(c, d));
        prop_assert!(same_bf16(sum as u16, bf16::from_bits(a) + bf16::from_bits(c)));
        prop_assert!(same_bf16((sum >> 16) as u16, bf16::from_bits(b) + bf16::from_bits(d)));
    }

    #[test]
    fn a_pair_is_a_start_a_fold_and_a_finish(a: u32, b: u32) {
        fn both<R: Reduction>(a: u32, b: u32) -> (u32, u32) {
            (R::pair(a, b), R::finish(R::fold(R::start(a), b)))
        }
        for (pair, steps) in [
            both::<Sum<F32>>(a, b), both::<Min<F32>>(a, b), both::<Max<F16>>(a, b),
            both::<Min<Bf16>>(a, b), both::<Sum<U32>>(a, b), both::<Sum<Bf16>>(a, b),
            both::<Sum<F16>>(a, b),
        ] {
            prop_assert_eq!(pair, steps);
        }
    }

    #[test]
    fn wider_units_reduce_word_by_word(a: [u32; 4], b: [u32; 4]) {
        let unit = |w: [u32; 4]| Word16 { x: w[0], y: w[1], z: w[2], w: w[3] };
        let sum = unit(a).pair::<Sum<U32>>(unit(b));
        prop_assert_eq!(sum.w, a[3].wrapping_add(b[3]));
        prop_assert_eq!((a[0], a[1]).pair::<Sum<U32>>((b[0], b[1])).1, a[1].wrapping_add(b[1]));
    }
}

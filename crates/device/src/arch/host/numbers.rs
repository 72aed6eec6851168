//! What a GPU's arithmetic on halves, bfloat16 and f32 gives.

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

//! Test values and what must come out of them.
//!
//! An element's value is a function of rank, seed and its index modulo a prime, so that tables of one
//! period describe vectors of any length, while a block that lands at a wrong place (at a power of two,
//! say) shows. Exact values are small integers whose sum over all ranks is exact in the type in any
//! order of addition, so results are compared bit for bit; random values are compared against the bound
//! of rounding errors.

use half::{bf16, f16};
use mscclrs_device::{DataType, ReduceOp};

/// Elements after which values repeat; prime.
pub(crate) const PERIOD: u64 = 262_139;

/// What the values are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Any bits: they are only moved.
    Move,
    /// An operation whose result is exact.
    Exact(ReduceOp),
    /// Sums of random values in [-1, 1).
    RandomSum,
}

/// Test values of all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) data_type: DataType,
    pub(crate) purpose: Purpose,
    pub(crate) ranks: u32,
    pub(crate) seed: u64,
}

/// What a vector must hold.
#[derive(Debug)]
pub(crate) enum Expected {
    /// These bytes, repeated.
    Bits(Vec<u8>),
    /// Each element within a bound of a value, repeated.
    Near(Vec<(f64, f64)>),
}

impl Pattern {
    /// One period of a rank's values, or all `count` of them if these are fewer.
    pub(crate) fn table(&self, rank: u32, count: u64) -> Vec<u8> {
        self.encode((0..count.min(PERIOD)).map(|index| self.bits(rank, index)))
    }

    /// What a reduction over all ranks gives.
    pub(crate) fn reduced(&self, count: u64) -> Expected {
        let indexes = 0..count.min(PERIOD);
        let all = move |index| (0..self.ranks).map(move |rank| self.bits(rank, index));
        let op = match self.purpose {
            Purpose::Exact(op) => op,
            Purpose::Move => return Expected::Bits(self.table(0, count)),
            Purpose::RandomSum => {
                let near = indexes.map(|index| {
                    let values = all(index).map(|bits| number(self.data_type, bits));
                    let (sum, size) = values.fold((0.0, 0.0), |(sum, size), value: f64| {
                        (sum + value, size + value.abs())
                    });
                    // One rounding an addition at most, each of a partial sum not above `size`.
                    (sum, f64::from(self.ranks) * unit_roundoff(self.data_type) * size + 1e-7)
                });
                return Expected::Near(near.collect());
            }
        };
        let fold = |index| {
            let mut bits = all(index);
            let first = bits.next().unwrap_or(0);
            bits.fold(first, |a, b| combine(self.data_type, op, a, b))
        };
        Expected::Bits(self.encode(indexes.map(fold)))
    }

    fn encode(&self, elements: impl Iterator<Item = u32>) -> Vec<u8> {
        match self.data_type.size() {
            2 => elements.flat_map(|bits| (bits as u16).to_le_bytes()).collect(),
            _ => elements.flat_map(u32::to_le_bytes).collect(),
        }
    }

    /// The bits of an element.
    fn bits(&self, rank: u32, index: u64) -> u32 {
        let hash = mix(self.seed, u64::from(rank), index);
        let is_integer = matches!(self.data_type, DataType::I32 | DataType::U32);
        match self.purpose {
            Purpose::Move => hash as u32,
            Purpose::Exact(_) if is_integer => hash as u32,
            Purpose::Exact(ReduceOp::Sum) => {
                let bound = exact_integers(self.data_type) / i64::from(self.ranks);
                if bound == 0 {
                    // More ranks than exact integers: most ranks give nothing to an element.
                    let sharing = u64::from(self.ranks)
                        .div_ceil(exact_integers(self.data_type).unsigned_abs());
                    let gives = (u64::from(rank) + index).is_multiple_of(sharing);
                    return encode(self.data_type, if gives { 1.0 } else { 0.0 });
                }
                let range = 2 * bound.min(1 << 20) + 1;
                let value = (hash % range.unsigned_abs()) as i64 - range / 2;
                encode(self.data_type, value as f32)
            }
            Purpose::Exact(ReduceOp::Min | ReduceOp::Max) => {
                let exponent = (hash >> 32) as i32 % 16 - 8;
                let value = (1.0 + (hash % 128) as f32 / 128.0) * 2f32.powi(exponent);
                encode(self.data_type, if hash & (1 << 40) == 0 { value } else { -value })
            }
            Purpose::RandomSum => {
                let unit = (hash >> 40) as f32 / (1u64 << 24) as f32;
                encode(self.data_type, 2.0 * unit - 1.0)
            }
        }
    }
}

impl Expected {
    /// How many elements of `found` are wrong, the first of them having index `first`, and where the
    /// first wrong one is.
    pub(crate) fn compare(
        &self,
        data_type: DataType,
        first: u64,
        found: &[u8],
    ) -> (u64, Option<Wrong>) {
        let size = data_type.size() as usize;
        let period = match self {
            Expected::Bits(table) => table.len() / size,
            Expected::Near(table) => table.len(),
        };
        let mut wrong = (0, None);
        let mut done = 0;
        while done < found.len() / size && period > 0 {
            let index = first + done as u64;
            let place = (index % period as u64) as usize;
            let run = (period - place).min(found.len() / size - done);
            let part = &found[done * size..(done + run) * size];
            match self {
                // Nearly always a whole run is right, and this is as fast as memory.
                Expected::Bits(table) if part == &table[place * size..(place + run) * size] => {}
                _ => self.compare_each(data_type, index, place, part, &mut wrong),
            }
            done += run;
        }
        wrong
    }

    fn compare_each(
        &self,
        data_type: DataType,
        index: u64,
        place: usize,
        part: &[u8],
        wrong: &mut (u64, Option<Wrong>),
    ) {
        let size = data_type.size() as usize;
        for (at, element) in part.chunks_exact(size).enumerate() {
            let found = number(data_type, decode(element));
            let (is_right, expected) = match self {
                Expected::Bits(table) => {
                    let right = &table[(place + at) * size..(place + at + 1) * size];
                    (element == right, number(data_type, decode(right)))
                }
                Expected::Near(table) => {
                    let (value, bound) = table[place + at];
                    ((found - value).abs() <= bound, value)
                }
            };
            if !is_right {
                wrong.0 += 1;
                wrong.1.get_or_insert(Wrong { index: index + at as u64, expected, found });
            }
        }
    }
}

/// A wrong element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wrong {
    pub(crate) index: u64,
    pub(crate) expected: f64,
    pub(crate) found: f64,
}

/// Fills `out` with the repeated table, from element `first` on.
pub(crate) fn repeat(table: &[u8], data_type: DataType, first: u64, out: &mut [u8]) {
    if table.is_empty() {
        return;
    }
    let mut place = (first % (table.len() as u64 / u64::from(data_type.size()))) as usize
        * data_type.size() as usize;
    let mut out = out;
    while !out.is_empty() {
        let run = (table.len() - place).min(out.len());
        out[..run].copy_from_slice(&table[place..place + run]);
        out = &mut out[run..];
        place = 0;
    }
}

/// SplitMix64 over rank and index.
fn mix(seed: u64, rank: u64, index: u64) -> u64 {
    let mut state = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(rank.wrapping_mul(0xd1b5_4a32_d192_ed03))
        .wrapping_add(index.wrapping_mul(0x8cb9_2ba7_2f3d_8dd7));
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The largest n for which all integers up to n are exact.
fn exact_integers(data_type: DataType) -> i64 {
    match data_type {
        DataType::F16 => 1 << 11,
        DataType::Bf16 => 1 << 8,
        DataType::F32 => 1 << 24,
        DataType::I32 | DataType::U32 => 1 << 31,
    }
}

/// Largest relative error of one rounding.
fn unit_roundoff(data_type: DataType) -> f64 {
    match data_type {
        DataType::F16 => 2f64.powi(-11),
        DataType::Bf16 => 2f64.powi(-8),
        DataType::F32 => 2f64.powi(-24),
        DataType::I32 | DataType::U32 => 0.0,
    }
}

fn decode(element: &[u8]) -> u32 {
    match *element {
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}

fn encode(data_type: DataType, value: f32) -> u32 {
    match data_type {
        DataType::F16 => f16::from_f32(value).to_bits().into(),
        DataType::Bf16 => bf16::from_f32(value).to_bits().into(),
        DataType::F32 => value.to_bits(),
        DataType::I32 => value as i32 as u32,
        DataType::U32 => value as u32,
    }
}

fn number(data_type: DataType, bits: u32) -> f64 {
    match data_type {
        DataType::F16 => f16::from_bits(bits as u16).to_f64(),
        DataType::Bf16 => bf16::from_bits(bits as u16).to_f64(),
        DataType::F32 => f32::from_bits(bits).into(),
        DataType::I32 => (bits as i32).into(),
        DataType::U32 => bits.into(),
    }
}

/// The operation on values for which it is exact.
fn combine(data_type: DataType, op: ReduceOp, a: u32, b: u32) -> u32 {
    let (x, y) = (number(data_type, a), number(data_type, b));
    match (op, data_type) {
        (ReduceOp::Sum, DataType::I32 | DataType::U32) => a.wrapping_add(b),
        (ReduceOp::Sum, _) => encode(data_type, (x + y) as f32),
        (ReduceOp::Min, _) => {
            if y < x {
                b
            } else {
                a
            }
        }
        (ReduceOp::Max, _) => {
            if y > x {
                b
            } else {
                a
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(data_type: DataType, purpose: Purpose, ranks: u32) -> Pattern {
        Pattern { data_type, purpose, ranks, seed: 7 }
    }

    #[test]
    fn exact_sums_do_not_depend_on_the_order() {
        for data_type in DataType::ALL {
            for ranks in [2, 3, 8, 300] {
                let pattern = pattern(data_type, Purpose::Exact(ReduceOp::Sum), ranks);
                for index in 0..500 {
                    let forth = (1..ranks).fold(pattern.bits(0, index), |sum, rank| {
                        combine(data_type, ReduceOp::Sum, sum, pattern.bits(rank, index))
                    });
                    let back =
                        (0..ranks - 1).rev().fold(pattern.bits(ranks - 1, index), |sum, rank| {
                            combine(data_type, ReduceOp::Sum, sum, pattern.bits(rank, index))
                        });
                    // -0.0 cannot arise: integers are summed from +0.0.
                    assert_eq!(forth, back, "{data_type:?} {ranks} {index}");
                }
            }
        }
    }

    #[test]
    fn values_are_finite_and_differ_between_ranks() {
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                let pattern = pattern(data_type, Purpose::Exact(op), 4);
                assert!((0..999).all(|i| number(data_type, pattern.bits(1, i)).is_finite()));
                assert_ne!(pattern.table(0, 64), pattern.table(1, 64));
            }
        }
    }

    #[test]
    fn unsigned_minimum_is_not_signed() {
        let (small, large) = (5, 0x8000_0000);
        assert_eq!(combine(DataType::U32, ReduceOp::Min, large, small), small);
        assert_eq!(combine(DataType::I32, ReduceOp::Min, large, small), large);
    }

    #[test]
    fn right_results_compare_equal_over_many_periods() {
        let pattern = pattern(DataType::Bf16, Purpose::Exact(ReduceOp::Sum), 8);
        let count = 2 * PERIOD + 17;
        let expected = pattern.reduced(count);
        let Expected::Bits(table) = &expected else { panic!("exact") };
        let mut found = vec![0; 2 * count as usize];
        repeat(table, DataType::Bf16, 0, &mut found);
        assert_eq!(expected.compare(DataType::Bf16, 0, &found), (0, None));
        let tail = &found[2 * 1000..];
        assert_eq!(expected.compare(DataType::Bf16, 1000, tail), (0, None));
    }

    #[test]
    fn one_changed_byte_is_one_wrong_element() {
        for purpose in [Purpose::Exact(ReduceOp::Sum), Purpose::RandomSum] {
            let pattern = pattern(DataType::F32, purpose, 1);
            let expected = pattern.reduced(PERIOD + 100);
            let mut found = vec![0; 4 * (PERIOD as usize + 100)];
            repeat(&pattern.table(0, PERIOD + 100), DataType::F32, 0, &mut found);
            assert_eq!(expected.compare(DataType::F32, 0, &found), (0, None));
            found[4 * (PERIOD as usize + 50) + 3] ^= 0x41;
            let (wrong, first) = expected.compare(DataType::F32, 0, &found);
            assert_eq!((wrong, first.map(|first| first.index)), (1, Some(PERIOD + 50)));
        }
    }

    #[test]
    fn sums_outside_the_bound_are_wrong_and_not_numbers_too() {
        let pattern = pattern(DataType::F16, Purpose::RandomSum, 4);
        let Expected::Near(near) = pattern.reduced(16) else { panic!("random") };
        let expected = Expected::Near(near.clone());
        let off = near.iter().map(|(value, bound)| f16::from_f64(value + 3.0 * bound + 0.01));
        let found: Vec<u8> = off.flat_map(|value| value.to_bits().to_le_bytes()).collect();
        assert_eq!(expected.compare(DataType::F16, 0, &found).0, 16);
        let found: Vec<u8> =
            [f16::NAN; 16].iter().flat_map(|v| v.to_bits().to_le_bytes()).collect();
        assert_eq!(expected.compare(DataType::F16, 0, &found).0, 16);
    }

    #[test]
    fn shifted_results_are_wrong() {
        let pattern = pattern(DataType::I32, Purpose::Move, 2);
        let count = 2 * PERIOD;
        let table = pattern.table(1, count);
        let mut found = vec![0; 4 * count as usize];
        repeat(&table, DataType::I32, 65_536, &mut found);
        let (wrong, _) = Expected::Bits(table).compare(DataType::I32, 0, &found);
        assert!(wrong > count * 9 / 10);
    }
}

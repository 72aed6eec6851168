//! Numbers as elements: whole ones that sum exactly, and what elements are as numbers.

use half::{bf16, f16};
use mscclrs_collectives::{DataType, ReduceOp};

/// Element `index` of `rank`'s input: small whole numbers, exact in every type and in sums of 8 ranks.
pub(crate) fn value(rank: u32, index: u64, seed: u64) -> i64 {
    let hash = (index.wrapping_mul(7) + rank as u64 * 13 + seed.wrapping_mul(31)) ^ (index >> 5);
    (hash % 15) as i64
}

/// What an allreduce makes of them.
pub(crate) fn expected(ranks: u32, index: u64, seed: u64, op: ReduceOp) -> i64 {
    let all = (0..ranks).map(|rank| value(rank, index, seed));
    match op {
        ReduceOp::Sum => all.sum(),
        ReduceOp::Min => all.min().unwrap_or(0),
        ReduceOp::Max => all.max().unwrap_or(0),
    }
}

/// Whole numbers as elements of a type.
pub(crate) fn encode(values: impl Iterator<Item = i64>, data_type: DataType) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        match data_type {
            DataType::F16 => bytes.extend(f16::from_f32(value as f32).to_le_bytes()),
            DataType::Bf16 => bytes.extend(bf16::from_f32(value as f32).to_le_bytes()),
            DataType::F32 => bytes.extend((value as f32).to_le_bytes()),
            DataType::I32 => bytes.extend((value as i32).to_le_bytes()),
            DataType::U32 => bytes.extend((value as u32).to_le_bytes()),
        }
    }
    bytes
}

/// One element as a number.
pub(crate) fn decode(bytes: &[u8], data_type: DataType) -> f64 {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    let low = u16::from_le_bytes([word[0], word[1]]);
    match data_type {
        DataType::F16 => f16::from_bits(low).to_f64(),
        DataType::Bf16 => bf16::from_bits(low).to_f64(),
        DataType::F32 => f32::from_le_bytes(word) as f64,
        DataType::I32 => i32::from_le_bytes(word) as f64,
        DataType::U32 => u32::from_le_bytes(word) as f64,
    }
}

/// The element of a float type nearest to a number.
pub(crate) fn nearest(value: f32, data_type: DataType) -> Vec<u8> {
    match data_type {
        DataType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        DataType::F32 | DataType::I32 | DataType::U32 => value.to_le_bytes().to_vec(),
    }
}

/// Numbers that look random and follow from a seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

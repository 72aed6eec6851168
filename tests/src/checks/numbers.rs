//! Numbers come out by the rules of the element types, whatever the algorithm, and the same to the
//! bit on every rank.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use mscclrs_collectives::{DataType, ReduceOp};
use mscclrs_gpu::Device;

use crate::memory::Memory;
use crate::values::{Random, decode, nearest};
use crate::world;

/// Says what is wrong with one element, given the ranks' ones.
type Judge = fn(&Case, terms: &[&[u8]], got: &[u8]) -> Result<(), String>;

/// What every rank gives to one call.
struct Case {
    data_type: DataType,
    op: ReduceOp,
    /// By rank.
    inputs: Vec<Vec<u8>>,
    judge: Judge,
}

const FLOATS: [DataType; 3] = [DataType::F16, DataType::Bf16, DataType::F32];
const RANKS: [u32; 3] = [2, 3, 8];

/// Sums of random floats are as near to the exact sum as the type and one rounding allow.
pub(crate) fn float_sums(device: &Device) -> Result<()> {
    run(device, |ranks| {
        let cases = FLOATS.into_iter().flat_map(|data_type| {
            // The first count suits the kernels for aligned buffers, the second does not.
            [2048, 1001].map(|count| (data_type, count))
        });
        let case = |(data_type, count): (DataType, u64)| {
            let input = |rank: u32| {
                let mut random = Random::new(rank as u64 * 1000 + count);
                let mut number = || {
                    let part = (random.next() >> 40) as f32 / (1u32 << 24) as f32 - 0.5;
                    part * (random.below(16) as f32 - 8.0).exp2()
                };
                (0..count).flat_map(|_| nearest(number(), data_type)).collect()
            };
            let inputs = (0..ranks).map(input).collect();
            Case { data_type, op: ReduceOp::Sum, inputs, judge: within_bound }
        };
        cases.map(case).collect()
    })
}

/// Sums of 16-bit floats are kept in f32 and rounded once.
fn within_bound(case: &Case, terms: &[&[u8]], got: &[u8]) -> Result<(), String> {
    let terms: Vec<f64> = terms.iter().map(|term| decode(term, case.data_type)).collect();
    let (exact, size) = (terms.iter().sum::<f64>(), terms.iter().map(|t| t.abs()).sum::<f64>());
    let steps = (terms.len() - 1) as f64 * f64::exp2(-24.0) * size;
    let rounding = match case.data_type {
        DataType::F16 => f64::exp2(-11.0) * exact.abs() + f64::exp2(-25.0),
        DataType::Bf16 => f64::exp2(-8.0) * exact.abs() + f64::exp2(-134.0),
        _ => 0.0,
    };
    let bound = 1.0001 * (steps + rounding);
    let got = decode(got, case.data_type);
    // Not the other way round: a NaN is no good either.
    if (got - exact).abs() <= bound {
        return Ok(());
    }
    Err(format!("{got} is not within {bound:e} of {exact}, the sum of {terms:?}"))
}

/// NaN loses in min and max, -0 is less than +0, infinities and subnormals are kept, sums overflow.
pub(crate) fn special_floats(device: &Device) -> Result<()> {
    run(device, |ranks| {
        let mut cases = Vec::new();
        for data_type in FLOATS {
            let all = specials(data_type);
            for op in ReduceOp::ALL {
                let inputs = combine(&all, ranks);
                let odd = inputs.iter().map(|i| i[..i.len() - all[0].len()].to_vec()).collect();
                for inputs in [inputs, odd] {
                    cases.push(Case { data_type, op, inputs, judge: by_the_rules });
                }
            }
        }
        cases
    })
}

/// ±NaN, ±0, ±infinity, ±the largest, ±the smallest, ±1.
fn specials(data_type: DataType) -> Vec<Vec<u8>> {
    let halves = |words: [u16; 6]| {
        words.into_iter().flat_map(|w| [w, w | 0x8000]).map(|w| w.to_le_bytes().to_vec()).collect()
    };
    match data_type {
        DataType::F16 => halves([0x7e01, 0, 0x7c00, 0x7bff, 1, 0x3c00]),
        DataType::Bf16 => halves([0x7fc1, 0, 0x7f80, 0x7f7f, 1, 0x3f80]),
        _ => [0x7fc0_0001u32, 0, 0x7f80_0000, 0x7f7f_ffff, 1, 0x3f80_0000]
            .into_iter()
            .flat_map(|w| [w, w | 0x8000_0000])
            .map(|w| w.to_le_bytes().to_vec())
            .collect(),
    }
}

/// Every combination of these elements over the ranks, or many of them; by rank.
fn combine(all: &[Vec<u8>], ranks: u32) -> Vec<Vec<u8>> {
    let base = all.len() as u64;
    let (total, whole) = match base.checked_pow(ranks) {
        Some(total) if total <= 4096 => (total, true),
        _ => (2048, false),
    };
    let mut random = Random::new(base);
    let mut inputs = vec![Vec::new(); ranks as usize];
    for at in 0..total {
        // The first is the same element everywhere in both ways.
        let mut rest = if whole { at } else { random.next() * at.min(1) };
        for input in &mut inputs {
            input.extend(&all[(rest % base) as usize]);
            rest /= base;
        }
    }
    inputs
}

fn by_the_rules(case: &Case, terms: &[&[u8]], got: &[u8]) -> Result<(), String> {
    let numbers = terms.iter().map(|term| decode(term, case.data_type));
    let pick = |a: f64, b: f64| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (false, true) => a,
        _ if a.total_cmp(&b).is_lt() == (case.op == ReduceOp::Min) => a,
        _ => b,
    };
    let wanted = match case.op {
        ReduceOp::Sum => {
            let sum = numbers.map(|n| n as f32).reduce(|a, b| a + b).unwrap_or(0.0);
            decode(&nearest(sum, case.data_type), case.data_type)
        }
        ReduceOp::Min | ReduceOp::Max => numbers.reduce(pick).unwrap_or(0.0),
    };
    let seen = decode(got, case.data_type);
    if seen.to_bits() == wanted.to_bits() || (seen.is_nan() && wanted.is_nan()) {
        return Ok(());
    }
    Err(format!("{got:02x?} ({seen:e}) instead of {wanted:e} of {terms:02x?}"))
}

/// Sums wrap; min and max tell signed from unsigned.
pub(crate) fn integers(device: &Device) -> Result<()> {
    run(device, |ranks| {
        let words = [0u32, 1, u32::MAX, 0x8000_0000, 0x8000_0001, 0x7fff_ffff, 0x7fff_fffe, 77];
        let all = words.map(|word| word.to_le_bytes().to_vec());
        let case = |(data_type, op)| Case {
            data_type,
            op,
            inputs: combine(&all, ranks),
            judge: as_integers,
        };
        let types = [DataType::I32, DataType::U32];
        types.into_iter().flat_map(|t| ReduceOp::ALL.map(|op| (t, op))).map(case).collect()
    })
}

fn as_integers(case: &Case, terms: &[&[u8]], got: &[u8]) -> Result<(), String> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |word, byte| word << 8 | *byte as u32);
    let words = terms.iter().map(|term| word(term));
    let signed = case.data_type == DataType::I32;
    // The order of signed numbers is that of unsigned ones with the sign turned.
    let key = |word: &u32| if signed { word ^ 0x8000_0000 } else { *word };
    let wanted = match case.op {
        ReduceOp::Sum => words.reduce(u32::wrapping_add),
        ReduceOp::Min => words.min_by_key(key),
        ReduceOp::Max => words.max_by_key(key),
    };
    if wanted == Some(word(got)) {
        return Ok(());
    }
    Err(format!("{:#x} instead of {wanted:x?} of {terms:02x?}", word(got)))
}

/// All cases with every algorithm.
fn run(device: &Device, cases: impl Fn(u32) -> Vec<Case>) -> Result<()> {
    for ranks in RANKS {
        let cases = Arc::new(cases(ranks));
        world::run(device.kind(), ranks, move |rank| {
            let longest = cases.iter().map(|case| case.inputs[0].len()).max().unwrap_or(1);
            let all = rank.every_algorithm()?;
            for (algorithm, collectives) in &all {
                let memory = Memory::symmetric(collectives, longest as u64)?;
                for case in cases.iter() {
                    let what = || {
                        let (kind, op) = (case.data_type.name(), case.op.name());
                        let bytes = case.inputs[0].len();
                        format!("{}, {op} of {bytes} bytes of {kind}", algorithm.name())
                    };
                    once(rank, collectives, &memory, case).with_context(what)?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn once(
    rank: &world::Rank,
    collectives: &mscclrs_collectives::Collectives,
    memory: &Memory,
    case: &Case,
) -> Result<()> {
    let own = &case.inputs[rank.rank as usize];
    let size = case.data_type.size() as usize;
    let count = (own.len() / size) as u64;
    let (input, output) = (&memory.input, &memory.output);
    input.write(&rank.stream, 0, own)?;
    collectives.all_reduce(input, output, count, case.data_type, case.op, &rank.stream)?;
    rank.finish()?;
    let mut got = vec![0; own.len()];
    output.read(&rank.stream, 0, &mut got)?;
    for (at, element) in got.chunks_exact(size).enumerate() {
        let terms: Vec<&[u8]> = case.inputs.iter().map(|i| &i[at * size..][..size]).collect();
        (case.judge)(case, &terms, element)
            .map_err(|why| anyhow::anyhow!("element {at}: {why}"))?;
    }
    let all = rank.communicator.bootstrap().all_gather(&got)?;
    for (other, theirs) in all.iter().enumerate() {
        ensure!(*theirs == got, "rank {other} got other bits");
    }
    Ok(())
}

//! Collectives give exact results: every algorithm, type, operation, alignment and memory.

use anyhow::{Context, Result};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp};
use mscclrs_gpu::{BackendKind, Device, MemoryKind};

use crate::memory::{Guarded, Memory};
use crate::values::{encode, expected, value};
use crate::world::{self, Rank, partner};

/// Bytes of the largest message of the matrices.
const MOST: u64 = 192 << 10;
/// Element counts: none, less than a packet, odd, around units of 16 bytes, several rounds of lanes.
const COUNTS: [u64; 9] = [0, 1, 2, 3, 31, 64, 1023, 4096, 20_001];

const RANKS: [u32; 4] = [2, 3, 5, 8];

#[allow(clippy::too_many_arguments)]
pub(super) fn reduce_once(
    rank: &Rank,
    collectives: &Collectives,
    memory: &Memory,
    offsets: (u64, u64),
    in_place: bool,
    count: u64,
    kind: (DataType, ReduceOp),
    seed: u64,
) -> Result<()> {
    let (data_type, op) = kind;
    let bytes = count * data_type.size() as u64;
    let own = encode((0..count).map(|i| value(rank.rank, i, seed)), data_type);
    let wanted = encode((0..count).map(|i| expected(rank.ranks, i, seed, op)), data_type);
    let input = Guarded::new(memory.input.clone(), offsets.0, bytes);
    let output = Guarded::new(memory.output.clone(), offsets.1, bytes);
    input.set(&rank.stream, &own)?;
    output.set(&rank.stream, &vec![0xee; bytes as usize])?;
    let to = if in_place { &input } else { &output };
    // SAFETY: both parts lie in buffers of `memory`.
    unsafe {
        collectives.all_reduce_raw(
            input.address(),
            to.address(),
            count,
            data_type,
            op,
            &rank.stream,
        )?;
    }
    rank.finish()?;
    let case = || format!("{count} {} {} in place {in_place}", data_type.name(), op.name());
    to.check(&rank.stream, &wanted, "output").with_context(case)?;
    if !in_place {
        input.check(&rank.stream, &own, "input").with_context(case)?;
    }
    Ok(())
}

/// Every algorithm with every type, operation and count; registered memory at one offset, then memory
/// of several kinds at offsets that differ from rank to rank.
pub(crate) fn all_reduce_is_exact(device: &Device) -> Result<()> {
    for ranks in RANKS {
        for algorithm in AllReduce::ALL {
            world::run(device.kind(), ranks, move |rank| {
                let collectives = rank.only(algorithm, AllGather::Mesh)?;
                let symmetric = Memory::symmetric(&collectives, MOST)?;
                let plain = Memory::plain(rank, MOST)?;
                rank.barrier()?;
                let mut seed = 0;
                for data_type in DataType::ALL {
                    for op in ReduceOp::ALL {
                        for count in COUNTS {
                            seed += 1;
                            let in_place = seed % 2 == 0;
                            let kind = (data_type, op);
                            let size = data_type.size() as u64;
                            let own = size * (rank.rank as u64 + seed) % 32;
                            let (memory, offsets) = match seed % 3 {
                                0 => (&symmetric, (32, 64)),
                                1 => (&symmetric, (16 + size, 32 + 2 * size)),
                                _ => (&plain, (own, (own + size) % 32)),
                            };
                            reduce_once(
                                rank,
                                &collectives,
                                memory,
                                offsets,
                                in_place,
                                count,
                                kind,
                                seed,
                            )?;
                        }
                    }
                }
                Ok(())
            })
            .with_context(|| algorithm.name())?;
        }
    }
    Ok(())
}

/// As above for allgather.
pub(crate) fn all_gather_is_exact(device: &Device) -> Result<()> {
    for ranks in RANKS {
        for algorithm in AllGather::ALL {
            world::run(device.kind(), ranks, move |rank| {
                let collectives = rank.only(AllReduce::Mesh, algorithm)?;
                let most = 8 * 4 * 20_001 + 64;
                let symmetric = Memory::symmetric(&collectives, most)?;
                let plain = Memory::plain(rank, most)?;
                rank.barrier()?;
                for (seed, count) in COUNTS.into_iter().cycle().take(3 * COUNTS.len()).enumerate() {
                    gather_once(rank, &collectives, [&symmetric, &plain], count, seed as u64)?;
                }
                Ok(())
            })
            .with_context(|| algorithm.name())?;
        }
    }
    Ok(())
}

pub(super) fn gather_once(
    rank: &Rank,
    collectives: &Collectives,
    memories: [&Memory; 2],
    count: u64,
    seed: u64,
) -> Result<()> {
    let data_type = if seed.is_multiple_of(2) { DataType::Bf16 } else { DataType::F32 };
    let size = data_type.size() as u64;
    let bytes = count * size;
    let in_place = seed.is_multiple_of(3);
    let (memory, offset) = match seed / 9 % 3 {
        0 => (memories[0], 16),
        1 => (memories[0], 16 + size),
        _ => (memories[1], size * (rank.rank as u64 + seed) % 32),
    };
    let own = encode((0..count).map(|i| value(rank.rank, i, seed)), data_type);
    let all: Vec<u8> = (0..rank.ranks)
        .flat_map(|r| encode((0..count).map(|i| value(r, i, seed)), data_type))
        .collect();
    let output = Guarded::new(memory.output.clone(), offset, bytes * rank.ranks as u64);
    let input = Guarded::new(memory.input.clone(), offset, bytes);
    let mut before = vec![0xee; all.len()];
    let at = (rank.rank as u64 * bytes) as usize;
    if in_place {
        before[at..at + own.len()].copy_from_slice(&own);
    }
    output.set(&rank.stream, &before)?;
    input.set(&rank.stream, &own)?;
    // Peers write this rank's output: all must have set theirs before anybody begins. A collective
    // waits for its peers' kernels, so a finished stream is enough on this rank.
    let from = if in_place { output.address() + at as u64 } else { input.address() };
    // SAFETY: both parts lie in buffers of `memories`.
    unsafe {
        collectives.all_gather_raw(from, output.address(), count, data_type, &rank.stream)?;
    }
    rank.finish()?;
    let case = || format!("{count} {} a rank, in place {in_place}", data_type.name());
    output.check(&rank.stream, &all, "output").with_context(case)?;
    input.check(&rank.stream, &own, "input").with_context(case)
}

/// One graph replayed with new data each time gives the exact result each time.
pub(crate) fn replays_are_exact(device: &Device) -> Result<()> {
    let replays = match device.kind() {
        BackendKind::Cpu => 2_000,
        BackendKind::Cuda => 10_000,
    };
    world::run(device.kind(), 2, move |rank| {
        let collectives = Collectives::new(&rank.communicator)?;
        let count = 509u64;
        let memory = Memory::symmetric(&collectives, 4096)?;
        let (input, output) = (&memory.input, &memory.output);
        let graph = rank.stream.capture(|stream| {
            collectives.all_reduce(input, output, count, DataType::F32, ReduceOp::Sum, stream)
        })?;
        let exec = graph.instantiate()?;
        rank.barrier()?;
        for seed in 0..replays {
            let own = encode((0..count).map(|i| value(rank.rank, i, seed)), DataType::F32);
            let sums = (0..count).map(|i| expected(rank.ranks, i, seed, ReduceOp::Sum));
            let wanted = encode(sums, DataType::F32);
            input.write(&rank.stream, 0, &own)?;
            exec.launch(&rank.stream)?;
            let mut got = vec![0; wanted.len()];
            output.read(&rank.stream, 0, &mut got)?;
            anyhow::ensure!(got == wanted, "replay {seed} is wrong");
        }
        rank.finish()
    })
}

/// Around the lap of the 32-bit flags: 20 calls before it and 20 after, long and short messages in
/// turn, launched and replayed from a graph.
pub(crate) fn flags_survive_the_lap(device: &Device) -> Result<()> {
    for algorithm in AllReduce::ALL {
        for ranks in [2, 3] {
            world::run(device.kind(), ranks, move |rank| {
                let collectives = rank.only(algorithm, partner(algorithm))?;
                let memory = Memory::symmetric(&collectives, MOST)?;
                // In the second lap of each pair the slots hold flags of the same calls a lap ago, with
                // other data: a flag that was not cleaned away lets old data pass.
                for (lap, replayed) in [(0u64, false), (1, false), (2, true), (3, true)] {
                    collectives.set_epochs((lap << 32) + u32::MAX as u64 - 20)?;
                    calls_around_the_lap(rank, &collectives, &memory, lap, replayed)?;
                }
                Ok(())
            })
            .with_context(|| algorithm.name())?;
        }
    }
    Ok(())
}

fn calls_around_the_lap(
    rank: &Rank,
    collectives: &Collectives,
    memory: &Memory,
    lap: u64,
    replayed: bool,
) -> Result<()> {
    let (data_type, op) = (DataType::I32, ReduceOp::Sum);
    let (input, output) = (&memory.input, &memory.output);
    let capture = |count| -> Result<_> {
        let graph = rank.stream.capture(|stream| {
            collectives.all_reduce(input, output, count, data_type, op, stream)
        })?;
        Ok(graph.instantiate()?)
    };
    let counts = [16u64, 9_000];
    let graphs = if replayed { Some([capture(counts[0])?, capture(counts[1])?]) } else { None };
    rank.barrier()?;
    for call in 0..40u64 {
        // Long ones are rare, so that most of their slots are untouched for long.
        let which = (call % 7 == 3) as usize;
        let count = counts[which];
        let own = encode((0..count).map(|i| value(rank.rank, i, call + 50 * lap)), data_type);
        let sums = (0..count).map(|i| expected(rank.ranks, i, call + 50 * lap, op));
        let wanted = encode(sums, data_type);
        input.write(&rank.stream, 0, &own)?;
        match &graphs {
            Some(graphs) => graphs[which].launch(&rank.stream)?,
            None => collectives.all_reduce(input, output, count, data_type, op, &rank.stream)?,
        }
        let mut got = vec![0; wanted.len()];
        output.read(&rank.stream, 0, &mut got)?;
        anyhow::ensure!(got == wanted, "call {call} of {count} elements, replayed {replayed}");
    }
    rank.finish()
}

/// Many calls without waiting between them, of all sizes, on two streams in turn.
pub(crate) fn calls_follow_each_other(device: &Device) -> Result<()> {
    world::run(device.kind(), 3, |rank| {
        let collectives = Collectives::new(&rank.communicator)?;
        let other = rank.device().create_stream()?;
        let total = 1u64 << 16;
        let memory = Memory::symmetric(&collectives, 4 * total)?;
        let (input, output) = (&memory.input, &memory.output);
        let own = encode((0..total).map(|_| rank.rank as i64 + 1), DataType::U32);
        input.write(&rank.stream, 0, &own)?;
        rank.stream.synchronize()?;
        // 1 + 2 + 3 = 6 after the first call; each later one in place multiplies by the rank count.
        let mut wanted = 6u64;
        collectives.all_reduce(input, output, total, DataType::U32, ReduceOp::Sum, &rank.stream)?;
        for call in 0..12 {
            let stream = if call % 2 == 0 { &other } else { &rank.stream };
            let count = total >> (call % 4 * 3);
            collectives.all_reduce(output, output, count, DataType::U32, ReduceOp::Max, stream)?;
            collectives.all_reduce(output, output, total, DataType::U32, ReduceOp::Sum, stream)?;
            wanted = wanted.wrapping_mul(3) & u32::MAX as u64;
        }
        rank.communicator.synchronize(&other)?;
        rank.finish()?;
        let mut got = vec![0; 4 * total as usize];
        output.read(&rank.stream, 0, &mut got)?;
        let all = encode((0..total).map(|_| wanted as i64), DataType::U32);
        anyhow::ensure!(got == all, "a call overtook another");
        Ok(())
    })
}

/// The comparison of these checks sees a single wrong byte.
pub(crate) fn an_injected_fault_is_seen(device: &Device) -> Result<()> {
    world::run(device.kind(), 2, |rank| {
        let buffer = rank.device().alloc(4096, MemoryKind::Plain)?;
        let part = Guarded::new(buffer.clone(), 16, 64);
        let data = encode((0..16).map(|i| value(0, i, 1)), DataType::F32);
        part.set(&rank.stream, &data)?;
        part.check(&rank.stream, &data, "untouched")?;
        for at in [16, 79, 15, 80] {
            part.set(&rank.stream, &data)?;
            buffer.write(&rank.stream, at, &[0x77])?;
            let seen = part.check(&rank.stream, &data, "touched").is_err();
            anyhow::ensure!(seen, "a wrong byte at {at} was not seen");
        }
        Ok(())
    })
}

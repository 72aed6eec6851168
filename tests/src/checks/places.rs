//! Memory may be of any kind, anywhere, and differ from rank to rank; one rank alone copies.

use anyhow::{Context, Result, ensure};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp};
use mscclrs_gpu::{BackendKind, Buffer, Device, MemoryKind};

use super::collectives::{gather_once, reduce_once};
use crate::memory::{Memory, kind_of};
use crate::world::{self, Rank};

const MOST: u64 = 5 * 4 * 5000 + 64;

/// A communicator of one rank: copies, launched and captured.
pub(crate) fn one_rank(device: &Device) -> Result<()> {
    world::run(device.kind(), 1, |rank| {
        let collectives = Collectives::new(&rank.communicator)?;
        let mut memories = vec![Memory::symmetric(&collectives, MOST)?];
        for kind in 0..3 {
            let alloc = || rank.device().alloc(MOST, kind_of(kind));
            memories.push(Memory::of(alloc()?, alloc()?));
        }
        let name = |memory: &Memory| {
            let (input, output) = (memory.input.address(), memory.output.address());
            let sum = ReduceOp::Sum;
            (
                collectives.all_reduce_algorithm(input, output, 4, DataType::F32, sum),
                collectives.all_gather_algorithm(input, output, 4, DataType::F32),
            )
        };
        for (which, memory) in (0u64..).zip(&memories) {
            ensure!(name(memory) == ("copy", "copy"), "one rank uses {:?}", name(memory));
            for count in [0, 1, 3, 1000, 5000] {
                for in_place in [false, true] {
                    let kind = (DataType::Bf16, ReduceOp::Max);
                    let offsets = (2 * which + 2, 16);
                    reduce_once(rank, &collectives, memory, offsets, in_place, count, kind, which)?;
                    gather_once(rank, &collectives, [memory, memory], count, which + count)?;
                }
            }
        }
        replayed_copy(rank, &collectives, &memories[1])
    })
}

fn replayed_copy(rank: &Rank, collectives: &Collectives, memory: &Memory) -> Result<()> {
    let (input, output) = (&memory.input, &memory.output);
    let graph = rank.stream.capture(|stream| {
        collectives.all_reduce(input, output, 16, DataType::F32, ReduceOp::Sum, stream)
    })?;
    let exec = graph.instantiate()?;
    for round in 0..3u8 {
        input.write(&rank.stream, 0, &[round; 64])?;
        exec.launch(&rank.stream)?;
        let mut got = [0xff; 64];
        output.read(&rank.stream, 0, &mut got)?;
        ensure!(got == [round; 64], "replay {round} did not copy");
    }
    rank.finish()
}

/// Every rank has input and output of other kinds, at other alignments; some are registered, which
/// some ranks can share and others cannot.
pub(crate) fn mixed(device: &Device) -> Result<()> {
    let counts: &[u64] = match device.kind() {
        BackendKind::Cpu => &[1, 63, 512, 4999],
        BackendKind::Cuda => &[1, 2, 63, 64, 512, 1023, 4999],
    };
    for ranks in [2, 3, 5] {
        world::run(device.kind(), ranks, move |rank| {
            let all = rank.every_algorithm()?;
            let alloc = |index| rank.device().alloc(MOST, kind_of(rank.rank as u64 + index));
            let inputs = (0..3).map(alloc).collect::<Result<Vec<Buffer>, _>>()?;
            let outputs = (1..4).map(alloc).collect::<Result<Vec<Buffer>, _>>()?;
            rank.barrier()?;
            for (algorithm, collectives) in &all {
                register(rank, *algorithm, collectives, &inputs[0], &outputs[0])?;
                for (seed, count) in (0u64..).zip(counts.iter().cycle().take(3 * counts.len())) {
                    let pick = |of: &[Buffer], by| of[by as usize % 3].clone();
                    let memory = Memory::of(pick(&inputs, seed), pick(&outputs, seed / 3));
                    let kind = match seed % 2 {
                        0 => (DataType::F16, ReduceOp::Sum),
                        _ => (DataType::F32, ReduceOp::Min),
                    };
                    let size = kind.0.size() as u64;
                    let offsets =
                        (size * (rank.rank as u64 + seed) % 32, size * rank.rank as u64 * 3 % 32);
                    let in_place = seed % 4 == 3;
                    reduce_once(rank, collectives, &memory, offsets, in_place, *count, kind, seed)
                        .with_context(|| algorithm.name())?;
                    gather_once(rank, collectives, [&memory, &memory], *count, seed)
                        .with_context(|| algorithm.name())?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Registers for zero copy what is of another kind on every rank: all agree whether it is possible.
fn register(
    rank: &Rank,
    algorithm: AllReduce,
    collectives: &Collectives,
    input: &Buffer,
    output: &Buffer,
) -> Result<()> {
    if algorithm != AllReduce::Direct {
        return Ok(());
    }
    let (input, output) = (collectives.register(input)?, collectives.register(output)?);
    let mapped = [input.is_mapped() as u8, output.is_mapped() as u8];
    let all = rank.communicator.bootstrap().all_gather(&mapped)?;
    ensure!(all.iter().all(|theirs| *theirs == mapped), "ranks disagree: {all:?}");
    // Offsets in registrations have to be equal on all ranks, and here they are not.
    collectives.deregister(&input)?;
    collectives.deregister(&output)?;
    Ok(())
}

/// Memory of every kind, registered where it is the same kind on all ranks: zero copy or not, right.
pub(crate) fn registered(device: &Device) -> Result<()> {
    for ranks in [2, 3] {
        world::run(device.kind(), ranks, move |rank| {
            let collectives = rank.only(AllReduce::Direct, AllGather::Direct)?;
            for (index, kind) in
                [MemoryKind::Plain, MemoryKind::Shareable, MemoryKind::Host].into_iter().enumerate()
            {
                let alloc = || rank.device().alloc(MOST, kind);
                let memory = Memory::of(alloc()?, alloc()?);
                let input = collectives.register(&memory.input)?;
                let output = collectives.register(&memory.output)?;
                for seed in 0..6 {
                    let kind = (DataType::F32, ReduceOp::Sum);
                    let (count, seed) = (1 + 999 * seed, seed + 10 * index as u64);
                    let in_place = seed % 2 == 1;
                    let offsets = (16 + 4 * (seed % 4), 32);
                    reduce_once(rank, &collectives, &memory, offsets, in_place, count, kind, seed)
                        .with_context(|| format!("{:?}", input.why_not_mapped()))?;
                }
                collectives.deregister(&input)?;
                collectives.deregister(&output)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Ranks that share one device, with the built-in table: their kernels fit on it together.
pub(crate) fn shared_device(device: &Device) -> Result<()> {
    for ranks in [2, 4] {
        world::run_shared(device.kind(), ranks, move |rank| {
            ensure!(rank.communicator.shares_device(), "the ranks have devices of their own");
            let collectives = Collectives::new(&rank.communicator)?;
            let memory = Memory::symmetric(&collectives, 1 << 20)?;
            for (seed, count) in (0u64..).zip([1, 100, 5000, 40_000, 200_000]) {
                let kind = (DataType::F32, ReduceOp::Sum);
                reduce_once(rank, &collectives, &memory, (16, 32), false, count, kind, seed)?;
                let part = count / ranks as u64;
                gather_once(rank, &collectives, [&memory, &memory], part, seed)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

//! A graph keeps what its calls need, and nothing else does when it is gone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp};
use mscclrs_gpu::{BackendKind, Buffer, Device, GraphExec, MemoryKind};

use crate::memory::{Memory, kind_of, same};
use crate::values::{encode, expected, value};
use crate::world::{self, Rank, partner};

/// Large enough to be missed if it is not freed.
const BYTES: u64 = 8 << 20;
const COUNT: u64 = 3000;

/// What is captured is used by replays alone: collectives, buffers and registrations are dropped
/// before. When the graph is dropped too, the memory is back.
pub(crate) fn outlive(device: &Device) -> Result<()> {
    for (algorithm, registered) in [
        (AllReduce::Direct, true),
        (AllReduce::Mesh, false),
        (AllReduce::OneShotLl8, false),
        (AllReduce::TwoShotLl16, true),
    ] {
        world::run(device.kind(), 2, move |rank| {
            let host = rank.device().alloc(4 * 4 * COUNT, MemoryKind::Host)?;
            // What a driver makes once and keeps is there after some rounds.
            let mut before = 0;
            for round in 0..5 {
                if round == 3 {
                    before = settled(rank, 0)?;
                }
                let exec = captured(rank, algorithm, registered, &host)?;
                rank.barrier()?;
                for seed in 0..3 {
                    replay(rank, &exec, &host, seed).with_context(|| algorithm.name())?;
                }
                rank.barrier()?;
            }
            let after = settled(rank, before)?;
            // A driver takes and gives in pieces of some MiB.
            let slack = if rank.device().kind() == BackendKind::Cpu { 0 } else { 6 << 20 };
            ensure!(
                after + slack >= before,
                "{}: {} bytes of the device are not back",
                algorithm.name(),
                before - after
            );
            Ok(())
        })?;
    }
    Ok(())
}

/// A graph that takes its input from `host` and brings its results there; nothing else that it uses
/// is left but in it.
fn captured(
    rank: &Rank,
    algorithm: AllReduce,
    registered: bool,
    host: &Buffer,
) -> Result<GraphExec> {
    let collectives = rank.only(algorithm, partner(algorithm))?;
    let memory = match registered {
        true => Memory::symmetric(&collectives, BYTES)?,
        false => {
            let alloc = || rank.device().alloc(BYTES, kind_of(rank.rank as u64));
            Memory::of(alloc()?, alloc()?)
        }
    };
    let (input, output) = (&memory.input, &memory.output);
    let bytes = 4 * COUNT;
    let graph = rank.stream.capture(|stream| -> Result<()> {
        // SAFETY: `host` outlives the graph, which keeps the other buffers for the calls below.
        unsafe { stream.copy(input.address(), host.address(), bytes)? };
        reduce(&collectives, input, output, stream)?;
        // SAFETY: as above.
        unsafe { stream.copy(host.address() + bytes, output.address(), bytes)? };
        collectives.all_gather(input, output, COUNT, DataType::F32, stream)?;
        // SAFETY: as above.
        unsafe { stream.copy(host.address() + 2 * bytes, output.address(), 2 * bytes)? };
        Ok(())
    })?;
    Ok(graph.instantiate()?)
}

fn reduce(
    collectives: &Collectives,
    input: &Buffer,
    output: &Buffer,
    stream: &mscclrs_gpu::Stream,
) -> Result<()> {
    let (data_type, op) = (DataType::F32, ReduceOp::Sum);
    Ok(collectives.all_reduce(input, output, COUNT, data_type, op, stream)?)
}

fn replay(rank: &Rank, exec: &GraphExec, host: &Buffer, seed: u64) -> Result<()> {
    let of = |r: u32| encode((0..COUNT).map(|i| value(r, i, seed)), DataType::F32);
    host.write(&rank.stream, 0, &of(rank.rank))?;
    rank.communicator.launch_graph(exec, &rank.stream)?;
    rank.finish()?;
    let mut got = vec![0; 3 * 4 * COUNT as usize];
    host.read(&rank.stream, 4 * COUNT, &mut got)?;
    let sums = (0..COUNT).map(|i| expected(rank.ranks, i, seed, ReduceOp::Sum));
    let wanted = [encode(sums, DataType::F32), of(0), of(1)].concat();
    same(&got, &wanted, "allreduce and allgather of a graph")
}

/// Free bytes of the device, once they are `wanted` or do not change any more.
fn settled(rank: &Rank, wanted: u64) -> Result<u64> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut last = 0;
    let mut still = 0;
    loop {
        rank.communicator.reclaim()?;
        let (free, _) = rank.device().memory()?;
        still = if free == last { still + 1 } else { 0 };
        last = free;
        let done = (free >= wanted && still >= 3) || Instant::now() > deadline;
        // Ranks that share a device look at it together, when none makes anything.
        let all = rank.communicator.bootstrap().all_gather(&[done as u8])?;
        if all.iter().all(|done| done[0] == 1) {
            return Ok(free);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An allgather alone, whose one buffer the graph keeps.
pub(crate) fn in_place(device: &Device) -> Result<()> {
    world::run(device.kind(), 3, |rank| {
        let collectives = rank.only(AllReduce::Mesh, AllGather::PacketLl8)?;
        let memory = rank.device().alloc(3 * 64, MemoryKind::Plain)?;
        let host = rank.device().alloc(64 + 3 * 64, MemoryKind::Host)?;
        let own = memory.address() + 64 * rank.rank as u64;
        let graph = rank.stream.capture(|stream| -> Result<()> {
            stream.retain(std::sync::Arc::new(memory.clone()))?;
            // SAFETY: the graph keeps `memory`, and `host` outlives it.
            unsafe {
                stream.copy(own, host.address(), 64)?;
                collectives.all_gather_raw(own, memory.address(), 16, DataType::U32, stream)?;
                stream.copy(host.address() + 64, memory.address(), 3 * 64)?;
            }
            Ok(())
        })?;
        let exec = graph.instantiate()?;
        drop((graph, collectives, memory));
        rank.barrier()?;
        for round in 0..20u8 {
            host.write(&rank.stream, 0, &[round + 50 * rank.rank as u8; 64])?;
            exec.launch(&rank.stream)?;
            rank.finish()?;
            let mut got = vec![0; 3 * 64];
            host.read(&rank.stream, 64, &mut got)?;
            let wanted = [[round; 64], [round + 50; 64], [round + 100; 64]].concat();
            same(&got, &wanted, "a replayed allgather in place")?;
        }
        Ok(())
    })
}

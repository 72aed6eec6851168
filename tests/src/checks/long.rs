//! Long messages: several rounds through scratch, and more bytes than 32 bits count.

use anyhow::{Context, Result, ensure};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp, Shape, Tuning};
use mscclrs_gpu::{Buffer, Device};

use crate::memory::{Memory, same};
use crate::values::{encode, expected, value};
use crate::world::{self, Rank};

const WIDE: Shape = Shape { blocks: 32, threads: 256 };

/// Elements of the pattern that repeats in long messages: a prime, so that no power of two bytes away
/// looks alike.
const PERIOD: u64 = 1_048_583;

fn collectives(rank: &Rank, reduce: AllReduce, gather: AllGather) -> Result<Collectives> {
    let tuning = Tuning::only(reduce, gather, WIDE);
    Ok(Collectives::with_tuning(&rank.communicator, tuning)?)
}

/// Messages of several rounds through the scratch of mesh, and short ones in between.
pub(crate) fn rounds(device: &Device) -> Result<()> {
    for ranks in [2, 3] {
        world::run(device.kind(), ranks, move |rank| {
            let collectives = collectives(rank, AllReduce::Mesh, AllGather::Mesh)?;
            let most = 21 << 20;
            let memory = Memory::symmetric(&collectives, most)?;
            // A part of a round, several rounds and a rest, exactly two, one and a bit.
            for (seed, bytes) in (0u64..).zip([1000, 20 << 20, 16 << 20, (8 << 20) + 4]) {
                let message = Message::new(rank, bytes / 4, 1, seed);
                message.reduce(rank, &collectives, &memory)?;
                let message = Message::new(rank, bytes / 4 / ranks as u64, ranks, seed + 10);
                message.gather(rank, &collectives, &memory)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// One message of more than 4 GiB for each algorithm that has no limit, with kernels for aligned
/// lengths and for any.
pub(crate) fn beyond_4_gib(device: &Device) -> Result<()> {
    let ways = [(AllReduce::Direct, AllGather::Direct), (AllReduce::Mesh, AllGather::Mesh)];
    world::run(device.kind(), 2, move |rank| {
        let longest = (4u64 << 30) + (48 << 20) + 16;
        let all = ways.map(|(reduce, gather)| collectives(rank, reduce, gather));
        let [direct, mesh] = all;
        let all = [direct?, mesh?];
        let input = rank.communicator.alloc(longest)?;
        let output = rank.communicator.alloc(2 * longest)?;
        for collectives in &all {
            collectives.register(input.buffer())?;
            collectives.register(output.buffer())?;
        }
        let memory = Memory::of(input.buffer().clone(), output.buffer().clone());
        for (collectives, way) in all.iter().zip(ways) {
            for (seed, bytes) in [(1, longest), (2, longest - 4)] {
                let what = || format!("{} and {} of {bytes} bytes", way.0.name(), way.1.name());
                let message = Message::new(rank, bytes / 4, 1, seed);
                message.reduce(rank, collectives, &memory).with_context(what)?;
                let message = Message::new(rank, bytes / 4, 2, seed + 10);
                message.gather(rank, collectives, &memory).with_context(what)?;
            }
        }
        Ok(())
    })
}

/// A message of f32 that repeats a pattern; what it becomes repeats one too.
struct Message {
    count: u64,
    /// Ranks whose patterns lie one after the other in the result of a gather.
    parts: u32,
    seed: u64,
    own: Vec<u8>,
}

impl Message {
    fn new(rank: &Rank, count: u64, parts: u32, seed: u64) -> Message {
        let own = pattern(count, |i| value(rank.rank, i, seed));
        Message { count, parts, seed, own }
    }

    fn reduce(&self, rank: &Rank, collectives: &Collectives, memory: &Memory) -> Result<()> {
        let (input, output) = (&memory.input, &memory.output);
        self.begin(rank, memory)?;
        let op = ReduceOp::Sum;
        collectives.all_reduce(input, output, self.count, DataType::F32, op, &rank.stream)?;
        rank.finish()?;
        let sums = pattern(self.count, |i| expected(rank.ranks, i, self.seed, op));
        compare(rank, output, 0, 4 * self.count, &sums)
            .with_context(|| format!("allreduce of {} elements", self.count))
    }

    fn gather(&self, rank: &Rank, collectives: &Collectives, memory: &Memory) -> Result<()> {
        let (input, output) = (&memory.input, &memory.output);
        self.begin(rank, memory)?;
        collectives.all_gather(input, output, self.count, DataType::F32, &rank.stream)?;
        rank.finish()?;
        for part in 0..self.parts {
            let theirs = pattern(self.count, |i| value(part, i, self.seed));
            let at = part as u64 * 4 * self.count;
            compare(rank, output, at, 4 * self.count, &theirs).with_context(|| {
                format!("allgather of {} elements, part of rank {part}", self.count)
            })?;
        }
        Ok(())
    }

    /// Fills the input with the pattern and the output with something else. Then all ranks meet: a
    /// peer's kernel may write this rank's output.
    fn begin(&self, rank: &Rank, memory: &Memory) -> Result<()> {
        memory.output.fill(&rank.stream, 0xee)?;
        memory.input.write(&rank.stream, 0, &self.own)?;
        let (address, total) = (memory.input.address(), 4 * self.count);
        let mut done = self.own.len() as u64;
        while done < total {
            let next = done.min(total - done);
            // SAFETY: both ranges lie in the input, one after the other.
            unsafe { rank.stream.copy(address + done, address, next)? };
            done += next;
        }
        rank.finish()?;
        rank.barrier()
    }
}

/// One period, or less where the message is shorter.
fn pattern(count: u64, value: impl Fn(u64) -> i64) -> Vec<u8> {
    encode((0..count.min(PERIOD)).map(value), DataType::F32)
}

/// Compares all of it, a period at a time.
fn compare(rank: &Rank, output: &Buffer, from: u64, bytes: u64, wanted: &[u8]) -> Result<()> {
    ensure!(!wanted.is_empty(), "nothing to compare with");
    let mut part = vec![0; wanted.len()];
    let mut at = 0;
    while at < bytes {
        let length = (bytes - at).min(part.len() as u64) as usize;
        output.read(&rank.stream, from + at, &mut part[..length])?;
        same(&part[..length], &wanted[..length], &format!("from byte {at}"))?;
        at += length as u64;
    }
    Ok(())
}

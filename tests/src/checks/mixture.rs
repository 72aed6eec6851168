//! Every algorithm after every other on one communicator, with no wait between them.

use std::sync::Arc;

use anyhow::{Context, Result};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp};
use mscclrs_core::SymmetricBuffer;
use mscclrs_gpu::{BackendKind, Device, Stream};

use crate::memory::same;
use crate::values::{Random, encode, expected, value};
use crate::world::{self, Rank};

/// Bytes of the inputs.
const INPUT: u64 = 96 << 10;
/// Bytes of the outputs; calls write to places in it that overlap now and then.
const OUTPUT: u64 = 3 << 20;
/// Calls without a wait.
const CALLS: usize = 300;
/// The algorithms, and one that chooses by its table.
const WAYS: usize = AllReduce::ALL.len() + 1;

/// One call; the same on every rank.
#[derive(Clone, Copy, Debug)]
struct Call {
    way: usize,
    gathers: bool,
    data_type: DataType,
    op: ReduceOp,
    from: u64,
    to: u64,
    count: u64,
}

/// Calls in which every way follows every way.
fn calls(ranks: u32, total: usize, seed: u64) -> Vec<Call> {
    let mut random = Random::new(seed);
    let pairs = (0..WAYS).flat_map(|a| (0..WAYS).flat_map(move |b| [a, b])).cycle();
    let call = |way| {
        let data_type = DataType::ALL[random.below(5) as usize];
        let gathers = random.below(4) == 0;
        let size = data_type.size() as u64;
        // Short ones are as likely as long ones; 16 bytes fit both kinds of kernels.
        let most = (INPUT / 2 / if gathers { ranks as u64 } else { 1 }) >> random.below(12);
        let unit = if random.below(2) == 0 { 16 } else { size };
        let bytes = unit + random.below(most) / unit * unit;
        let length = bytes * if gathers { ranks as u64 } else { 1 };
        Call {
            way,
            gathers,
            data_type,
            op: ReduceOp::ALL[random.below(3) as usize],
            from: random.below(INPUT - bytes) / unit * unit,
            to: random.below(OUTPUT - length) / unit * unit,
            count: bytes / size,
        }
    };
    pairs.map(call).take(total).collect()
}

impl Call {
    /// What it does to the output, given what it held. All inputs hold elements of `input`.
    fn apply(&self, ranks: u32, seed: u64, output: &mut [u8]) {
        let size = self.data_type.size() as usize;
        let first = self.from / size as u64;
        let of = |rank: u32| (first..first + self.count).map(move |i| value(rank, i, seed));
        let bytes = if self.gathers {
            encode((0..ranks).flat_map(of), self.data_type)
        } else {
            let all = (first..first + self.count).map(|i| expected(ranks, i, seed, self.op));
            encode(all, self.data_type)
        };
        output[self.to as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
}

/// Inputs of each type one after the other, and one output.
struct Setup {
    ways: Vec<Collectives>,
    inputs: Vec<SymmetricBuffer>,
    output: SymmetricBuffer,
}

impl Setup {
    fn new(rank: &Rank) -> Result<Setup> {
        let mut ways: Vec<Collectives> =
            rank.every_algorithm()?.into_iter().map(|(_, collectives)| collectives).collect();
        ways.push(Collectives::new(&rank.communicator)?);
        let alloc = |bytes| rank.communicator.alloc(bytes);
        let inputs = DataType::ALL.into_iter().map(|_| alloc(INPUT)).collect::<Result<_, _>>()?;
        let setup = Setup { ways, inputs, output: alloc(OUTPUT)? };
        for way in &setup.ways {
            for buffer in setup.inputs.iter().chain([&setup.output]) {
                way.register(buffer.buffer())?;
            }
        }
        Ok(setup)
    }

    /// Writes the inputs of a seed and clears the output; then all ranks meet.
    fn begin(&self, rank: &Rank, seed: u64) -> Result<()> {
        for (input, data_type) in self.inputs.iter().zip(DataType::ALL) {
            let count = INPUT / data_type.size() as u64;
            let own = encode((0..count).map(|i| value(rank.rank, i, seed)), data_type);
            input.buffer().write(&rank.stream, 0, &own)?;
        }
        self.output.buffer().fill(&rank.stream, 0)?;
        rank.finish()?;
        rank.barrier()
    }

    fn enqueue(&self, call: &Call, stream: &Stream) -> mscclrs_collectives::Result<()> {
        let Call { data_type, op, count, .. } = *call;
        let input = &self.inputs[data_type as usize];
        let from = input.buffer().address() + call.from;
        let to = self.output.buffer().address() + call.to;
        let way = &self.ways[call.way];
        // SAFETY: `calls` keeps both ranges in their buffers, which live until the stream is done.
        unsafe {
            match call.gathers {
                true => way.all_gather_raw(from, to, count, data_type, stream),
                false => way.all_reduce_raw(from, to, count, data_type, op, stream),
            }
        }
    }

    fn compare(&self, rank: &Rank, calls: &[Call], seed: u64) -> Result<()> {
        let mut wanted = vec![0; OUTPUT as usize];
        calls.iter().for_each(|call| call.apply(rank.ranks, seed, &mut wanted));
        let mut got = vec![0; OUTPUT as usize];
        self.output.buffer().read(&rank.stream, 0, &mut got)?;
        same(&got, &wanted, "the outputs").with_context(|| match differing(calls, &got, &wanted) {
            Some((index, call)) => format!("call {index}: {call:?}"),
            None => "no call wrote there".into(),
        })
    }
}

/// The last call that wrote to the first byte that differs.
fn differing<'a>(calls: &'a [Call], got: &[u8], wanted: &[u8]) -> Option<(usize, &'a Call)> {
    let at = got.iter().zip(wanted).position(|(a, b)| a != b)? as u64;
    let wrote = |call: &Call| (call.to..call.to + call.count * 4 * 8).contains(&at);
    calls.iter().enumerate().rfind(|(_, call)| wrote(call))
}

/// Calls launched one after the other, three times.
pub(crate) fn launched(device: &Device) -> Result<()> {
    for ranks in [2, 3] {
        let calls = Arc::new(calls(ranks, CALLS, ranks as u64));
        world::run(device.kind(), ranks, move |rank| {
            let setup = Setup::new(rank)?;
            for seed in 0..3 {
                setup.begin(rank, seed)?;
                calls.iter().try_for_each(|call| setup.enqueue(call, &rank.stream))?;
                rank.finish()?;
                setup.compare(rank, &calls, seed)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Twenty calls in one graph, replayed without waits; several such graphs with other calls.
pub(crate) fn replayed(device: &Device) -> Result<()> {
    for ranks in [2, 3] {
        let all: Vec<Vec<Call>> =
            calls(ranks, CALLS, 7).chunks(20).map(<[Call]>::to_vec).step_by(2).collect();
        let all = Arc::new(all);
        world::run(device.kind(), ranks, move |rank| {
            let setup = Setup::new(rank)?;
            let capture = |calls: &Vec<Call>| -> Result<_> {
                let graph = rank.stream.capture(|stream| {
                    calls.iter().try_for_each(|call| setup.enqueue(call, stream))
                })?;
                Ok(graph.instantiate()?)
            };
            let graphs = all.iter().map(capture).collect::<Result<Vec<_>>>()?;
            for (seed, (graph, calls)) in (0u64..).zip(graphs.iter().zip(all.iter())) {
                setup.begin(rank, seed)?;
                for _ in 0..15 {
                    rank.communicator.launch_graph(graph, &rank.stream)?;
                }
                rank.finish()?;
                setup.compare(rank, calls, seed)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Two communicators of the same ranks, calls in turn: on a stream each, and on one stream.
pub(crate) fn communicators(device: &Device) -> Result<()> {
    let total = match device.kind() {
        BackendKind::Cpu => 100,
        BackendKind::Cuda => CALLS,
    };
    let calls = [1, 2].map(|seed| Arc::new(calls(3, total, seed)));
    world::run_groups(device.kind(), 3, 2, move |ranks| {
        let [first, second] = ranks else { anyhow::bail!("two communicators") };
        let few = |rank: &Rank| -> Result<Setup> {
            let mut setup = Setup::new(rank)?;
            // Kernels of both run at once: the table's own shapes could fill a shared device.
            setup.ways[WAYS - 1] = rank.only(AllReduce::Direct, AllGather::Mesh)?;
            Ok(setup)
        };
        let setups = [few(first)?, few(second)?];
        for (seed, shared) in [(0, false), (1, true)] {
            setups[0].begin(first, seed)?;
            setups[1].begin(second, seed + 5)?;
            let stream = if shared { &first.stream } else { &second.stream };
            for (one, other) in calls[0].iter().zip(calls[1].iter()) {
                setups[0].enqueue(one, &first.stream)?;
                setups[1].enqueue(other, stream)?;
            }
            first.finish()?;
            second.finish()?;
            setups[0].compare(first, &calls[0], seed)?;
            setups[1].compare(second, &calls[1], seed + 5)?;
        }
        Ok(())
    })
}

//! Allreduce: from a call to a launch.

use mscclrs_device::{DataType, Epochs, Global, KernelArgs, MAX_BLOCKS, ReduceOp};
use mscclrs_gpu::{Grid, Stream};
use mscclrs_kernels::allreduce::{
    direct::DirectArgs, mesh::MeshArgs, one_shot::OneShotArgs, push::PushArgs,
    two_shot::TwoShotArgs,
};

use crate::collectives::Inner;
use crate::context::{Scratch, every_rank, pointer_array};
use crate::kernels::{Instances, Ready};
use crate::registry::Registry;
use crate::tuning::{Rule, choose};
use crate::{AllReduce, Result, Shape};

/// Most bytes of one launch: 2^31 units of 16 bytes.
const MOST_A_LAUNCH: u64 = 32 << 30;

/// One call, its arguments checked.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) bytes: u64,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
}

impl Call {
    fn is_aligned(&self, unit: u64) -> bool {
        (self.input | self.output | self.bytes) & (unit - 1) == 0
    }
}

/// The rule for a call, with what it comes down to for its memory.
pub(crate) fn select(inner: &Inner, registry: &Registry, call: Call) -> Rule<AllReduce> {
    let mut rule = choose(&inner.tuning.all_reduce, call.bytes).unwrap_or(Rule {
        up_to: u64::MAX,
        algorithm: AllReduce::Mesh,
        shape: Shape { blocks: 16, threads: 256 },
    });
    // What is not there for this rank count is replaced, on every rank alike.
    rule.algorithm = match rule.algorithm {
        AllReduce::Direct if !is_registered(inner, registry, call) => AllReduce::Mesh,
        AllReduce::OneShotLl8 if inner.context.one_shot.is_none() => AllReduce::TwoShotLl8,
        AllReduce::OneShotLl16 if inner.context.one_shot.is_none() => AllReduce::TwoShotLl16,
        AllReduce::Push if inner.context.push.is_none() => AllReduce::Mesh,
        algorithm => algorithm,
    };
    rule
}

fn is_registered(inner: &Inner, registry: &Registry, call: Call) -> bool {
    inner.ranks as usize <= mscclrs_kernels::ranks::INLINE_RANKS
        && registry.find(call.input, call.bytes).is_some()
        && registry.find(call.output, call.bytes).is_some()
}

pub(crate) fn launch(
    inner: &Inner,
    registry: &Registry,
    mut call: Call,
    stream: &Stream,
) -> Result<()> {
    while call.bytes > MOST_A_LAUNCH {
        launch_one(inner, registry, Call { bytes: MOST_A_LAUNCH, ..call }, stream)?;
        call.input += MOST_A_LAUNCH;
        call.output += MOST_A_LAUNCH;
        call.bytes -= MOST_A_LAUNCH;
    }
    launch_one(inner, registry, call, stream)
}

fn launch_one(inner: &Inner, registry: &Registry, call: Call, stream: &Stream) -> Result<()> {
    let rule = select(inner, registry, call);
    let shape = inner.agreed.fit(rule.shape);
    let context = &*inner.context;
    let kernels = &context.kernels;
    let packets = context.one_shot.as_ref().and_then(|packets| packets.scratch(call.bytes));
    match (rule.algorithm, packets, &context.push) {
        (AllReduce::OneShotLl8, Some(scratch), _) => {
            one_shot(inner, call, 1, scratch, &kernels.one_shot_ll8, shape, stream)
        }
        (AllReduce::OneShotLl16, Some(scratch), _) => {
            one_shot(inner, call, 2, scratch, &kernels.one_shot_ll16, shape, stream)
        }
        (AllReduce::TwoShotLl8, ..) => {
            two_shot(inner, call, 1, &kernels.two_shot_ll8, shape, stream)
        }
        (AllReduce::TwoShotLl16, ..) => {
            two_shot(inner, call, 2, &kernels.two_shot_ll16, shape, stream)
        }
        (AllReduce::Push, _, Some(scratch)) => push(inner, call, scratch, shape, stream),
        (AllReduce::Direct, ..) => direct(inner, registry, call, shape, stream),
        _ => mesh(inner, call, shape, stream),
    }
}

/// A shape with no more lanes than there are packets.
pub(crate) fn packet_shape(shape: Shape, packets: u64) -> Shape {
    let threads = (packets.next_multiple_of(32)).min(shape.threads as u64) as u32;
    let blocks = packets.div_ceil(threads as u64).min(shape.blocks as u64) as u32;
    Shape { blocks, threads }
}

pub(crate) fn enqueue<A: KernelArgs>(
    stream: &Stream,
    ready: &Ready,
    shape: Shape,
    args: &A,
) -> Result<()> {
    let function = &ready.function;
    let threads = shape.threads.min(function.kernel().max_threads);
    // SAFETY: the scratch is held by the communicator, or by the graph that captures this; the
    // caller's buffers are mapped by the promise of the public call.
    unsafe { stream.launch(function, Grid::new(shape.blocks, threads), args)? };
    Ok(())
}

fn one_shot(
    inner: &Inner,
    call: Call,
    words: u64,
    scratch: &Scratch,
    kernels: &Instances,
    shape: Shape,
    stream: &Stream,
) -> Result<()> {
    let unit = 4 * words;
    let packets = call.bytes.div_ceil(unit);
    let slot = (scratch.slot / 8) as u32;
    let kernel = kernels.pick(call.data_type, call.op, call.is_aligned(unit));
    let args = OneShotArgs {
        guard: inner.guard(kernel),
        input: Global::from_address(call.input),
        output: Global::from_address(call.output),
        bytes: call.bytes,
        epochs: Epochs(Global::from_address(scratch.region.epochs())),
        peers: scratch.peers,
        packets: packets as u32,
        slot,
        half: (scratch.half / 8) as u32,
        rank: inner.rank,
        ranks: inner.ranks,
        data_type: call.data_type as u32,
        op: call.op as u32,
        _pad: 0,
    };
    enqueue(stream, kernel, packet_shape(shape, packets), &args)
}

fn two_shot(
    inner: &Inner,
    call: Call,
    words: u64,
    kernels: &Instances,
    shape: Shape,
    stream: &Stream,
) -> Result<()> {
    let scratch = &inner.context.two_shot;
    let unit = 4 * words;
    let packets = call.bytes.div_ceil(unit);
    let chunk = packets.div_ceil(inner.ranks as u64);
    let slot = (scratch.slot / 8) as u32;
    let kernel = kernels.pick(call.data_type, call.op, call.is_aligned(unit));
    let args = TwoShotArgs {
        guard: inner.guard(kernel),
        input: Global::from_address(call.input),
        output: Global::from_address(call.output),
        bytes: call.bytes,
        epochs: Epochs(Global::from_address(scratch.region.epochs())),
        peers: scratch.peers,
        packets: packets as u32,
        chunk: chunk as u32,
        slot,
        half: 2 * slot * inner.ranks,
        rank: inner.rank,
        ranks: inner.ranks,
        data_type: call.data_type as u32,
        op: call.op as u32,
    };
    enqueue(stream, kernel, packet_shape(shape, chunk), &args)
}

fn push(inner: &Inner, call: Call, scratch: &Scratch, shape: Shape, stream: &Stream) -> Result<()> {
    let units = call.bytes.div_ceil(16);
    let blocks = shape.blocks.min(MAX_BLOCKS).min(units as u32);
    let kernel = inner.context.kernels.push.pick(call.data_type, call.op, call.is_aligned(16));
    let args = PushArgs {
        guard: inner.guard(kernel),
        input: Global::from_address(call.input),
        output: Global::from_address(call.output),
        bytes: call.bytes,
        epochs: Epochs(Global::from_address(scratch.region.epochs())),
        peers: scratch.peers,
        units: units as u32,
        per_block: units.div_ceil(blocks as u64) as u32,
        slot: (scratch.slot / 16) as u32,
        flags: scratch.flags,
        rank: inner.rank,
        ranks: inner.ranks,
        data_type: call.data_type as u32,
        op: call.op as u32,
    };
    enqueue(stream, kernel, Shape { blocks, ..shape }, &args)
}

fn mesh(inner: &Inner, call: Call, shape: Shape, stream: &Stream) -> Result<()> {
    let scratch = &inner.context.mesh;
    let units = call.bytes.div_ceil(16);
    let chunk = units.div_ceil(inner.ranks as u64);
    let round = chunk.min(scratch.slot / 16);
    let blocks = shape.blocks.min(MAX_BLOCKS).min(round as u32);
    let kernel = inner.context.kernels.mesh.pick(call.data_type, call.op, call.is_aligned(16));
    let args = MeshArgs {
        guard: inner.guard(kernel),
        input: Global::from_address(call.input),
        output: Global::from_address(call.output),
        bytes: call.bytes,
        epochs: Epochs(Global::from_address(scratch.region.epochs())),
        peers: scratch.peers,
        units: units as u32,
        chunk: chunk as u32,
        round: round as u32,
        per_block: round.div_ceil(blocks as u64) as u32,
        slot: (scratch.slot / 16) as u32,
        flags: scratch.flags,
        rank: inner.rank,
        ranks: inner.ranks,
        data_type: call.data_type as u32,
        op: call.op as u32,
    };
    enqueue(stream, kernel, Shape { blocks, ..shape }, &args)
}

fn direct(
    inner: &Inner,
    registry: &Registry,
    call: Call,
    shape: Shape,
    stream: &Stream,
) -> Result<()> {
    let (Some((input, from)), Some((output, to))) =
        (registry.find(call.input, call.bytes), registry.find(call.output, call.bytes))
    else {
        return mesh(inner, call, shape, stream);
    };
    let scratch = &inner.context.direct;
    let inputs = every_rank(inner.ranks, |rank| input.of(rank) + from);
    let outputs = every_rank(inner.ranks, |rank| output.of(rank) + to);
    let units = call.bytes.div_ceil(16);
    let chunk = units.div_ceil(inner.ranks as u64);
    let blocks = shape.blocks.min(MAX_BLOCKS).min(chunk as u32);
    let aligned = inputs.iter().chain(&outputs).all(|a| a & 15 == 0) && call.is_aligned(16);
    let kernel = inner.context.kernels.direct.pick(call.data_type, call.op, aligned);
    let args = DirectArgs {
        guard: inner.guard(kernel),
        inputs: pointer_array(&inputs),
        outputs: pointer_array(&outputs),
        bytes: call.bytes,
        epochs: Epochs(Global::from_address(scratch.region.epochs())),
        peers: scratch.peers,
        units: units as u32,
        chunk: chunk as u32,
        per_block: chunk.div_ceil(blocks as u64) as u32,
        flags: scratch.flags,
        rank: inner.rank,
        ranks: inner.ranks,
        data_type: call.data_type as u32,
        op: call.op as u32,
        same: sameness(&[
            input.id(),
            from,
            output.id(),
            to,
            call.bytes,
            call.data_type as u64,
            call.op as u64,
        ]),
        _pad: 0,
    };
    if stream.is_capturing()? {
        stream.retain(std::sync::Arc::new((input.clone(), output.clone())))?;
    }
    enqueue(stream, kernel, Shape { blocks, ..shape }, &args)
}

/// 16 bits of what all ranks have to agree in; unequal with all but certainty where they do not.
pub(crate) fn sameness(parts: &[u64]) -> u32 {
    let mix =
        |hash: u64, part: &u64| (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    (parts.iter().fold(1, mix) >> 48) as u32
}

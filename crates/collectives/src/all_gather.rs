//! Allgather: from a call to a launch.

use mscclrs_device::{Epochs, Global, MAX_BLOCKS};
use mscclrs_gpu::Stream;
use mscclrs_kernels::allgather::{
    direct::GatherDirectArgs, mesh::GatherMeshArgs, packet::GatherPacketArgs,
};

use crate::all_reduce::{enqueue, packet_shape, sameness};
use crate::collectives::Inner;
use crate::context::{every_rank, pointer_array};
use crate::kernels::Pair;
use crate::registry::Registry;
use crate::tuning::{Rule, choose};
use crate::{AllGather, Error, Result, Shape};

/// Most bytes a rank: 2^31 units of 16 bytes.
pub(crate) const MOST: u64 = 32 << 30;

/// One call, its arguments checked.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) input: u64,
    pub(crate) output: u64,
    /// Bytes a rank.
    pub(crate) bytes: u64,
}

impl Call {
    fn is_aligned(&self, unit: u64) -> bool {
        (self.input | self.output | self.bytes) & (unit - 1) == 0
    }
}

pub(crate) fn select(inner: &Inner, registry: &Registry, call: Call) -> Rule<AllGather> {
    let mut rule = choose(&inner.tuning.all_gather, call.bytes).unwrap_or(Rule {
        up_to: u64::MAX,
        algorithm: AllGather::Mesh,
        shape: Shape { blocks: 16, threads: 256 },
    });
    let is_packet = matches!(rule.algorithm, AllGather::PacketLl8 | AllGather::PacketLl16);
    if is_packet && inner.context.gather_packet.scratch(call.bytes).is_none() {
        rule.algorithm = AllGather::Mesh;
    }
    let registered = inner.ranks as usize <= mscclrs_kernels::ranks::INLINE_RANKS
        && registry.find(call.output, call.bytes.saturating_mul(inner.ranks as u64)).is_some();
    if rule.algorithm == AllGather::Direct && !registered {
        rule.algorithm = AllGather::Mesh;
    }
    rule
}

pub(crate) fn launch(
    inner: &Inner,
    registry: &Registry,
    call: Call,
    stream: &Stream,
) -> Result<()> {
    if call.bytes > MOST {
        return Err(Error::TooLong { bytes: call.bytes, most: MOST });
    }
    let rule = select(inner, registry, call);
    let shape = inner.agreed.fit(rule.shape);
    let in_place = (call.input == call.output + inner.rank as u64 * call.bytes) as u32;
    let call = Prepared { call, in_place, shape };
    match rule.algorithm {
        AllGather::PacketLl8 => packet(inner, call, 1, &inner.context.kernels.gather_ll8, stream),
        AllGather::PacketLl16 => packet(inner, call, 2, &inner.context.kernels.gather_ll16, stream),
        AllGather::Mesh => mesh(inner, call, stream),
        AllGather::Direct => direct(inner, registry, call, stream),
    }
}

#[derive(Clone, Copy)]
struct Prepared {
    call: Call,
    in_place: u32,
    shape: Shape,
}

fn packet(
    inner: &Inner,
    prepared: Prepared,
    words: u64,
    kernels: &Pair,
    stream: &Stream,
) -> Result<()> {
    let Some(scratch) = inner.context.gather_packet.scratch(prepared.call.bytes) else {
        return mesh(inner, prepared, stream);
    };
    let Prepared { call, in_place, shape } = prepared;
    let unit = 4 * words;
    let packets = call.bytes.div_ceil(unit);
    let slot = (scratch.slot / 8) as u32;
    let kernel = kernels.pick(call.is_aligned(unit));
    let args = GatherPacketArgs {
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
        in_place,
    };
    enqueue(stream, kernel, packet_shape(shape, packets), &args)
}

fn mesh(
    inner: &Inner,
    Prepared { call, in_place, shape }: Prepared,
    stream: &Stream,
) -> Result<()> {
    let scratch = &inner.context.gather_mesh;
    let units = call.bytes.div_ceil(16);
    let round = units.min(scratch.slot / 16);
    let blocks = shape.blocks.min(MAX_BLOCKS).min(round as u32);
    let kernel = inner.context.kernels.gather_mesh.pick(call.is_aligned(16));
    let args = GatherMeshArgs {
        guard: inner.guard(kernel),
        input: Global::from_address(call.input),
        output: Global::from_address(call.output),
        bytes: call.bytes,
        epochs: Epochs(Global::from_address(scratch.region.epochs())),
        peers: scratch.peers,
        units: units as u32,
        round: round as u32,
        per_block: round.div_ceil(blocks as u64) as u32,
        slot: (scratch.slot / 16) as u32,
        flags: scratch.flags,
        rank: inner.rank,
        ranks: inner.ranks,
        in_place,
    };
    enqueue(stream, kernel, Shape { blocks, ..shape }, &args)
}

fn direct(inner: &Inner, registry: &Registry, prepared: Prepared, stream: &Stream) -> Result<()> {
    let Prepared { call, in_place, shape } = prepared;
    let Some((output, to)) = registry.find(call.output, call.bytes * inner.ranks as u64) else {
        return mesh(inner, prepared, stream);
    };
    let scratch = &inner.context.gather_direct;
    let outputs = every_rank(inner.ranks, |rank| output.of(rank) + to);
    let units = call.bytes.div_ceil(16);
    let blocks = shape.blocks.min(MAX_BLOCKS).min(units as u32);
    let aligned = call.is_aligned(16) && outputs.iter().all(|a| a & 15 == 0);
    let kernel = inner.context.kernels.gather_direct.pick(aligned);
    let args = GatherDirectArgs {
        guard: inner.guard(kernel),
        input: Global::from_address(call.input),
        outputs: pointer_array(&outputs),
        bytes: call.bytes,
        epochs: Epochs(Global::from_address(scratch.region.epochs())),
        peers: scratch.peers,
        units: units as u32,
        per_block: units.div_ceil(blocks as u64) as u32,
        flags: scratch.flags,
        rank: inner.rank,
        ranks: inner.ranks,
        in_place,
        same: sameness(&[output.id(), to, call.bytes]),
        _pad: 0,
    };
    if stream.is_capturing()? {
        stream.retain(std::sync::Arc::new(output.clone()))?;
    }
    enqueue(stream, kernel, Shape { blocks, ..shape }, &args)
}

//! Full-mesh allreduce through scratch: rank r adds up chunk r of all ranks, then sends the sum to
//! all, by plain stores, in rounds of what the scratch holds. For large messages in any memory.
//!
//! Scratch of a rank: `ranks` slots for inputs, `ranks` slots for sums, then flags. Block b of all
//! ranks works on the same units of every slot and meets block b of its peers twice a round, at
//! epochs 2e (inputs are there) and 2e + 1 (sums are there, and inputs have been read).
//!
//! Reuse, with one copy of each slot: inputs of round e + 1 are stored after the meeting 2e + 1, before
//! which the reader had read those of round e. Sums of round e + 1 are stored after the meeting
//! 2(e + 1), before which the reader had copied out those of round e. Between launches whole launches
//! are ordered the same way, so grids may differ from launch to launch.

use mscclrs_device::{
    Access, Aligned, Any, DeviceResult, Epochs, Global, Guard, Params, Reduction, Sum, Unit,
    Word16, element, kernel_args, kernels,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::{AnyCount, Count, N2, N4, N8, Peers, after, count, has_peers, own, peer};
use crate::work::{Flags, Known, Reducer, Told, block_range, bytes_at, chunk_length, meet, stream};

kernel_args! {
    /// Arguments of the full-mesh allreduce.
    pub struct MeshArgs {
        /// What ends the waits.
        pub guard: Guard,
        /// This rank's elements.
        pub input: Global<u8>,
        /// Where the result goes; may be the input.
        pub output: Global<u8>,
        /// Bytes of input and output.
        pub bytes: u64,
        /// The region's epochs.
        pub epochs: Epochs,
        /// The region's scratch, of every rank.
        pub peers: Peers,
        /// 16-byte units of the message.
        pub units: u32,
        /// Units a chunk; chunk r is rank r's.
        pub chunk: u32,
        /// Units of each chunk a round: at most a slot.
        pub round: u32,
        /// Units of each chunk a round and block.
        pub per_block: u32,
        /// Units a slot.
        pub slot: u32,
        /// Where the flags lie in the scratch, in 8-byte words.
        pub flags: u32,
        /// This rank.
        pub rank: u32,
        /// Number of ranks.
        pub ranks: u32,
        /// Element type, where it is told at run time.
        pub data_type: u32,
        /// Operation, where it is told at run time.
        pub op: u32,
    }
}
has_peers!(MeshArgs);

#[inline(always)]
fn run<R: Reducer, N: Count, A: Access>(args: &Params<MeshArgs>) -> DeviceResult {
    let (rank, ranks) = (args.rank, count::<N>(args.ranks));
    let flags = Flags { at: args.flags, rank, ranks };
    let local = own(args).cast::<u8>();
    let sums = ranks * args.slot;
    let mut epoch = args.epochs.begin(&args.guard).check()?;
    let mut done = 0;
    while done < args.chunk {
        // The buffers as they look from this round's first unit of a chunk on.
        let part = |p: u32| {
            let first = (p as u64 * args.chunk as u64 + done as u64) * 16;
            let length = chunk_length(args.units, args.chunk, p);
            let rest = length.saturating_sub(done).min(args.round);
            let (begin, end) = block_range(rest, args.per_block);
            let bytes = args.bytes.saturating_sub(first);
            (first, bytes, begin, end)
        };
        let mut k = 1;
        while k < ranks {
            let p = after::<N>(rank, k, ranks);
            let (first, bytes, begin, end) = part(p);
            let from = bytes_at(args.input, first);
            let to = peer::<_, N>(args, k).cast::<Word16>().at(rank * args.slot);
            let load = |i: u32| A::load::<Word16>(from, i, bytes);
            stream::<A, _>(begin, end, load, |i, unit| to.at(i).store(unit));
            k += 1;
        }
        meet::<_, N>(args, &args.guard, flags, 2 * epoch)?;

        let (first, bytes, begin, end) = part(rank);
        let mine = bytes_at(args.input, first);
        let get = |p: u32, i: u32| {
            if p == rank { A::load(mine, i, bytes) } else { Word16::load(local, p * args.slot + i) }
        };
        let to = bytes_at(args.output, first);
        let put = |i: u32, unit: Word16| {
            A::store(to, i, bytes, unit);
            let mut k = 1;
            while k < ranks {
                let slot = peer::<_, N>(args, k).cast::<Word16>();
                slot.at(sums + rank * args.slot + i).store(unit);
                k += 1;
            }
        };
        R::range::<N, Word16>((args.data_type, args.op), (begin, end), ranks, get, put);
        meet::<_, N>(args, &args.guard, flags, 2 * epoch + 1)?;

        let mut k = 1;
        while k < ranks {
            let p = after::<N>(rank, k, ranks);
            let (first, bytes, begin, end) = part(p);
            let to = bytes_at(args.output, first);
            let load = |i: u32| Word16::load(local, sums + p * args.slot + i);
            stream::<A, _>(begin, end, load, |i, unit| A::store(to, i, bytes, unit));
            k += 1;
        }
        epoch += 1;
        done += args.round;
    }
    args.epochs.advance(epoch);
    Ok(())
}

kernels! {
    module = MODULE;

    /// Full-mesh allreduce through scratch. Instances `_bf16_sum_2` and the like for whole, aligned
    /// units; `_any` for any type, operation, rank count, alignment and length.
    pub fn allreduce_mesh<K: Mesh>(args: MeshArgs) threads 512 for {
        "_f16_sum_2" = <Hot<Sum<element::F16>, N2>>,
        "_f16_sum_4" = <Hot<Sum<element::F16>, N4>>,
        "_f16_sum_8" = <Hot<Sum<element::F16>, N8>>,
        "_bf16_sum_2" = <Hot<Sum<element::Bf16>, N2>>,
        "_bf16_sum_4" = <Hot<Sum<element::Bf16>, N4>>,
        "_bf16_sum_8" = <Hot<Sum<element::Bf16>, N8>>,
        "_f32_sum_2" = <Hot<Sum<element::F32>, N2>>,
        "_f32_sum_4" = <Hot<Sum<element::F32>, N4>>,
        "_f32_sum_8" = <Hot<Sum<element::F32>, N8>>,
        "_any" = <General>,
    } {
        K::run(&args)
    }
}

/// One instance.
pub trait Mesh {
    /// Runs a lane.
    fn run(args: &Params<MeshArgs>) -> DeviceResult;
}

/// Everything known when compiled.
pub struct Hot<R, N>(core::marker::PhantomData<(R, N)>);

impl<R: Reduction, N: Count> Mesh for Hot<R, N> {
    #[inline(always)]
    fn run(args: &Params<MeshArgs>) -> DeviceResult {
        run::<Known<R>, N, Aligned>(args)
    }
}

/// Everything told at run time.
pub struct General;

impl Mesh for General {
    #[inline(always)]
    fn run(args: &Params<MeshArgs>) -> DeviceResult {
        run::<Told, AnyCount, Any>(args)
    }
}

//! Zero-copy allreduce on registered memory: rank r reads chunk r of every rank's input, adds it up
//! and stores the sum into every rank's output. For large messages; the volume is the least possible
//! and nothing is copied through scratch.
//!
//! Block b of all ranks works on the same units of a chunk and meets block b of its peers at 2e (all
//! have begun: inputs are there and outputs may be overwritten) and 2e + 1 (all outputs are there and
//! all inputs have been read). Nobody but rank r touches chunk r between the two, so input and output
//! may be one.

use mscclrs_device::{
    Access, Aligned, Any, DeviceResult, Epochs, Global, Guard, ParamArray, Params, Reduction, Sum,
    Word16, element, kernel_args, kernels, param_at,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::{AnyCount, Count, INLINE_RANKS, N2, N4, N8, Peers, after, count, has_peers};
use crate::work::{Flags, Known, Reducer, Told, block_range, bytes_at, chunk_length, meet_same};

kernel_args! {
    /// Arguments of the zero-copy allreduce.
    pub struct DirectArgs {
        /// What ends the waits.
        pub guard: Guard,
        /// Every rank's input, mapped here.
        pub inputs: ParamArray<Global<u8>, INLINE_RANKS>,
        /// Every rank's output, mapped here.
        pub outputs: ParamArray<Global<u8>, INLINE_RANKS>,
        /// Bytes of input and output.
        pub bytes: u64,
        /// The region's epochs.
        pub epochs: Epochs,
        /// The region's scratch, of every rank: flags only.
        pub peers: Peers,
        /// 16-byte units of the message.
        pub units: u32,
        /// Units a chunk; chunk r is rank r's.
        pub chunk: u32,
        /// Units of the chunk a block.
        pub per_block: u32,
        /// Where the flags lie in the scratch, in 8-byte words.
        pub flags: u32,
        /// This rank.
        pub rank: u32,
        /// Number of ranks, at most `INLINE_RANKS`.
        pub ranks: u32,
        /// Element type, where it is told at run time.
        pub data_type: u32,
        /// Operation, where it is told at run time.
        pub op: u32,
        /// 16 bits that are equal where all ranks call with the same registration, offset and count.
        pub same: u32,
        /// Padding.
        pub _pad: u32,
    }
}
has_peers!(DirectArgs);

#[inline(always)]
fn run<R: Reducer, N: Count, A: Access>(args: &Params<DirectArgs>) -> DeviceResult {
    let (rank, ranks) = (args.rank, count::<N>(args.ranks));
    let flags = Flags { at: args.flags, rank, ranks };
    let epoch = args.epochs.begin(&args.guard).check()?;
    meet_same::<_, N>(args, &args.guard, flags, 2 * epoch, args.same)?;
    let first = rank as u64 * args.chunk as u64 * 16;
    let bytes = args.bytes.saturating_sub(first);
    let (begin, end) = block_range(chunk_length(args.units, args.chunk, rank), args.per_block);
    let get = |p: u32, i: u32| {
        let input = param_at!(args, DirectArgs, inputs, p);
        A::load::<Word16>(bytes_at(input, first), i, bytes)
    };
    let put = |i: u32, unit: Word16| {
        let mut k = 0;
        while k < ranks {
            let output = param_at!(args, DirectArgs, outputs, after::<N>(rank, k, ranks));
            A::store(bytes_at(output, first), i, bytes, unit);
            k += 1;
        }
    };
    R::range::<N, Word16>((args.data_type, args.op), (begin, end), ranks, get, put);
    meet_same::<_, N>(args, &args.guard, flags, 2 * epoch + 1, args.same)?;
    args.epochs.advance(epoch + 1);
    Ok(())
}

kernels! {
    module = MODULE;

    /// Zero-copy allreduce. Instances `_bf16_sum_2` and the like for whole, aligned units; `_any` for
    /// any type, operation, rank count up to `INLINE_RANKS`, alignment and length.
    pub fn allreduce_direct<K: Direct>(args: DirectArgs) threads 512 for {
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
pub trait Direct {
    /// Runs a lane.
    fn run(args: &Params<DirectArgs>) -> DeviceResult;
}

/// Everything known when compiled.
pub struct Hot<R, N>(core::marker::PhantomData<(R, N)>);

impl<R: Reduction, N: Count> Direct for Hot<R, N> {
    #[inline(always)]
    fn run(args: &Params<DirectArgs>) -> DeviceResult {
        run::<Known<R>, N, Aligned>(args)
    }
}

/// Everything told at run time.
pub struct General;

impl Direct for General {
    #[inline(always)]
    fn run(args: &Params<DirectArgs>) -> DeviceResult {
        run::<Told, AnyCount, Any>(args)
    }
}

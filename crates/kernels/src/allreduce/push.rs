//! One-shot allreduce by plain stores: every rank stores its whole input into a slot of every peer,
//! and one flag a block and peer says that it is there. One hop without the packets' double volume;
//! for a few ranks and sizes where bandwidth begins to count.
//!
//! Scratch of a rank: two halves of `ranks` slots, then flags. Block b of all ranks works on the same
//! units and meets only block b of its peers. A slot is written again two calls later; its writer has
//! ended the call between, for which it needed a flag of its reader's block, set after the reader's
//! whole launch before had ended.

use mscclrs_device::{
    Access, Aligned, Any, DeviceResult, Epochs, Global, Guard, Params, Reduction, Sum, Unit,
    Word16, element, kernel_args, kernels,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::{AnyCount, Count, N2, Peers, after, count, has_peers, peer};
use crate::work::{Flags, Known, Reducer, Told, block_range, meet, stream};

kernel_args! {
    /// Arguments of the one-shot allreduce by stores.
    pub struct PushArgs {
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
        /// Units a block.
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
has_peers!(PushArgs);

#[inline(always)]
fn run<R: Reducer, N: Count, A: Access>(args: &Params<PushArgs>) -> DeviceResult {
    let (rank, ranks) = (args.rank, count::<N>(args.ranks));
    let epoch = args.epochs.current();
    let (begin, end) = block_range(args.units, args.per_block);
    let half = (epoch & 1) as u32 * ranks * args.slot;
    let load = |i: u32| A::load::<Word16>(args.input, i, args.bytes);
    let mut k = 1;
    while k < ranks {
        let to = peer::<_, N>(args, after::<N>(rank, k, ranks)).cast::<Word16>();
        let to = to.at(half + rank * args.slot);
        stream::<A, _>(begin, end, load, |i, unit| to.at(i).store(unit));
        k += 1;
    }
    meet::<_, N>(args, &args.guard, Flags { at: args.flags, rank, ranks }, epoch)?;
    let from = peer::<_, N>(args, rank).cast::<u8>();
    let get = |p: u32, i: u32| {
        if p == rank { load(i) } else { Word16::load(from, half + p * args.slot + i) }
    };
    let put = |i: u32, unit| A::store(args.output, i, args.bytes, unit);
    R::range::<N, Word16>((args.data_type, args.op), (begin, end), ranks, get, put);
    args.epochs.advance(epoch + 1);
    Ok(())
}

kernels! {
    module = MODULE;

    /// One-shot allreduce by stores. Instances `_bf16_sum_2` and the like for whole, aligned units;
    /// `_any` for any type, operation, rank count, alignment and length.
    pub fn allreduce_push<K: Push>(args: PushArgs) threads 1024 for {
        "_f16_sum_2" = <Hot<Sum<element::F16>, N2>>,
        "_bf16_sum_2" = <Hot<Sum<element::Bf16>, N2>>,
        "_f32_sum_2" = <Hot<Sum<element::F32>, N2>>,
        "_any" = <General>,
    } {
        K::run(&args)
    }
}

/// One instance.
pub trait Push {
    /// Runs a lane.
    fn run(args: &Params<PushArgs>) -> DeviceResult;
}

/// Everything known when compiled.
pub struct Hot<R, N>(core::marker::PhantomData<(R, N)>);

impl<R: Reduction, N: Count> Push for Hot<R, N> {
    #[inline(always)]
    fn run(args: &Params<PushArgs>) -> DeviceResult {
        run::<Known<R>, N, Aligned>(args)
    }
}

/// Everything told at run time.
pub struct General;

impl Push for General {
    #[inline(always)]
    fn run(args: &Params<PushArgs>) -> DeviceResult {
        run::<Told, AnyCount, Any>(args)
    }
}

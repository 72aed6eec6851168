//! One-shot allreduce by plain stores: every rank stores its whole input into a slot of every peer,
//! and one flag a block and peer says that it is there. One hop without the packets' double volume;
//! for a few ranks and sizes where bandwidth begins to count.
//!
//! Scratch of a rank: two halves with a slot for each peer, then flags. Block b of all ranks works on the same
//! units and meets only block b of its peers. A slot is written again two calls later; its writer has
//! ended the call between, for which it needed a flag of its reader's block, set after the reader's
//! whole launch before had ended.

use mscclrs_device::{
    Aborted, Access, Aligned, Any, Begun, DeviceResult, Epochs, Global, Guard, Params, Reduction,
    Sum, Unit, Word16, element, kernel_args, kernels,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::{AnyCount, N2, Peers, has_peers, own, peer, slot_here, slot_there, slots};
use crate::work::{Ahead, Flags, Reducer, Told, block_range, meet, pair_range, stream};

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

/// Two ranks, whole units: what is known when compiled.
#[inline(always)]
fn run_two<R: Reduction>(args: &Params<PushArgs>) -> DeviceResult {
    let rank = args.rank;
    let (begin, end) = block_range(args.units, args.per_block);
    let load = |i: u32| Word16::load(args.input, i);
    // The first units are asked for before the epoch is here, and are at hand after the meeting.
    let ahead = Ahead::new::<Aligned>(begin, end, load);
    let Begun { epoch, ended } = args.epochs.begin(&args.guard);
    let half = (epoch & 1) as u32 * args.slot;
    let to = peer::<_, N2>(args, 1).cast::<Word16>().at(half);
    let send = |i: u32, unit: Word16| to.at(i).store(unit);
    let mut rest = end;
    if !ended {
        rest = ahead.each::<Aligned>(begin, end, send);
        stream::<Aligned, _>(rest, end, load, send);
    }
    if ended {
        return Err(Aborted);
    }
    meet::<_, N2>(args, &args.guard, Flags { at: args.flags, rank, ranks: 2 }, epoch)?;
    let from = own(args).cast::<Word16>().at(half);
    let put = |i: u32, unit: Word16| unit.store(args.output, i);
    ahead.pair::<R, Aligned>(begin, end, |i| from.at(i).load(), put);
    pair_range::<R, Word16>(rest, end, load, |i| from.at(i).load(), put);
    args.epochs.advance(epoch + 1);
    Ok(())
}

/// Everything told at run time.
#[inline(always)]
fn run_any(args: &Params<PushArgs>) -> DeviceResult {
    let (rank, ranks) = (args.rank, args.ranks);
    let epoch = args.epochs.begin(&args.guard).check()?;
    let (begin, end) = block_range(args.units, args.per_block);
    let half = (epoch & 1) as u32 * slots(ranks) * args.slot;
    let load = |i: u32| Any::load::<Word16>(args.input, i, args.bytes);
    let mut k = 1;
    while k < ranks {
        let to = peer::<_, AnyCount>(args, k).cast::<Word16>();
        let to = to.at(half + slot_there(k, ranks) * args.slot);
        stream::<Any, _>(begin, end, load, |i, unit| to.at(i).store(unit));
        k += 1;
    }
    meet::<_, AnyCount>(args, &args.guard, Flags { at: args.flags, rank, ranks }, epoch)?;
    let from = own(args).cast::<u8>();
    let get = |p: u32, i: u32| {
        if p == rank {
            load(i)
        } else {
            let slot = slot_here::<AnyCount>(rank, p, ranks);
            Word16::load(from, half + slot * args.slot + i)
        }
    };
    let put = |i: u32, unit| Any::store(args.output, i, args.bytes, unit);
    let kind = (args.data_type, args.op);
    Told::range::<AnyCount, Word16>(kind, (begin, end), ranks, get, put);
    args.epochs.advance(epoch + 1);
    Ok(())
}

kernels! {
    module = MODULE;

    /// One-shot allreduce by stores. Instances `_bf16_sum_2` and the like for whole, aligned units;
    /// `_any` for any type, operation, rank count, alignment and length.
    pub fn allreduce_push<K: Push>(args: PushArgs) threads 1024 for {
        "_f16_sum_2" = <Hot<Sum<element::F16>>>,
        "_bf16_sum_2" = <Hot<Sum<element::Bf16>>>,
        "_f32_sum_2" = <Hot<Sum<element::F32>>>,
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

/// Two ranks and a reduction known when compiled.
pub struct Hot<R>(core::marker::PhantomData<R>);

impl<R: Reduction> Push for Hot<R> {
    #[inline(always)]
    fn run(args: &Params<PushArgs>) -> DeviceResult {
        run_two::<R>(args)
    }
}

/// Everything told at run time.
pub struct General;

impl Push for General {
    #[inline(always)]
    fn run(args: &Params<PushArgs>) -> DeviceResult {
        run_any(args)
    }
}

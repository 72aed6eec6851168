//! Two-shot allreduce by packets: rank r adds up chunk r of all ranks, then sends the sum to all. Two
//! hops and a fraction of the one-shot's volume; for more than two ranks and middle sizes.
//!
//! Scratch of a rank: two halves, each of 2 x `ranks` slots: slot r of the first part takes rank r's
//! input for this rank's chunk, slot r of the second part the sum of chunk r. A lane works on the same
//! index of every chunk, so no lane waits for another of its block.
//!
//! Reuse two calls later: a rank that ended a call had the sum of chunk 0, for which every rank's block
//! 0 sent; so every rank had begun the call, and had ended the call before. This holds for ranks whose
//! own chunk is empty too.

use mscclrs_device::{
    Access, Aligned, Any, DeviceResult, Epochs, Fold, Global, Guard, Ll8, Ll16, Packet, Params,
    Reduction, Sum, Unit, block_dim, block_idx, clean_lap, element, epoch_flag, epoch_next,
    grid_dim, kernel_args, kernels, thread_idx, with_reduction,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::{AnyCount, Count, N4, N8, Peers, after, count, each_rank, has_peers, own, peer};
use crate::work::chunk_length;

kernel_args! {
    /// Arguments of the two-shot allreduce.
    pub struct TwoShotArgs {
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
        /// Packets of the message.
        pub packets: u32,
        /// Packets a chunk.
        pub chunk: u32,
        /// 8-byte words a slot.
        pub slot: u32,
        /// 8-byte words a half: twice `slot` times the number of ranks.
        pub half: u32,
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
has_peers!(TwoShotArgs);

#[inline(always)]
fn run<P, R, N, A>(args: &Params<TwoShotArgs>) -> DeviceResult
where
    P: Packet,
    P::Payload: Fold + Unit,
    R: Reduction,
    N: Count,
    A: Access,
{
    let step = grid_dim() * block_dim();
    let first = block_idx() * block_dim() + thread_idx();
    let (rank, ranks) = (args.rank, count::<N>(args.ranks));
    let load = |i: u32| A::load::<P::Payload>(args.input, i, args.bytes);
    let local = own(args);
    let epoch = args.epochs.begin(&args.guard).check()?;
    let flag = epoch_flag(epoch);
    let half = (epoch & 1) as u32 * args.half;
    let sums = half + ranks * args.slot;

    let mut j = first;
    while j < args.chunk {
        let mut k = 1;
        while k < ranks {
            let p = after::<N>(rank, k, ranks);
            if j < chunk_length(args.packets, args.chunk, p) {
                let to = peer::<_, N>(args, k).at(half + rank * args.slot + j * P::WORDS);
                P::put(to, load(p * args.chunk + j), flag);
            }
            k += 1;
        }
        j += step;
    }

    let own_length = chunk_length(args.packets, args.chunk, rank);
    let mut j = first;
    while j < own_length {
        let mine = load(rank * args.chunk + j);
        let at = |p: u32| local.at(half + p * args.slot + j * P::WORDS);
        let mut acc = mine.start::<R>();
        if N::N != 0 {
            let mut raw = [P::Raw::default(); 8];
            each_rank!(N, p => if p != rank {
                raw[p as usize] = P::peek(at(p));
            });
            each_rank!(N, p => {
                let unit = if p == rank {
                    mine
                } else {
                    P::finish(&args.guard, at(p), raw[p as usize], flag, p)?
                };
                acc = if p == 0 { unit.start::<R>() } else { P::Payload::fold::<R>(acc, unit) };
            });
        } else {
            let mut p = 0;
            while p < ranks {
                let unit = if p == rank { mine } else { P::take(&args.guard, at(p), flag, p)? };
                acc = if p == 0 { unit.start::<R>() } else { P::Payload::fold::<R>(acc, unit) };
                p += 1;
            }
        }
        let sum = P::Payload::finish::<R>(acc);
        let mut k = 1;
        while k < ranks {
            let to = peer::<_, N>(args, k);
            P::put(to.at(sums + rank * args.slot + j * P::WORDS), sum, flag);
            k += 1;
        }
        A::store(args.output, rank * args.chunk + j, args.bytes, sum);
        j += step;
    }

    let mut j = first;
    while j < args.chunk {
        let mut k = 1;
        while k < ranks {
            let p = after::<N>(rank, k, ranks);
            if j < chunk_length(args.packets, args.chunk, p) {
                let at = local.at(sums + p * args.slot + j * P::WORDS);
                let sum = P::take(&args.guard, at, flag, p)?;
                A::store(args.output, p * args.chunk + j, args.bytes, sum);
            }
            k += 1;
        }
        j += step;
    }
    if Epochs::cleans(epoch) {
        clean_lap(local.at(half), 2 * ranks, args.slot, P::WORDS, first, step);
    }
    args.epochs.advance(epoch_next(epoch));
    Ok(())
}

kernels! {
    module = MODULE;

    /// Two-shot allreduce. Instances `_ll8_bf16_sum_4` and the like for whole, aligned packets;
    /// `_ll8` and `_ll16` for any type, operation, rank count, alignment and length.
    pub fn allreduce_two_shot<K: TwoShot>(args: TwoShotArgs) threads 512 for {
        "_ll8_f16_sum_4" = <Hot<Ll8, Sum<element::F16>, N4>>,
        "_ll8_f16_sum_8" = <Hot<Ll8, Sum<element::F16>, N8>>,
        "_ll8_bf16_sum_4" = <Hot<Ll8, Sum<element::Bf16>, N4>>,
        "_ll8_bf16_sum_8" = <Hot<Ll8, Sum<element::Bf16>, N8>>,
        "_ll8_f32_sum_4" = <Hot<Ll8, Sum<element::F32>, N4>>,
        "_ll8_f32_sum_8" = <Hot<Ll8, Sum<element::F32>, N8>>,
        "_ll16_f16_sum_4" = <Hot<Ll16, Sum<element::F16>, N4>>,
        "_ll16_f16_sum_8" = <Hot<Ll16, Sum<element::F16>, N8>>,
        "_ll16_bf16_sum_4" = <Hot<Ll16, Sum<element::Bf16>, N4>>,
        "_ll16_bf16_sum_8" = <Hot<Ll16, Sum<element::Bf16>, N8>>,
        "_ll16_f32_sum_4" = <Hot<Ll16, Sum<element::F32>, N4>>,
        "_ll16_f32_sum_8" = <Hot<Ll16, Sum<element::F32>, N8>>,
        "_ll8" = <General<Ll8>>,
        "_ll16" = <General<Ll16>>,
    } {
        K::run(&args)
    }
}

/// One instance.
pub trait TwoShot {
    /// Runs a lane.
    fn run(args: &Params<TwoShotArgs>) -> DeviceResult;
}

/// Everything known when compiled.
pub struct Hot<P, R, N>(core::marker::PhantomData<(P, R, N)>);

impl<P: Packet<Payload: Fold + Unit>, R: Reduction, N: Count> TwoShot for Hot<P, R, N> {
    #[inline(always)]
    fn run(args: &Params<TwoShotArgs>) -> DeviceResult {
        run::<P, R, N, Aligned>(args)
    }
}

/// Everything told at run time.
pub struct General<P>(core::marker::PhantomData<P>);

impl<P: Packet<Payload: Fold + Unit>> TwoShot for General<P> {
    #[inline(always)]
    fn run(args: &Params<TwoShotArgs>) -> DeviceResult {
        with_reduction!(args.data_type, args.op, R => run::<P, R, AnyCount, Any>(args))
    }
}

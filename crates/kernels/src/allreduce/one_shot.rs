//! One-shot allreduce by packets: every rank sends its whole input to every peer and adds up what it
//! gets. One hop; for sizes where latency is all.
//!
//! Scratch of a rank: two halves with a slot for each peer; half (epoch & 1) is written.
//! A slot is written again two calls later. By then its reader has read it: the writer ended the call
//! between, for which it needed a packet of the reader, who sends only after it ended the call before.
//! Lanes of different grids may write a slot word: the argument is about whole launches.

use mscclrs_device::{
    Aborted, Access, Aligned, Any, Begun, DeviceResult, Epochs, Fold, Global, Guard, Ll8, Ll16,
    Packet, Params, Reduction, Sum, Unit, block_dim, block_idx, clean_lap, element, epoch_flag,
    epoch_next, grid_dim, kernel_args, kernels, thread_idx, with_reduction,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::{
    AnyCount, Count, N2, N4, N8, Peers, count, each_rank, has_peers, own, peer, slot_here,
    slot_there, slots,
};

kernel_args! {
    /// Arguments of the one-shot allreduce.
    pub struct OneShotArgs {
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
        /// Packets a rank.
        pub packets: u32,
        /// 8-byte words a slot.
        pub slot: u32,
        /// 8-byte words a half: `slot` times the number of peers.
        pub half: u32,
        /// This rank.
        pub rank: u32,
        /// Number of ranks.
        pub ranks: u32,
        /// Element type, where it is told at run time.
        pub data_type: u32,
        /// Operation, where it is told at run time.
        pub op: u32,
        /// Padding.
        pub _pad: u32,
    }
}
has_peers!(OneShotArgs);

#[inline(always)]
fn run<P, R, N, A>(args: &Params<OneShotArgs>) -> DeviceResult
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
    // The first input word, the epoch and the claim are on their way together.
    let own0 = if first < args.packets { load(first) } else { Default::default() };
    let Begun { epoch, ended } = args.epochs.begin(&args.guard);
    let flag = epoch_flag(epoch);
    let half = (epoch & 1) as u32 * args.half;
    let from = own(args).at(half);

    let send = |i: u32, unit: P::Payload| {
        let mut k = 1;
        while k < ranks {
            let at = half + slot_there(k, ranks) * args.slot + i * P::WORDS;
            P::put(peer::<_, N>(args, k).at(at), unit, flag);
            k += 1;
        }
    };
    let finish = |i: u32, own: P::Payload| -> DeviceResult {
        let at = |p: u32| from.at(slot_here::<N>(rank, p, ranks) * args.slot + i * P::WORDS);
        let sum = if N::N == 2 {
            own.pair::<R>(P::take(&args.guard, from.at(i * P::WORDS), flag, 1 - rank)?)
        } else if N::N != 0 {
            // All peers are asked at once and added in rank order, so that ranks agree to the bit.
            let mut raw = [P::Raw::default(); 8];
            each_rank!(N, p => if p != rank {
                raw[p as usize] = P::peek(at(p));
            });
            let mut acc = own.start::<R>();
            each_rank!(N, p => {
                let unit = if p == rank {
                    own
                } else {
                    P::finish(&args.guard, at(p), raw[p as usize], flag, p)?
                };
                acc = if p == 0 { unit.start::<R>() } else { P::Payload::fold::<R>(acc, unit) };
            });
            P::Payload::finish::<R>(acc)
        } else {
            let mut acc = own.start::<R>();
            let mut p = 0;
            while p < ranks {
                let unit = if p == rank { own } else { P::take(&args.guard, at(p), flag, p)? };
                acc = if p == 0 { unit.start::<R>() } else { P::Payload::fold::<R>(acc, unit) };
                p += 1;
            }
            P::Payload::finish::<R>(acc)
        };
        A::store(args.output, i, args.bytes, sum);
        Ok(())
    };
    // Most messages have at most one packet a lane: its way has no loop on it.
    if first < args.packets && !ended {
        send(first, own0);
        let mut i = first + step;
        while i < args.packets {
            send(i, load(i));
            i += step;
        }
        let mut own = own0;
        let mut i = first;
        loop {
            finish(i, own)?;
            i += step;
            if i >= args.packets {
                break;
            }
            own = load(i);
        }
    }
    if Epochs::cleans(epoch) && !ended {
        clean_lap(from, slots(ranks), args.slot, P::WORDS, first, step);
    }
    if ended {
        return Err(Aborted);
    }
    args.epochs.advance(epoch_next(epoch));
    Ok(())
}

kernels! {
    module = MODULE;

    /// One-shot allreduce. Instances `_ll8_bf16_sum_2` and the like for whole, aligned packets;
    /// `_ll8` and `_ll16` for any type, operation, rank count, alignment and length.
    pub fn allreduce_one_shot<K: OneShot>(args: OneShotArgs) threads 512 for {
        "_ll8_f16_sum_2" = <Hot<Ll8, Sum<element::F16>, N2>>,
        "_ll8_f16_sum_4" = <Hot<Ll8, Sum<element::F16>, N4>>,
        "_ll8_f16_sum_8" = <Hot<Ll8, Sum<element::F16>, N8>>,
        "_ll8_bf16_sum_2" = <Hot<Ll8, Sum<element::Bf16>, N2>>,
        "_ll8_bf16_sum_4" = <Hot<Ll8, Sum<element::Bf16>, N4>>,
        "_ll8_bf16_sum_8" = <Hot<Ll8, Sum<element::Bf16>, N8>>,
        "_ll8_f32_sum_2" = <Hot<Ll8, Sum<element::F32>, N2>>,
        "_ll8_f32_sum_4" = <Hot<Ll8, Sum<element::F32>, N4>>,
        "_ll8_f32_sum_8" = <Hot<Ll8, Sum<element::F32>, N8>>,
        "_ll16_f16_sum_2" = <Hot<Ll16, Sum<element::F16>, N2>>,
        "_ll16_f16_sum_4" = <Hot<Ll16, Sum<element::F16>, N4>>,
        "_ll16_f16_sum_8" = <Hot<Ll16, Sum<element::F16>, N8>>,
        "_ll16_bf16_sum_2" = <Hot<Ll16, Sum<element::Bf16>, N2>>,
        "_ll16_bf16_sum_4" = <Hot<Ll16, Sum<element::Bf16>, N4>>,
        "_ll16_bf16_sum_8" = <Hot<Ll16, Sum<element::Bf16>, N8>>,
        "_ll16_f32_sum_2" = <Hot<Ll16, Sum<element::F32>, N2>>,
        "_ll16_f32_sum_4" = <Hot<Ll16, Sum<element::F32>, N4>>,
        "_ll16_f32_sum_8" = <Hot<Ll16, Sum<element::F32>, N8>>,
        "_ll8" = <General<Ll8>>,
        "_ll16" = <General<Ll16>>,
    } {
        K::run(&args)
    }
}

/// One instance.
pub trait OneShot {
    /// Runs a lane.
    fn run(args: &Params<OneShotArgs>) -> DeviceResult;
}

/// Everything known when compiled.
pub struct Hot<P, R, N>(core::marker::PhantomData<(P, R, N)>);

impl<P: Packet<Payload: Fold + Unit>, R: Reduction, N: Count> OneShot for Hot<P, R, N> {
    #[inline(always)]
    fn run(args: &Params<OneShotArgs>) -> DeviceResult {
        run::<P, R, N, Aligned>(args)
    }
}

/// Everything told at run time.
pub struct General<P>(core::marker::PhantomData<P>);

impl<P: Packet<Payload: Fold + Unit>> OneShot for General<P> {
    #[inline(always)]
    fn run(args: &Params<OneShotArgs>) -> DeviceResult {
        with_reduction!(args.data_type, args.op, R => run::<P, R, AnyCount, Any>(args))
    }
}

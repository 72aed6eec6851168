//! Allgather by packets: every rank sends its elements to every peer. One hop; for small messages.
//!
//! Scratch and its reuse are those of the one-shot allreduce: two halves with a slot for each peer, and
//! every rank hears from every rank in every call.

use mscclrs_device::{
    Aborted, Access, Aligned, Any, Begun, DeviceResult, Epochs, Global, Guard, Ll8, Ll16, Packet,
    Params, Unit, block_dim, block_idx, clean_lap, epoch_flag, epoch_next, grid_dim, kernel_args,
    kernels, thread_idx,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::{
    AnyCount, Count, N2, N4, N8, Peers, after, count, has_peers, own, peer, slot_there, slots,
};
use crate::work::bytes_at;

kernel_args! {
    /// Arguments of the allgather by packets.
    pub struct GatherPacketArgs {
        /// What ends the waits.
        pub guard: Guard,
        /// This rank's elements.
        pub input: Global<u8>,
        /// Where all ranks' elements go, by rank; the input may be this rank's part of it.
        pub output: Global<u8>,
        /// Bytes a rank.
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
        /// 1: the input is this rank's part of the output.
        pub in_place: u32,
    }
}
has_peers!(GatherPacketArgs);

#[inline(always)]
fn run<P, N, A>(args: &Params<GatherPacketArgs>) -> DeviceResult
where
    P: Packet,
    P::Payload: Unit,
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

    if first < args.packets && !ended {
        let mut i = first;
        let mut unit = own0;
        loop {
            let mut k = 1;
            while k < ranks {
                let at = half + slot_there(k, ranks) * args.slot + i * P::WORDS;
                P::put(peer::<_, N>(args, k).at(at), unit, flag);
                k += 1;
            }
            if args.in_place == 0 {
                let mine = bytes_at(args.output, rank as u64 * args.bytes);
                A::store(mine, i, args.bytes, unit);
            }
            i += step;
            if i >= args.packets {
                break;
            }
            unit = load(i);
        }
        let mut k = 1;
        while k < ranks {
            let p = after::<N>(rank, k, ranks);
            let from = from.at((k - 1) * args.slot);
            let to = bytes_at(args.output, p as u64 * args.bytes);
            let mut i = first;
            while i < args.packets {
                let unit = P::take(&args.guard, from.at(i * P::WORDS), flag, p)?;
                A::store(to, i, args.bytes, unit);
                i += step;
            }
            k += 1;
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

    /// Allgather by packets. Instances `_ll8_2` and the like for whole, aligned packets; `_ll8` and
    /// `_ll16` for any rank count, alignment and length.
    pub fn allgather_packet<K: Gather>(args: GatherPacketArgs) threads 512 for {
        "_ll8_2" = <Instance<Ll8, N2, Aligned>>,
        "_ll8_4" = <Instance<Ll8, N4, Aligned>>,
        "_ll8_8" = <Instance<Ll8, N8, Aligned>>,
        "_ll16_2" = <Instance<Ll16, N2, Aligned>>,
        "_ll16_4" = <Instance<Ll16, N4, Aligned>>,
        "_ll16_8" = <Instance<Ll16, N8, Aligned>>,
        "_ll8" = <Instance<Ll8, AnyCount, Any>>,
        "_ll16" = <Instance<Ll16, AnyCount, Any>>,
    } {
        K::run(&args)
    }
}

/// One instance.
pub trait Gather {
    /// Runs a lane.
    fn run(args: &Params<GatherPacketArgs>) -> DeviceResult;
}

/// A kind of packet, a rank count and an access.
pub struct Instance<P, N, A>(core::marker::PhantomData<(P, N, A)>);

impl<P: Packet<Payload: Unit>, N: Count, A: Access> Gather for Instance<P, N, A> {
    #[inline(always)]
    fn run(args: &Params<GatherPacketArgs>) -> DeviceResult {
        run::<P, N, A>(args)
    }
}

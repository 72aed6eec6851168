//! Allgather through scratch by plain stores, in rounds of what the scratch holds. For large messages
//! in any memory.
//!
//! Scratch of a rank: two halves of `ranks` slots, then flags. Block b of all ranks works on the same
//! units and meets block b of its peers once a round, at epoch e. Half (e & 1) is written again in
//! round e + 2, whose writer met the reader in round e + 1, after the reader had copied out round e.

use mscclrs_device::{
    Access, Aligned, Any, DeviceResult, Epochs, Global, Guard, Params, Unit, Word16, kernel_args,
    kernels,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::{AnyCount, Peers, after, has_peers, own, peer};
use crate::work::{Flags, block_range, bytes_at, meet, stream};

kernel_args! {
    /// Arguments of the allgather through scratch.
    pub struct GatherMeshArgs {
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
        /// 16-byte units a rank.
        pub units: u32,
        /// Units a round: at most a slot.
        pub round: u32,
        /// Units a round and block.
        pub per_block: u32,
        /// Units a slot.
        pub slot: u32,
        /// Where the flags lie in the scratch, in 8-byte words.
        pub flags: u32,
        /// This rank.
        pub rank: u32,
        /// Number of ranks.
        pub ranks: u32,
        /// 1: the input is this rank's part of the output.
        pub in_place: u32,
    }
}
has_peers!(GatherMeshArgs);

#[inline(always)]
fn run<A: Access>(args: &Params<GatherMeshArgs>) -> DeviceResult {
    let (rank, ranks) = (args.rank, args.ranks);
    let flags = Flags { at: args.flags, rank, ranks };
    let local = own(args).cast::<u8>();
    let mut epoch = args.epochs.begin(&args.guard).check()?;
    let mut done = 0;
    while done < args.units {
        let half = (epoch & 1) as u32 * ranks * args.slot;
        let first = done as u64 * 16;
        let bytes = args.bytes - first;
        let (begin, end) = block_range((args.units - done).min(args.round), args.per_block);
        let from = bytes_at(args.input, first);
        let load = |i: u32| A::load::<Word16>(from, i, bytes);
        let mut k = 1;
        while k < ranks {
            let to = peer::<_, AnyCount>(args, k);
            let to = to.cast::<Word16>().at(half + rank * args.slot);
            stream::<A, _>(begin, end, load, |i, unit| to.at(i).store(unit));
            k += 1;
        }
        if args.in_place == 0 {
            let to = bytes_at(args.output, rank as u64 * args.bytes + first);
            stream::<A, _>(begin, end, load, |i, unit| A::store(to, i, bytes, unit));
        }
        meet::<_, AnyCount>(args, &args.guard, flags, epoch)?;
        let mut k = 1;
        while k < ranks {
            let p = after::<AnyCount>(rank, k, ranks);
            let to = bytes_at(args.output, p as u64 * args.bytes + first);
            let load = |i: u32| Word16::load(local, half + p * args.slot + i);
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

    /// Allgather through scratch: `_aligned` for whole, aligned units, `_any` for the rest.
    pub fn allgather_mesh<A: Access>(args: GatherMeshArgs) threads 512 for {
        "_aligned" = <Aligned>,
        "_any" = <Any>,
    } {
        run::<A>(&args)
    }
}

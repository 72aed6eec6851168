//! Zero-copy allgather on registered memory: every rank stores its elements into every rank's output.
//!
//! Block b of all ranks meets block b of its peers at 2e (all have begun: outputs may be overwritten)
//! and 2e + 1 (all outputs are there). It is given the same part of every rank's elements.

use mscclrs_device::{
    Aligned, DeviceResult, Epochs, Global, Guard, ParamArray, Params, Word16, block_dim,
    copy_bytes, kernel_args, kernels, param_at, thread_idx,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::{AnyCount, INLINE_RANKS, Peers, after, has_peers};
use crate::work::{Flags, block_range, bytes_at, meet_same, stream};

kernel_args! {
    /// Arguments of the zero-copy allgather.
    pub struct GatherDirectArgs {
        /// What ends the waits.
        pub guard: Guard,
        /// This rank's elements.
        pub input: Global<u8>,
        /// Every rank's output, mapped here.
        pub outputs: ParamArray<Global<u8>, INLINE_RANKS>,
        /// Bytes a rank.
        pub bytes: u64,
        /// The region's epochs.
        pub epochs: Epochs,
        /// The region's scratch, of every rank: flags only.
        pub peers: Peers,
        /// 16-byte units a rank.
        pub units: u32,
        /// Units a block.
        pub per_block: u32,
        /// Where the flags lie in the scratch, in 8-byte words.
        pub flags: u32,
        /// This rank.
        pub rank: u32,
        /// Number of ranks, at most `INLINE_RANKS`.
        pub ranks: u32,
        /// 1: the input is this rank's part of the output.
        pub in_place: u32,
        /// 16 bits that are equal where all ranks call with the same registration, offset and count.
        pub same: u32,
        /// Padding.
        pub _pad: u32,
    }
}
has_peers!(GatherDirectArgs);

#[inline(always)]
fn run(
    args: &Params<GatherDirectArgs>,
    copy: impl Fn(Global<u8>, Global<u8>, u32, u32),
) -> DeviceResult {
    let (rank, ranks) = (args.rank, args.ranks);
    let flags = Flags { at: args.flags, rank, ranks };
    let epoch = args.epochs.begin(&args.guard).check()?;
    meet_same::<_, AnyCount>(args, &args.guard, flags, 2 * epoch, args.same)?;
    let (begin, end) = block_range(args.units, args.per_block);
    let mut k = args.in_place;
    while k < ranks {
        let output = param_at!(args, GatherDirectArgs, outputs, after::<AnyCount>(rank, k, ranks));
        copy(bytes_at(output, rank as u64 * args.bytes), args.input, begin, end);
        k += 1;
    }
    meet_same::<_, AnyCount>(args, &args.guard, flags, 2 * epoch + 1, args.same)?;
    args.epochs.advance(epoch + 1);
    Ok(())
}

kernels! {
    module = MODULE;

    /// Zero-copy allgather for whole, aligned units.
    pub fn allgather_direct<>(args: GatherDirectArgs) threads 1024 for { "_aligned" = <> } {
        run(
            &args,
            #[inline(always)]
            |to, from, begin, end| {
                let (to, from) = (to.cast::<Word16>(), from.cast::<Word16>());
                stream::<Aligned, _>(begin, end, |i| from.at(i).load(), |i, unit| to.at(i).store(unit));
            },
        )
    }

    /// Zero-copy allgather for any alignment and length.
    pub fn allgather_direct_bytes<>(args: GatherDirectArgs) threads 512 for { "_any" = <> } {
        let bytes = args.bytes;
        run(
            &args,
            #[inline(always)]
            |to, from, begin, end| {
                let first = begin as u64 * 16;
                let last = (end as u64 * 16).min(bytes);
                let length = last.saturating_sub(first);
                copy_bytes(to.at64(first), from.at64(first), length, thread_idx(), block_dim());
            },
        )
    }
}

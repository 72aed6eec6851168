//! How long a hop to places of a rank's memory takes.

use mscclrs_device::{
    Global, Guard, Relaxed, Sys, WaitKind, arch, kernel_args, kernels, poll, thread_idx,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;

kernel_args! {
    /// Arguments of [`near`].
    pub struct NearArgs {
        /// What ends the waits.
        pub guard: Guard,
        /// This rank's places, zero at first.
        pub here: Global<u64>,
        /// The peer's places.
        pub there: Global<u64>,
        /// Cycles of a round trip by way of each place, those of the first half first; written by rank
        /// `measures` only.
        pub cycles: Global<u32>,
        /// Places of each half.
        pub count: u32,
        /// 8-byte words from place to place.
        pub step: u32,
        /// 8-byte words from the first half to the second.
        pub half: u32,
        /// Padding.
        pub _pad: u32,
        /// This rank, 0 or 1.
        pub rank: u32,
        /// The rank whose places are measured; the other receives at its place 0.
        pub measures: u32,
    }
}

/// Round trips of a place. The mean of all but the first counts: the first may be the one that brings
/// the address into the translation buffers, which takes a hundred times as long.
const ROUNDS: u32 = 33;

/// Most cycles that a round trip is put off. What comes in is seen at the next poll, and a
/// poll takes longer than places differ: so the round trips begin at all moments between two polls.
const DELAYS: u32 = 512;

kernels! {
    module = MODULE;

    /// One lane of each of two ranks: hops to and fro, by way of each place of one of them.
    pub fn near<>(args: NearArgs) threads 32 for { "" = <> } {
        if thread_idx() != 0 {
            return Ok(());
        }
        let peer = 1 - args.rank;
        // Both runs of the kernel use place 0 of both ranks, so their numbers differ.
        let mut number = 1 + args.measures as u64 * (2 * args.count * ROUNDS) as u64;
        let mut index = 0;
        while index < 2 * args.count {
            let place = if index < args.count {
                index * args.step
            } else {
                args.half + (index - args.count) * args.step
            };
            let (mut sum, mut round) = (0, 0);
            while round < ROUNDS {
                let want = number;
                let came = |seen| seen == want;
                if args.rank == args.measures {
                    arch::pause(round * (DELAYS / (ROUNDS - 1)));
                    let since = arch::cycles();
                    args.there.store_atomic(Relaxed, Sys, number);
                    let at = args.here.at(place);
                    poll(&args.guard, at, want, WaitKind::Semaphore, peer, came)?;
                    let took = arch::cycles().wrapping_sub(since);
                    sum += if round == 0 { 0 } else { took };
                } else {
                    poll(&args.guard, args.here, want, WaitKind::Semaphore, peer, came)?;
                    args.there.at(place).store_atomic(Relaxed, Sys, number);
                }
                number += 1;
                round += 1;
            }
            if args.rank == args.measures {
                args.cycles.at(index).store(sum / (ROUNDS - 1));
            }
            index += 1;
        }
        Ok(())
    }
}

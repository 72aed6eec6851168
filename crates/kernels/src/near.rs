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
        /// Cycles of a round trip by way of each place; written by rank `measures` only.
        pub cycles: Global<u32>,
        /// Number of places.
        pub count: u32,
        /// 8-byte words from place to place.
        pub step: u32,
        /// This rank, 0 or 1.
        pub rank: u32,
        /// The rank whose places are measured; the other receives at its place 0.
        pub measures: u32,
    }
}

/// Round trips of a place; the fastest counts.
const ROUNDS: u32 = 6;

kernels! {
    module = MODULE;

    /// One lane of each of two ranks: hops to and fro, by way of each place of one of them.
    pub fn near<>(args: NearArgs) threads 32 for { "" = <> } {
        if thread_idx() != 0 {
            return Ok(());
        }
        let peer = 1 - args.rank;
        // Both runs of the kernel use place 0 of both ranks, so their numbers differ.
        let mut number = 1 + args.measures as u64 * (args.count * ROUNDS) as u64;
        let mut place = 0;
        while place < args.count {
            let mut fastest = u32::MAX;
            let mut round = 0;
            while round < ROUNDS {
                let want = number;
                let came = |seen| seen == want;
                if args.rank == args.measures {
                    let since = arch::cycles();
                    args.there.store_atomic(Relaxed, Sys, number);
                    let at = args.here.at(place * args.step);
                    poll(&args.guard, at, want, WaitKind::Semaphore, peer, came)?;
                    let cycles = arch::cycles().wrapping_sub(since);
                    fastest = if cycles < fastest { cycles } else { fastest };
                } else {
                    poll(&args.guard, args.here, want, WaitKind::Semaphore, peer, came)?;
                    args.there.at(place * args.step).store_atomic(Relaxed, Sys, number);
                }
                number += 1;
                round += 1;
            }
            if args.rank == args.measures {
                args.cycles.at(place).store(fastest);
            }
            place += 1;
        }
        Ok(())
    }
}

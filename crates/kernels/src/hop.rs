//! Ping-pong between two ranks: what one hop costs.

use mscclrs_device::{
    DeviceResult, Global, Guard, Ll8, Ll16, Packet, Params, Semaphore, Unit, kernel_args, kernels,
    thread_idx,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;

kernel_args! {
    /// Arguments of [`signal_hop`].
    pub struct SignalHopArgs {
        /// What ends the waits.
        pub guard: Guard,
        /// This rank's side.
        pub semaphore: Semaphore,
        /// Round trips; two hops each.
        pub rounds: u32,
        /// 0: begins; 1: answers.
        pub rank: u32,
    }
}

kernel_args! {
    /// Arguments of [`packet_hop`].
    pub struct PacketHopArgs {
        /// What ends the waits.
        pub guard: Guard,
        /// This rank's slot, 16 bytes.
        pub local: Global<u64>,
        /// The peer's slot.
        pub remote: Global<u64>,
        /// One word in device memory that counts round trips over launches; 0 at first.
        pub count: Global<u64>,
        /// Round trips; two hops each.
        pub rounds: u32,
        /// 0: begins; 1: answers.
        pub rank: u32,
    }
}

#[inline(always)]
fn packets<P: Packet<Payload: Unit>>(args: &Params<PacketHopArgs>) -> DeviceResult {
    if thread_idx() != 0 {
        return Ok(());
    }
    let begun = args.count.load();
    let mut k = 0;
    while k < args.rounds {
        // Flags of neighbouring round trips differ and none is 0; the slot holds one at a time.
        let flag = ((begun + k as u64) as u32) | 0x8000_0000;
        if args.rank == 0 {
            P::put(args.remote, Default::default(), flag);
            P::take(&args.guard, args.local, flag, 1)?;
        } else {
            P::take(&args.guard, args.local, flag, 0)?;
            P::put(args.remote, Default::default(), flag);
        }
        k += 1;
    }
    args.count.store(begun + args.rounds as u64);
    Ok(())
}

kernels! {
    module = MODULE;

    /// A signal handed to and fro by one lane: `_relaxed` orders nothing, `_ordered` makes visible what was
    /// done before it.
    pub fn signal_hop<S: SignalKind>(args: SignalHopArgs) threads 32 for {
        "_relaxed" = <RelaxedSignal>,
        "_ordered" = <OrderedSignal>,
    } {
        if thread_idx() != 0 {
            return Ok(());
        }
        let semaphore = args.semaphore;
        let mut k = 0;
        while k < args.rounds {
            if args.rank == 0 {
                S::signal(&semaphore);
                S::wait(&semaphore, &args.guard)?;
            } else {
                S::wait(&semaphore, &args.guard)?;
                S::signal(&semaphore);
            }
            k += 1;
        }
        Ok(())
    }

    /// A packet handed to and fro: one lane.
    pub fn packet_hop<P: PacketKind>(args: PacketHopArgs) threads 32 for {
        "_ll8" = <Ll8>,
        "_ll16" = <Ll16>,
    } {
        P::run(&args)
    }
}

/// One instance.
pub trait PacketKind {
    /// Runs a lane.
    fn run(args: &Params<PacketHopArgs>) -> DeviceResult;
}

impl<P: Packet<Payload: Unit>> PacketKind for P {
    #[inline(always)]
    fn run(args: &Params<PacketHopArgs>) -> DeviceResult {
        packets::<P>(args)
    }
}

/// How a signal orders memory.
pub trait SignalKind {
    /// Signals the peer.
    fn signal(semaphore: &Semaphore);
    /// Waits for the peer's signal.
    fn wait(semaphore: &Semaphore, guard: &Guard) -> DeviceResult;
}

/// Orders nothing.
pub struct RelaxedSignal;

impl SignalKind for RelaxedSignal {
    #[inline(always)]
    fn signal(semaphore: &Semaphore) {
        semaphore.signal_relaxed();
    }
    #[inline(always)]
    fn wait(semaphore: &Semaphore, guard: &Guard) -> DeviceResult {
        semaphore.wait_relaxed(guard)
    }
}

/// Release and acquire.
pub struct OrderedSignal;

impl SignalKind for OrderedSignal {
    #[inline(always)]
    fn signal(semaphore: &Semaphore) {
        semaphore.signal();
    }
    #[inline(always)]
    fn wait(semaphore: &Semaphore, guard: &Guard) -> DeviceResult {
        semaphore.wait(guard)
    }
}

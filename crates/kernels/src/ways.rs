//! Ways to hand an array of handles to a kernel, and ways to signal and to wait, side by side: what
//! the others' choices are measured by.
//!
//! The ways not chosen are here only. `mscclrs bench limits` measures them all in one run.

use core::marker::PhantomData;

use mscclrs_device::atomic::LoadOrder;
use mscclrs_device::{
    Acquire, DeviceResult, Global, Guard, ParamArray, Params, Polled, Relaxed, Release, Sys,
    WaitKind, Wanted, arch, fence, kernel_args, kernels, param_at, thread_idx, wait_until,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;
use crate::ranks::INLINE_RANKS;

kernel_args! {
    /// Arguments of [`handle_way`].
    pub struct HandleWayArgs {
        /// An array of pointers in the arguments.
        pub array: ParamArray<Global<u64>, INLINE_RANKS>,
        /// The same array in device memory.
        pub table: Global<Global<u64>>,
        /// A word a lane.
        pub output: Global<u64>,
        /// The element that is used.
        pub index: u32,
        /// Padding.
        pub _pad: u32,
    }
}

kernel_args! {
    /// Arguments of [`wait_way`].
    pub struct WaitWayArgs {
        /// What ends the waits.
        pub guard: Guard,
        /// The peer's inbound count.
        pub remote: Global<u64>,
        /// This rank's inbound count.
        pub inbound: Global<u64>,
        /// Round trips of the launches before; 0 at first.
        pub count: Global<u64>,
        /// Round trips; two hops each.
        pub rounds: u32,
        /// 0: begins; 1: answers.
        pub rank: u32,
    }
}

/// A way to get at an element of an array of handles.
pub trait HandleWay {
    /// The element.
    fn pointer(args: &Params<HandleWayArgs>) -> Global<u64>;
}

/// In the arguments, at an index known when compiled.
pub struct Known;

impl HandleWay for Known {
    #[inline(always)]
    fn pointer(args: &Params<HandleWayArgs>) -> Global<u64> {
        param_at!(args, HandleWayArgs, array, 3)
    }
}

/// In the arguments, at an index told at run time.
pub struct Told;

impl HandleWay for Told {
    #[inline(always)]
    fn pointer(args: &Params<HandleWayArgs>) -> Global<u64> {
        param_at!(args, HandleWayArgs, array, args.index)
    }
}

/// In device memory.
pub struct Table;

impl HandleWay for Table {
    #[inline(always)]
    fn pointer(args: &Params<HandleWayArgs>) -> Global<u64> {
        args.table.at(args.index).load_ptr()
    }
}

/// A way to signal.
pub trait SignalWay {
    /// Makes the peer's count `count`, from one less.
    fn signal(remote: Global<u64>, count: u64);
}

/// An addition that orders nothing.
pub struct AddRelaxed;

impl SignalWay for AddRelaxed {
    #[inline(always)]
    fn signal(remote: Global<u64>, _count: u64) {
        remote.reduce_add(Relaxed, Sys, 1);
    }
}

/// An addition with release.
pub struct AddRelease;

impl SignalWay for AddRelease {
    #[inline(always)]
    fn signal(remote: Global<u64>, _count: u64) {
        remote.reduce_add(Release, Sys, 1);
    }
}

/// A store that orders nothing.
pub struct StoreRelaxed;

impl SignalWay for StoreRelaxed {
    #[inline(always)]
    fn signal(remote: Global<u64>, count: u64) {
        remote.store_atomic(Relaxed, Sys, count);
    }
}

/// A store with release.
pub struct StoreRelease;

impl SignalWay for StoreRelease {
    #[inline(always)]
    fn signal(remote: Global<u64>, count: u64) {
        remote.store_atomic(Release, Sys, count);
    }
}

/// A way to wait.
pub trait WaitWay {
    /// Waits until the count at `at` has reached what is wanted.
    fn wait(guard: &Guard, at: Global<u64>, wanted: Wanted) -> DeviceResult;
}

/// A count that is polled; `A` says how.
struct Count<A> {
    at: Global<u64>,
    want: u64,
    how: A,
}

impl<A: LoadOrder + Copy> Polled for Count<A> {
    type Seen = u64;

    #[inline(always)]
    fn peek(&self) -> u64 {
        self.at.load_atomic(self.how, Sys)
    }

    #[inline(always)]
    fn ready(&self, seen: u64) -> bool {
        seen >= self.want
    }

    #[inline(always)]
    fn word(&self, seen: u64) -> (Global<u64>, u64) {
        (self.at, seen)
    }
}

#[inline(always)]
fn poll_by<A>(how: A, guard: &Guard, at: Global<u64>, wanted: Wanted) -> DeviceResult
where
    A: LoadOrder + Copy,
{
    let count = Count { at, want: wanted.expected, how };
    wait_until(guard, wanted, &count, count.peek())?;
    Ok(())
}

/// Relaxed polls, one on its way at a time.
pub struct Single;

impl WaitWay for Single {
    #[inline(always)]
    fn wait(guard: &Guard, at: Global<u64>, wanted: Wanted) -> DeviceResult {
        poll_by(Relaxed, guard, at, wanted)
    }
}

/// Relaxed polls, two on their way, the second so many cycles after the first.
pub struct Double<const CYCLES: u32>;

impl<const CYCLES: u32> WaitWay for Double<CYCLES> {
    #[inline(always)]
    fn wait(guard: &Guard, at: Global<u64>, wanted: Wanted) -> DeviceResult {
        let want = wanted.expected;
        let mut left = arch::settle(1 << 12);
        let mut first = at.load_atomic(Relaxed, Sys);
        arch::pause(CYCLES);
        while left != 0 {
            arch::keep_rolled();
            let second = at.load_atomic(Relaxed, Sys);
            if first >= want {
                return Ok(());
            }
            first = at.load_atomic(Relaxed, Sys);
            if second >= want {
                return Ok(());
            }
            left -= 2;
        }
        // It takes long: by the way that looks whether it has to end.
        Single::wait(guard, at, wanted)
    }
}

/// Every poll is an acquire.
pub struct AcquirePolls;

impl WaitWay for AcquirePolls {
    #[inline(always)]
    fn wait(guard: &Guard, at: Global<u64>, wanted: Wanted) -> DeviceResult {
        poll_by(Acquire, guard, at, wanted)
    }
}

/// Relaxed polls, then one acquire.
pub struct AcquireLast;

impl WaitWay for AcquireLast {
    #[inline(always)]
    fn wait(guard: &Guard, at: Global<u64>, wanted: Wanted) -> DeviceResult {
        poll_by(Relaxed, guard, at, wanted)?;
        at.load_atomic(Acquire, Sys);
        Ok(())
    }
}

/// Relaxed polls, then a fence.
pub struct FenceLast;

impl WaitWay for FenceLast {
    #[inline(always)]
    fn wait(guard: &Guard, at: Global<u64>, wanted: Wanted) -> DeviceResult {
        poll_by(Relaxed, guard, at, wanted)?;
        fence::<Sys>();
        Ok(())
    }
}

/// A way to signal and one to wait.
pub trait Way {
    /// Runs a lane.
    fn run(args: &Params<WaitWayArgs>) -> DeviceResult;
}

/// The two.
pub struct Both<S, W>(PhantomData<(S, W)>);

impl<S: SignalWay, W: WaitWay> Way for Both<S, W> {
    #[inline(always)]
    fn run(args: &Params<WaitWayArgs>) -> DeviceResult {
        if thread_idx() != 0 {
            return Ok(());
        }
        let begun = args.count.load();
        let mut k = 0;
        while k < args.rounds {
            let count = begun + k as u64 + 1;
            let answers = args.rank != 0;
            if !answers {
                S::signal(args.remote, count);
            }
            let peer = 1 - args.rank;
            let wanted = Wanted { expected: count, kind: WaitKind::Semaphore, peer };
            W::wait(&args.guard, args.inbound, wanted)?;
            if answers {
                S::signal(args.remote, count);
            }
            k += 1;
        }
        args.count.store(begun + args.rounds as u64);
        Ok(())
    }
}

kernels! {
    module = MODULE;

    /// Every lane gets a pointer out of an array, loads what it points to, and stores that: what a
    /// launch takes more than an empty one is the way to the pointer and two accesses.
    pub fn handle_way<W: HandleWay>(args: HandleWayArgs) threads 512 for {
        "_known" = <Known>,
        "_told" = <Told>,
        "_table" = <Table>,
    } {
        let t = thread_idx();
        args.output.at(t).store(W::pointer(&args).at(t).load() + 1);
        Ok(())
    }

    /// A signal handed to and fro by one lane.
    pub fn wait_way<W: Way>(args: WaitWayArgs) threads 32 for {
        "_add" = <Both<AddRelaxed, Single>>,
        "_store" = <Both<StoreRelaxed, Single>>,
        "_store_two" = <Both<StoreRelaxed, Double<0>>>,
        "_store_two_apart" = <Both<StoreRelaxed, Double<160>>>,
        "_ordered_add" = <Both<AddRelease, AcquireLast>>,
        "_ordered_store" = <Both<StoreRelease, AcquireLast>>,
        "_ordered_polls" = <Both<StoreRelease, AcquirePolls>>,
        "_ordered_fence" = <Both<StoreRelease, FenceLast>>,
    } {
        W::run(&args)
    }
}

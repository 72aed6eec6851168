//! What things cost on this machine's CPU device: `cargo run --release -p mscclrs-sim --example costs`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use mscclrs_device::{
    Control, DeviceModule, Family, Global, Guard, ImageSource, KernelArgs, Release, Sys, WaitKind,
    block_dim, block_sync, kernel_args, kernels, poll, poll_acquire, thread_idx,
};
use mscclrs_sim::{Device, DeviceConfig, Graph, Launch, Queue, Work};

static MODULE: DeviceModule = DeviceModule { name: "costs", source: ImageSource::Embedded(&[]) };

kernel_args! {
    /// Arguments of all kernels here.
    pub struct Args {
        /// Ends waits.
        pub guard: Guard,
        /// Written by the other side.
        pub mine: Global<u64>,
        /// Written by this side.
        pub theirs: Global<u64>,
        /// How often.
        pub rounds: u64,
        /// This side's number, 0 or 1.
        pub side: u64,
    }
}

kernels! {
    module = MODULE;

    /// Nothing, or so many barriers.
    pub fn barriers<>(args: Args) threads 1024 for { "" = <> } {
        let mut round = 0;
        while round < args.rounds {
            block_sync();
            round += 1;
        }
        Ok(())
    }

    /// Hops of one lane.
    pub fn hops<>(args: Args) threads 1024 for { "" = <> } {
        let mut hop = 0;
        while hop < args.rounds {
            hop += 1;
            let want = hop;
            if args.side == 0 {
                args.theirs.store_atomic(Release, Sys, hop);
            }
            poll_acquire(&args.guard, args.mine, want, WaitKind::Semaphore, 1, |v| v >= want)?;
            if args.side == 1 {
                args.theirs.store_atomic(Release, Sys, hop);
            }
        }
        Ok(())
    }

    /// Two packets' worth a lane sent and received, as a small allreduce does.
    pub fn exchange<>(args: Args) threads 1024 for { "" = <> } {
        let flag = args.rounds;
        let mut i = 0;
        while i < 2 {
            let at = thread_idx() + i * block_dim();
            args.theirs.at(at).store_atomic(mscclrs_device::Relaxed, Sys, flag);
            i += 1;
        }
        i = 0;
        while i < 2 {
            let at = args.mine.at(thread_idx() + i * block_dim());
            poll(&args.guard, at, flag, WaitKind::Packet, 1, |v| v == flag)?;
            i += 1;
        }
        Ok(())
    }
}

fn launch<A: KernelArgs>(queue: &Queue, family: &'static Family<A>, threads: u32, args: &A) {
    let Some(kernel) = family.instance("") else { return };
    // SAFETY: plain data.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(args).cast::<u8>(), size_of::<A>())
    };
    // SAFETY: `main` keeps the memory until the queue is synchronised.
    let launch = unsafe { Launch::new(kernel, 1, threads, 0, bytes, queue.device().config()) };
    match launch {
        // SAFETY: as above.
        Ok(launch) => drop(queue.run(Arc::new(unsafe { Graph::single(Work::Launch(launch)) }))),
        Err(error) => println!("{error}"),
    }
}

/// Median microseconds of `work`.
fn median(mut work: impl FnMut(u64)) -> f64 {
    let mut times: Vec<f64> = (0..300)
        .map(|round| {
            let start = Instant::now();
            work(round + 1);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn finish(queue: &Queue) {
    if queue.synchronize(Some(Duration::from_secs(60))) != Ok(true) {
        println!("a queue did not end");
        std::process::exit(1);
    }
}

fn main() -> std::io::Result<()> {
    let config = |ordinal| DeviceConfig { ordinal, threads: 1024, ..Default::default() };
    let (a, b) = (Device::start(config(0))?, Device::start(config(1))?);
    let (first, second, third) = (a.create_queue(), b.create_queue(), a.create_queue());
    let control = Control::default();
    let words: Vec<AtomicU64> = (0..8192).map(|_| AtomicU64::new(0)).collect();
    let at = |index: usize| Global::from_address(&raw const words[index] as u64);
    let guard = Guard {
        control: Global::from_address(&raw const control as u64),
        claim: at(8191).cast(),
        timeout_ns: 0,
        launch: 0,
    };
    let args = |side: u64, rounds: u64, base: usize| {
        let (mine, theirs) = if side == 0 { (0, 2048) } else { (2048, 0) };
        Args { guard, mine: at(base + mine), theirs: at(base + theirs), rounds, side }
    };
    for threads in [1, 128, 1024] {
        let us = median(|_| {
            launch(&first, &barriers, threads, &args(0, 0, 0));
            finish(&first);
        });
        println!("empty launch of {threads} lanes: {us:.0} us");
    }
    for threads in [32, 256, 1024] {
        let us = median(|_| {
            launch(&first, &barriers, threads, &args(0, 100, 0));
            finish(&first);
        });
        let ns = 10.0 * us / f64::from(threads);
        println!("barrier of {threads} lanes: {:.1} us, {ns:.0} ns a lane", us / 100.0);
    }
    for (name, other) in [("two devices", &second), ("two queues", &third)] {
        let us = median(|_| {
            words.iter().for_each(|word| word.store(0, std::sync::atomic::Ordering::Release));
            launch(&first, &hops, 1, &args(0, 1000, 0));
            launch(other, &hops, 1, &args(1, 1000, 0));
            finish(&first);
            finish(other);
        });
        println!("hop between {name}: {:.2} us", us / 2000.0);
        words.iter().for_each(|word| word.store(0, std::sync::atomic::Ordering::Release));
        let us = median(|round| {
            launch(&first, &exchange, 128, &args(0, round, 4096));
            launch(other, &exchange, 128, &args(1, round, 4096));
            finish(&first);
            finish(other);
        });
        println!("exchange of 1 KiB by 128 lanes between {name}: {us:.0} us");
    }
    Ok(())
}

//! Ranks as threads on the CPU device, and the kernels that the tests launch.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use mscclrs_core::{
    Communicator, Connection, EndpointConfig, LocalBootstrap, MemoryChannel, RegisteredMemory,
    Result, Semaphore,
};
use mscclrs_device::{
    DeviceModule, Guard, ImageSource, Kernel, Ll8, Ll16, block_dim, block_sync, kernel_args,
    kernels, thread_idx,
};
use mscclrs_gpu::{BackendKind, Buffer, Device, Grid, MemoryKind, Stream};

pub static MODULE: DeviceModule =
    DeviceModule { name: "core-tests", source: ImageSource::Embedded(&[]) };

kernel_args! {
    pub struct SemaphoreArgs {
        pub guard: Guard,
        pub semaphore: mscclrs_device::Semaphore,
        pub count: u64,
    }
}

kernel_args! {
    pub struct ChannelArgs {
        pub guard: Guard,
        pub channel: mscclrs_device::MemoryChannel,
        pub to: u64,
        pub from: u64,
        pub bytes: u64,
        pub flag: u64,
    }
}

kernels! {
    module = MODULE;
    pub fn wait_signals<>(args: SemaphoreArgs) threads 256 for { "" = <> } {
        if thread_idx() == 0 {
            let mut i = 0;
            while i < args.count {
                args.semaphore.wait(&args.guard)?;
                i += 1;
            }
        }
        Ok(())
    }
    pub fn send_signals<>(args: SemaphoreArgs) threads 256 for { "" = <> } {
        if thread_idx() == 0 {
            let mut i = 0;
            while i < args.count {
                args.semaphore.signal();
                i += 1;
            }
        }
        Ok(())
    }
    pub fn put<>(args: ChannelArgs) threads 256 for { "" = <> } {
        args.channel.put(args.to, args.from, args.bytes, thread_idx(), block_dim());
        block_sync();
        if thread_idx() == 0 {
            args.channel.signal();
            args.channel.wait(&args.guard)?;
        }
        Ok(())
    }
    pub fn get<>(args: ChannelArgs) threads 256 for { "" = <> } {
        if thread_idx() == 0 {
            args.channel.signal();
            args.channel.wait(&args.guard)?;
        }
        block_sync();
        args.channel.get(args.to, args.from, args.bytes, thread_idx(), block_dim());
        block_sync();
        if thread_idx() == 0 {
            args.channel.signal_relaxed();
            args.channel.wait_relaxed(&args.guard)?;
        }
        Ok(())
    }
    pub fn packets8<>(args: ChannelArgs) threads 256 for { "" = <> } {
        let (count, flag) = ((args.bytes / 4) as u32, args.flag as u32);
        let (lane, lanes) = (thread_idx(), block_dim());
        args.channel.put_packets::<Ll8>(0, args.from, count, flag, lane, lanes);
        args.channel.take_packets::<Ll8>(&args.guard, args.to, 0, count, flag, lane, lanes)
    }
    pub fn packets16<>(args: ChannelArgs) threads 256 for { "" = <> } {
        let (count, flag) = ((args.bytes / 8) as u32, args.flag as u32);
        let (lane, lanes) = (thread_idx(), block_dim());
        args.channel.put_packets::<Ll16>(0, args.from, count, flag, lane, lanes);
        args.channel.take_packets::<Ll16>(&args.guard, args.to, 0, count, flag, lane, lanes)
    }
    pub fn write_words<>(args: ChannelArgs) threads 256 for { "" = <> } {
        let mut i = thread_idx() as u64;
        while i < args.bytes / 4 {
            args.channel.write::<u32>(args.to / 4 + i, (args.flag + i) as u32);
            i += block_dim() as u64;
        }
        block_sync();
        if thread_idx() == 0 {
            args.channel.signal();
            args.channel.wait(&args.guard)?;
        }
        Ok(())
    }
    pub fn read_words<>(args: ChannelArgs) threads 256 for { "" = <> } {
        let local = args.channel.local.cast::<u32>();
        let mut i = thread_idx() as u64;
        while i < args.bytes / 4 {
            local.at64(args.to / 4 + i).store(args.channel.read::<u32>(args.from / 4 + i));
            i += block_dim() as u64;
        }
        Ok(())
    }
    pub fn poll_once<>(args: ChannelArgs) threads 256 for { "" = <> } {
        if thread_idx() == 0 {
            let here = args.channel.poll();
            args.channel.local.cast::<u32>().at64(args.to / 4).store(here as u32);
        }
        Ok(())
    }
}

/// A kernel of this file.
pub fn kernel(name: &str) -> &'static Kernel {
    all().find(|kernel| kernel.name == name).unwrap()
}

pub fn timeout() -> Duration {
    Duration::from_secs(30)
}

/// Runs `body` on a thread a rank, each with a CPU device of its own; gives what they returned.
pub fn on_ranks<T: Send>(n: u32, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let bootstraps = LocalBootstrap::create(n, timeout());
    on_bootstraps(bootstraps, |rank| rank, body)
}

pub fn on_bootstraps<T: Send>(
    bootstraps: Vec<LocalBootstrap>,
    ordinal: impl Fn(u32) -> u32 + Sync,
    body: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let (body, ordinal) = (&body, &ordinal);
        let threads: Vec<_> = bootstraps
            .into_iter()
            .enumerate()
            .map(|(rank, bootstrap)| {
                scope.spawn(move || {
                    let device = Device::open(BackendKind::Cpu, ordinal(rank as u32)).unwrap();
                    body(Rank::new(Communicator::new(Arc::new(bootstrap), device).unwrap()))
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}

/// A communicator and a stream.
pub struct Rank {
    pub comm: Communicator,
    pub stream: Stream,
}

impl Rank {
    pub fn new(comm: Communicator) -> Rank {
        let stream = comm.device().create_stream().unwrap();
        Rank { comm, stream }
    }

    pub fn rank(&self) -> u32 {
        self.comm.rank()
    }

    pub fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.rank();
        (0..self.comm.world_size()).filter(move |&peer| peer != me)
    }

    pub fn connect(&self, peer: u32, tag: u32) -> Connection {
        self.comm.connect(&EndpointConfig::default(), peer, tag).unwrap().get().unwrap()
    }

    pub fn semaphore(&self, connection: &Connection, tag: u32) -> Semaphore {
        self.comm.build_semaphore(connection, tag).unwrap().get().unwrap()
    }

    pub fn buffer(&self, bytes: u64) -> Buffer {
        self.comm.device().alloc(bytes, MemoryKind::Shareable).unwrap()
    }

    pub fn exchange(&self, peer: u32, memory: &RegisteredMemory) -> RegisteredMemory {
        self.comm.send_memory(memory, peer, 9).unwrap();
        self.comm.recv_memory(peer, 9).unwrap().get().unwrap()
    }

    /// A channel over `data`, with packet memory of twice the size.
    pub fn channel(&self, peer: u32, data: &Buffer) -> MemoryChannel {
        let semaphore = self.semaphore(&self.connect(peer, 1), 1);
        let local = self.comm.register_memory(data).unwrap();
        let inbox = self.comm.register_memory(&self.buffer(2 * data.bytes())).unwrap();
        let (remote, outbox) = (self.exchange(peer, &local), self.exchange(peer, &inbox));
        let channel = MemoryChannel::new(&semaphore, &remote, &local).unwrap();
        channel.with_packets(&inbox, &outbox).unwrap()
    }

    pub fn launch_semaphore(&self, name: &str, semaphore: &Semaphore, count: u64) -> Result<()> {
        let kernel = kernel(name);
        let launch = mscclrs_core::register_launch_tag(kernel.name);
        let semaphore = semaphore.device_handle();
        let args = SemaphoreArgs { guard: self.comm.guard(launch), semaphore, count };
        self.launch(kernel, 32, &args)
    }

    pub fn launch<A: mscclrs_device::KernelArgs>(
        &self,
        kernel: &'static Kernel,
        threads: u32,
        args: &A,
    ) -> Result<()> {
        let turn = self.comm.enter()?;
        turn.order(&self.stream)?;
        let function = self.comm.device().function(kernel)?;
        // SAFETY: the arguments' addresses are of live channels and semaphores of the test.
        unsafe { self.stream.launch(&function, Grid::new(1, threads), args)? };
        Ok(())
    }

    pub fn synchronize(&self) -> Result<()> {
        self.comm.synchronize(&self.stream)
    }
}

//! Kernels: one that says that it runs, and then waits for what never comes; one that needs stacks.

use mscclrs_core::{Communicator, register_launch_tag};
use mscclrs_device::{
    DeviceModule, Global, Guard, ImageSource, Kernel, Release, Sys, WaitKind, block_sync,
    kernel_args, kernels, poll_acquire, thread_idx,
};
use mscclrs_gpu::{Buffer, Device, Function, Grid, MemoryKind, Result, Stream};

static MODULE: DeviceModule = DeviceModule { name: "faults", source: ImageSource::Embedded(&[]) };

kernel_args! {
    pub struct StayArgs {
        pub guard: Guard,
        pub words: Global<u64>,
    }
}

kernel_args! {
    pub struct MeetArgs {
        pub nothing: u64,
    }
}

kernels! {
    module = MODULE;
    pub fn meet<>(_args: MeetArgs) threads 256 for { "" = <> } {
        block_sync();
        Ok(())
    }
    pub fn stay<>(args: StayArgs) threads 32 for { "" = <> } {
        if thread_idx() == 0 {
            args.words.store_atomic(Release, Sys, 1);
            poll_acquire(&args.guard, args.words.at64(1), 1, WaitKind::Semaphore, 0, |v| v == 1)?;
        }
        Ok(())
    }
}

/// The kernel, ready to be launched.
pub(crate) struct Stay {
    words: Buffer,
    function: Function,
    communicator: Communicator,
}

impl Stay {
    pub(crate) fn new(communicator: &Communicator) -> Stay {
        let device = communicator.device();
        let words = device.alloc(16, MemoryKind::Host).unwrap();
        let function = device.function(kernel("stay")).unwrap();
        Stay { words, function, communicator: communicator.clone() }
    }

    pub(crate) fn launch(&self, stream: &Stream) {
        self.communicator.order(stream).unwrap();
        let guard = self.communicator.guard(register_launch_tag("stay"));
        let args = StayArgs { guard, words: Global::from_address(self.words.address()) };
        // SAFETY: both words are in live memory: whoever launches keeps this until the kernel ends.
        unsafe { stream.launch(&self.function, Grid::new(1, 32), &args).unwrap() };
    }

    /// Blocks until the kernel runs.
    pub(crate) fn until_running(&self) {
        let word = self.words.host_address().unwrap().cast::<u64>();
        // SAFETY: the first word of live memory, which the kernel too reaches by atomics only.
        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(word) };
        while word.load(std::sync::atomic::Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
    }
}

/// Lanes that wait for their block, each on a stack of its own.
pub(crate) struct Meet(Function);

impl Meet {
    pub(crate) fn new(device: &Device) -> Result<Meet> {
        Ok(Meet(device.function(kernel("meet"))?))
    }

    pub(crate) fn launch(&self, stream: &Stream, blocks: u32, threads: u32) -> Result<()> {
        // SAFETY: the kernel touches no memory.
        unsafe { stream.launch(&self.0, Grid::new(blocks, threads), &MeetArgs { nothing: 0 }) }
    }
}

fn kernel(name: &str) -> &'static Kernel {
    all().find(|kernel| kernel.name == name).unwrap()
}

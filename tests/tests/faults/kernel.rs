//! Kernels: one that says that it runs, and then waits for what never comes; one that needs stacks.

use mscclrs_core::{Communicator, register_launch_tag};
use mscclrs_device::{DeviceModule, Global, ImageSource, Kernel, block_sync, kernel_args, kernels};
use mscclrs_gpu::{Buffer, Device, Function, Grid, MemoryKind, Result, Stream};
use mscclrs_kernels::near::{NearArgs, near};

static MODULE: DeviceModule = DeviceModule { name: "faults", source: ImageSource::Embedded(&[]) };

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
}

/// One that waits: the kernel that hops to and fro, with nobody there to hop back. It exists for GPUs
/// too.
pub(crate) struct Stay {
    words: Buffer,
    function: Function,
    communicator: Communicator,
}

impl Stay {
    pub(crate) fn new(communicator: &Communicator) -> Stay {
        let device = communicator.device();
        let words = device.alloc(16, MemoryKind::Host).unwrap();
        let function = device.function(near.instance("").unwrap()).unwrap();
        Stay { words, function, communicator: communicator.clone() }
    }

    pub(crate) fn launch(&self, stream: &Stream) {
        self.communicator.order(stream).unwrap();
        let args = NearArgs {
            guard: self.communicator.guard(register_launch_tag("stay")),
            there: Global::from_address(self.words.address()),
            here: Global::from_address(self.words.address() + 8),
            cycles: Global::null(),
            count: 1,
            step: 1,
            half: 1,
            _pad: 0,
            // It waits for rank 0.
            rank: 1,
            measures: 1,
        };
        // SAFETY: both words are in live memory: whoever launches keeps this until the kernel ends. It
        // never comes to write cycles.
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

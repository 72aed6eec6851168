//! Small kernels that differ in one function, for tests of what is no fault and what is one.

use std::time::{Duration, Instant};

use mscclrs_device::{DeviceResult, Global, Guard, kernel_args};
use mscclrs_sim::{DeviceConfig, Finding, Mode, TestMemory};

use crate::common::launch_kernel;
use crate::world::Ranks;

kernel_args! {
    pub struct PartArgs {
        pub guard: Guard,
        /// Device memory that all ranks see, zeros that have been written.
        pub memory: Global<u64>,
        /// Host memory that all ranks see.
        pub host: Global<u64>,
        pub rank: u64,
    }
}

/// What the lanes of a test do.
pub(crate) trait Part {
    fn run(args: &PartArgs) -> DeviceResult;
}

/// Makes an instance of `part` of each.
macro_rules! parts {
    ($($name:ident $suffix:literal = |$args:ident| $body:block)*) => {
        $(
            struct $name;
            impl crate::parts::Part for $name {
                #[allow(unreachable_code)]
                fn run($args: &crate::parts::PartArgs) -> mscclrs_device::DeviceResult {
                    $body
                    Ok(())
                }
            }
        )*
        mscclrs_device::kernels! {
            module = crate::common::MODULE;
            pub fn part<P: crate::parts::Part>(args: crate::parts::PartArgs) threads 256 for {
                $($suffix = <$name>,)*
            } {
                P::run(&args)
            }
        }
    };
}
pub(crate) use parts;

/// Ranks with memory for a part.
pub(crate) struct Parts {
    pub(crate) ranks: Ranks,
    pub(crate) memory: TestMemory,
    pub(crate) host: TestMemory,
}

impl Parts {
    pub(crate) fn new(mode: Mode, devices: u32, words: usize) -> Parts {
        let ranks = Ranks::with(mode, devices, DeviceConfig::default());
        let (memory, host) = (TestMemory::new(8 * words), TestMemory::of_host(64));
        ranks.upload(0, &memory, &vec![0; words]);
        Parts { ranks, memory, host }
    }

    pub(crate) fn args(&self, rank: u64) -> PartArgs {
        let [memory, host] = [&self.memory, &self.host].map(|m| Global::from_address(m.address()));
        PartArgs { guard: self.ranks.guard(), memory, host, rank }
    }

    /// Enqueues a part on a rank.
    pub(crate) fn launch(
        &self,
        kernel: Option<&'static mscclrs_device::Kernel>,
        rank: u64,
        shape: (u32, u32, u32),
    ) -> u64 {
        let queue = &self.ranks.queues[rank as usize];
        launch_kernel(queue, kernel.expect("a part of this name"), shape, &self.args(rank))
    }

    /// Blocks until a kernel has written 1 to the first word of host memory.
    pub(crate) fn wait_for_host_word(&self) {
        let begin = Instant::now();
        while self.host.get(0) != 1 {
            assert!(begin.elapsed() < Duration::from_secs(20), "no kernel wrote it");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// One lane on each rank; what was found, and the memory.
    pub(crate) fn run(
        self,
        kernel: Option<&'static mscclrs_device::Kernel>,
    ) -> (Option<Finding>, TestMemory) {
        for rank in 0..self.ranks.queues.len() as u64 {
            self.launch(kernel, rank, (1, 1, 0));
        }
        (self.ranks.finish(), self.memory)
    }
}

//! What the tests share: memory, launches and a guard.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use mscclrs_device::{
    Control, DeviceModule, Family, Global, Guard, ImageSource, Kernel, KernelArgs, WaitRecord,
};
use mscclrs_sim::{Device, DeviceConfig, Graph, Launch, Queue, Work};

pub static MODULE: DeviceModule =
    DeviceModule { name: "sim_tests", source: ImageSource::Embedded(&[]) };

/// How long a test waits before it fails.
pub const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

pub fn device(multiprocessors: u32, threads: u32) -> Arc<Device> {
    device_with(DeviceConfig { multiprocessors, threads, ..Default::default() })
}

pub fn device_with(config: DeviceConfig) -> Arc<Device> {
    Device::start(config).expect("a thread")
}

/// Zeroed words that kernels use.
pub struct Words(Vec<AtomicU64>);

impl Words {
    pub fn new(count: usize) -> Self {
        Words((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn global<T>(&self) -> Global<T> {
        Global::from_address(self.0.as_ptr() as u64)
    }

    pub fn get(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Acquire)
    }

    pub fn get_u32(&self, index: usize) -> u32 {
        (self.get(index / 2) >> (32 * (index % 2))) as u32
    }

    pub fn set(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Release);
    }
}

/// An abort word and a place for a record.
pub struct Way {
    control: Box<Control>,
    claim: Words,
}

impl Way {
    pub fn new() -> Self {
        Way { control: Box::default(), claim: Words::new(1) }
    }

    pub fn guard(&self, timeout: Duration) -> Guard {
        Guard {
            control: Global::from_address(&raw const *self.control as u64),
            claim: self.claim.global(),
            timeout_ns: timeout.as_nanos() as u64,
            launch: 7,
        }
    }

    pub fn abort(&self) {
        let word = (&raw const self.control.abort).cast_mut();
        // SAFETY: an aligned word that is only accessed atomically meanwhile.
        unsafe { AtomicU32::from_ptr(word) }.store(1, Ordering::Release);
    }

    pub fn record(&self) -> WaitRecord {
        // SAFETY: read after the launch has ended.
        unsafe { (&raw const self.control.record).read_volatile() }
    }
}

pub fn launch<A: KernelArgs>(
    queue: &Queue,
    family: &'static Family<A>,
    (blocks, threads, shared): (u32, u32, u32),
    args: &A,
) -> u64 {
    let kernel = family.instance("").expect("the only instance");
    launch_kernel(queue, kernel, (blocks, threads, shared), args)
}

pub fn launch_kernel<A: KernelArgs>(
    queue: &Queue,
    kernel: &'static Kernel,
    (blocks, threads, shared): (u32, u32, u32),
    args: &A,
) -> u64 {
    let work = launch_work(queue, kernel, (blocks, threads, shared), args);
    // SAFETY: the tests keep their memory until the launch has ended.
    queue.run(Arc::new(unsafe { Graph::single(work) }))
}

/// A launch, for a graph.
pub fn launch_work<A: KernelArgs>(
    queue: &Queue,
    kernel: &'static Kernel,
    (blocks, threads, shared): (u32, u32, u32),
    args: &A,
) -> Work {
    // SAFETY: plain data.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(args).cast::<u8>(), size_of::<A>())
    };
    let config = queue.device().config();
    // SAFETY: the tests keep their memory until the launch has ended.
    let launch = unsafe { Launch::new(kernel, blocks, threads, shared, bytes, config) };
    Work::Launch(launch.expect("a valid launch"))
}

pub fn finish(queue: &Queue) {
    assert_eq!(queue.synchronize(LIMIT), Ok(true));
}

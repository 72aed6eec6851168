//! Modules from PTX, launches, graphs.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use mscclrs_device::{
    DeviceImage, DeviceModule, Global, ImageFormat, ImageSource, Kernel, KernelArgs, kernel_args,
};
use mscclrs_gpu::{Device, Error, Grid, MemoryKind};

use crate::device;

kernel_args! {
    /// Adds `value` to `count` words.
    pub struct AddArgs {
        /// The words.
        pub data: Global<u32>,
        /// How many.
        pub count: u32,
        /// What to add.
        pub value: u32,
    }
}

kernel_args! {
    /// Waits until a word is not 0, at most `limit` nanoseconds.
    pub struct SpinArgs {
        /// The word.
        pub word: Global<u32>,
        /// Nanoseconds.
        pub limit: u64,
    }
}

/// A kernel in PTX with the layout word `abi`.
fn ptx(name: &str, abi: u64, args_bytes: usize, body: &str) -> String {
    format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n\
         .visible .global .align 8 .u64 abi_{name} = 0x{abi:x}U;\n\
         .visible .entry {name}(.param .align 8 .b8 p[{args_bytes}])\n{{\n{body}\nret;\n}}\n"
    )
}

const ADD: &str = "
.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %d<4>;
ld.param.u64 %d1, [p]; ld.param.u32 %r1, [p+8]; ld.param.u32 %r2, [p+12];
cvta.to.global.u64 %d1, %d1;
mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
mad.lo.u32 %r6, %r3, %r4, %r5;
setp.ge.u32 %p, %r6, %r1; @%p ret;
mul.wide.u32 %d2, %r6, 4; add.u64 %d1, %d1, %d2;
ld.global.u32 %r7, [%d1]; add.u32 %r7, %r7, %r2; st.global.u32 [%d1], %r7;";

const SPIN: &str = "
.reg .pred %p; .reg .b32 %r<3>; .reg .b64 %d<6>;
ld.param.u64 %d1, [p]; ld.param.u64 %d2, [p+8];
cvta.to.global.u64 %d1, %d1;
mov.u64 %d3, %globaltimer;
AGAIN:
ld.relaxed.sys.global.u32 %r1, [%d1];
setp.ne.u32 %p, %r1, 0; @%p ret;
mov.u64 %d4, %globaltimer; sub.u64 %d4, %d4, %d3;
setp.lt.u64 %p, %d4, %d2; @%p bra AGAIN;";

/// A zstd frame of one raw block.
fn packed(text: &str) -> &'static [u8] {
    let bytes = text.as_bytes();
    let size = bytes.len() as u32;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend(size.to_le_bytes());
    frame.extend(&((size << 3) | 1).to_le_bytes()[..3]);
    frame.extend(bytes);
    frame.leak()
}

fn kernel<A: KernelArgs>(name: &'static str, text: &str) -> &'static Kernel {
    let image = DeviceImage { sm: 80, format: ImageFormat::Ptx, bytes: packed(text) };
    let module = Box::leak(Box::new(DeviceModule {
        name: "tests",
        source: ImageSource::Embedded(vec![image].leak()),
    }));
    Box::leak(Box::new(Kernel {
        name,
        abi: A::ABI,
        args_bytes: size_of::<A>(),
        max_threads: 1024,
        module,
        host: |_| {},
    }))
}

pub(crate) fn add() -> &'static Kernel {
    static ADDS: LazyLock<&'static Kernel> = LazyLock::new(|| {
        kernel::<AddArgs>("add", &ptx("add", AddArgs::ABI, size_of::<AddArgs>(), ADD))
    });
    *ADDS
}

pub(crate) fn spin() -> &'static Kernel {
    static SPINS: LazyLock<&'static Kernel> = LazyLock::new(|| {
        kernel::<SpinArgs>("spin", &ptx("spin", SpinArgs::ABI, size_of::<SpinArgs>(), SPIN))
    });
    *SPINS
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

#[test]
fn a_kernel_from_ptx_gets_its_arguments() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    let buffer = device.alloc(4 * 1000, MemoryKind::Plain).unwrap();
    let function = device.function(add()).unwrap();
    let args = AddArgs { data: Global::from_address(buffer.address()), count: 999, value: 7 };
    // SAFETY: the words lie in the buffer, which outlives the read below.
    unsafe { stream.launch(&function, Grid::new(4, 256), &args) }.unwrap();
    let mut bytes = vec![0; 4000];
    buffer.read(&stream, 0, &mut bytes).unwrap();
    let words = words(&bytes);
    assert!(words[..999].iter().all(|word| *word == 7));
    assert_eq!(words[999], 0);
}

#[test]
fn a_launch_of_an_impossible_shape_says_what_is_possible() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    let function = device.function(add()).unwrap();
    let args = AddArgs { data: Global::from_address(0), count: 0, value: 0 };
    for grid in [
        Grid::new(0, 1),
        Grid::new(1, 0),
        Grid::new(1, 1025),
        Grid { blocks: 1, threads: 1, shared_bytes: 1 << 20 },
    ] {
        // SAFETY: no word is touched.
        let error = unsafe { stream.launch(&function, grid, &args) }.unwrap_err();
        assert!(matches!(error, Error::Invalid { what: "launch", .. }), "{error}");
    }
}

#[test]
fn residency_is_counted_for_the_whole_device() {
    let Some((device, _alone)) = device() else { return };
    let limits = device.limits();
    let function = device.function(add()).unwrap();
    let resident = function.resident_blocks(1024, 0).unwrap();
    assert_eq!(resident % limits.multiprocessors, 0);
    assert!(resident >= limits.multiprocessors);
    assert_eq!(function.resident_blocks(2048, 0).unwrap(), 0);
    let all = limits.shared_bytes_per_block;
    assert_eq!(function.resident_blocks(32, all).unwrap(), limits.multiprocessors);
    assert!(function.require_resident(Grid::new(resident + 1, 1024)).is_err());
}

#[test]
fn a_module_with_another_layout_is_refused() {
    let Some((device, _alone)) = device() else { return };
    let stale = kernel::<AddArgs>("add", &ptx("add", AddArgs::ABI ^ 1, 16, ADD));
    let error = device.function(stale).err().unwrap();
    assert!(
        matches!(error, Error::KernelLayout { found, expected, .. } if found == expected ^ 1),
        "{error}"
    );
    let unmarked = kernel::<AddArgs>("other", &ptx("add", AddArgs::ABI, 16, ADD));
    let error = device.function(unmarked).err().unwrap().to_string();
    assert!(error.contains("it has no kernel other"), "{error}");
}

#[test]
fn broken_ptx_is_reported_with_the_drivers_words() {
    let Some((device, _alone)) = device() else { return };
    let broken = kernel::<AddArgs>("add", &ptx("add", AddArgs::ABI, 16, "nonsense.u32 %r1;"));
    let error = device.function(broken).err().unwrap().to_string();
    assert!(error.contains("sm_80 PTX was refused"), "{error}");
    assert!(error.contains("the driver says"), "{error}");
}

#[test]
fn a_graph_replays_uploads_and_kernels_and_keeps_what_they_need() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    let buffer = device.alloc(4 * 256, MemoryKind::Shareable).unwrap();
    let function = device.function(add()).unwrap();
    let args = AddArgs { data: Global::from_address(buffer.address()), count: 256, value: 5 };
    let held = Arc::new(());
    let graph = stream
        .capture(|stream| {
            assert!(stream.is_capturing()?);
            stream.retain(held.clone())?;
            buffer.write(stream, 0, &[1; 4 * 256])?;
            for _ in 0..3 {
                // SAFETY: the words lie in the buffer, which outlives the graph.
                unsafe { stream.launch(&function, Grid::new(1, 256), &args) }?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    assert!(!stream.is_capturing().unwrap());
    let exec = graph.instantiate().unwrap();
    drop(graph);
    for _ in 0..10 {
        buffer.fill(&stream, 0xee).unwrap();
        exec.launch(&stream).unwrap();
        let mut bytes = vec![0; 4 * 256];
        buffer.read(&stream, 0, &mut bytes).unwrap();
        assert!(words(&bytes).iter().all(|word| *word == 0x0101_0101 + 15));
    }
    assert_eq!(Arc::strong_count(&held), 2, "the replayable graph holds it");
    drop(exec);
    let begin = Instant::now();
    while Arc::strong_count(&held) > 1 {
        assert!(begin.elapsed() < Duration::from_secs(5), "nobody let go");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(stream.retain(held).is_err(), "only a capture retains");
}

/// A device kept busy by one spinning kernel until released.
pub(crate) struct Busy {
    word: mscclrs_gpu::Buffer,
    stream: mscclrs_gpu::Stream,
}

impl Busy {
    pub(crate) fn start(device: &Device) -> Busy {
        let busy = Busy::prepare(device);
        busy.begin();
        busy
    }

    /// All that may wait for the device; the kernel does not run yet.
    pub(crate) fn prepare(device: &Device) -> Busy {
        let word = device.alloc(4, MemoryKind::Host).unwrap();
        device.function(spin()).unwrap();
        Busy { word, stream: device.create_stream().unwrap() }
    }

    pub(crate) fn begin(&self) {
        let function = self.stream.device().function(spin()).unwrap();
        let word = Global::from_address(self.word.address());
        let args = SpinArgs { word, limit: 10_000_000_000 };
        // SAFETY: the word lives until the kernel is gone, see `drop`.
        unsafe { self.stream.launch(&function, Grid::new(1, 1), &args) }.unwrap();
    }

    pub(crate) fn stream(&self) -> &mscclrs_gpu::Stream {
        &self.stream
    }

    pub(crate) fn release(&self) {
        let word = self.word.host_address().unwrap().cast::<u32>();
        // SAFETY: the word is pinned host memory; the kernel only reads it.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(word) }
            .store(1, std::sync::atomic::Ordering::Release);
        self.stream.synchronize().unwrap();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.release();
    }
}

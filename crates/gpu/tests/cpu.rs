//! What only the CPU device does: errors that stick, reports, accounts, checks of descriptors, and
//! memory shared by two processes.
// A test fails by a panic that shows the error.
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclrs_device::{
    DeviceModule, Global, Guard, ImageSource, Release, Sys, WaitKind, kernel_args, kernels,
    poll_acquire, thread_idx,
};
use mscclrs_gpu::{
    BackendKind, Buffer, Device, Error, ExportedHandle, Grid, HandleKind, MemoryKind, Stream,
};

const LIMIT: Duration = Duration::from_secs(30);

static MODULE: DeviceModule =
    DeviceModule { name: "cpu_tests", source: ImageSource::Embedded(&[]) };

kernel_args! {
    /// One side of a ping-pong.
    pub struct Hops {
        /// Ends the waits.
        pub guard: Guard,
        /// Written by the other side.
        pub mine: Global<u64>,
        /// Written by this side.
        pub theirs: Global<u64>,
        /// How often.
        pub hops: u64,
        /// 1: this side begins.
        pub first: u64,
    }
}

kernels! {
    module = MODULE;

    /// Lane 0 plays.
    pub fn play<>(args: Hops) threads 256 for { "" = <> } {
        let mut hop = 0;
        while hop < args.hops && thread_idx() == 0 {
            hop += 1;
            if args.first == 1 {
                args.theirs.store_atomic(Release, Sys, hop);
            }
            let want = hop;
            poll_acquire(&args.guard, args.mine, want, WaitKind::Semaphore, 1, |v| v >= want)?;
            if args.first == 0 {
                args.theirs.store_atomic(Release, Sys, hop);
            }
        }
        Ok(())
    }

    /// Is broken.
    pub fn broken<>(args: Hops) threads 256 for { "" = <> } {
        assert!(args.hops == 0, "no hops wanted");
        Ok(())
    }
}

/// Each test has a device of its own.
fn open(ordinal: u32) -> (Device, Stream) {
    let device = Device::open(BackendKind::Cpu, ordinal).unwrap();
    let stream = device.create_stream().unwrap();
    (device, stream)
}

fn hops(control: &Buffer, mine: u64, theirs: u64, hops: u64, first: u64) -> Hops {
    let guard = Guard {
        control: Global::from_address(control.address()),
        claim: Global::from_address(control.address() + 1024),
        timeout_ns: LIMIT.as_nanos() as u64,
        launch: 0,
    };
    let [mine, theirs] = [mine, theirs].map(Global::from_address);
    Hops { guard, mine, theirs, hops, first }
}

fn launch(stream: &Stream, name: &str, args: &Hops) -> Result<(), Error> {
    let kernel = all().find(|kernel| kernel.name == name).unwrap();
    let function = stream.device().function(kernel).unwrap();
    // SAFETY: the tests keep the memory until the stream is synchronised.
    unsafe { stream.launch(&function, Grid::new(1, 64), args) }
}

#[test]
fn an_error_sticks_to_its_stream_only() {
    let (device, stream) = open(10);
    let other = device.create_stream().unwrap();
    let control = device.alloc(4096, MemoryKind::Host).unwrap();
    let event = device.create_event(false).unwrap();
    launch(&stream, "broken", &hops(&control, 0, 0, 1, 0)).unwrap();
    let stopped = |result: Result<(), Error>| match result {
        Err(Error::Stopped { report }) => assert!(report.contains("no hops wanted"), "{report}"),
        other => panic!("{other:?}"),
    };
    stopped(stream.synchronize());
    stopped(stream.synchronize());
    stopped(stream.is_idle().map(|_| ()));
    stopped(control.fill(&stream, 1));
    stopped(control.read(&stream, 0, &mut [0; 4]));
    stopped(stream.record(&event));
    control.fill(&other, 2).unwrap();
    let mut byte = [0];
    control.read(&other, 7, &mut byte).unwrap();
    assert_eq!(byte, [2]);
}

#[test]
fn a_report_tells_what_kernels_wait_for() {
    let (device, stream) = open(11);
    let control = device.alloc(4096, MemoryKind::Host).unwrap();
    assert_eq!(device.waiting_report(), None);
    let word = control.address() + 2048;
    launch(&stream, "play", &hops(&control, word, word + 8, 1, 0)).unwrap();
    assert!(!stream.synchronize_within(Duration::from_millis(20)).unwrap());
    let report = device.waiting_report().unwrap();
    assert!(report.contains("kernel play block 0") && report.contains("semaphore"), "{report}");
    control.write(&device.create_stream().unwrap(), 2048, &[1]).unwrap();
    assert!(stream.synchronize_within(LIMIT).unwrap());
}

#[test]
fn memory_comes_back() {
    let (device, stream) = open(12);
    let before = device.memory().unwrap();
    for kind in [MemoryKind::Host, MemoryKind::Plain, MemoryKind::Shareable] {
        for _ in 0..300 {
            let buffer = device.alloc(1 << 20, kind).unwrap();
            assert_eq!(device.memory().unwrap().0, before.0 - (1 << 20));
            buffer.write(&stream, 0, &[1; 100]).unwrap();
        }
    }
    assert_eq!(device.memory().unwrap(), before);
    device.synchronize().unwrap();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(descriptors() < 200, "{} descriptors are open", descriptors());
    let most = device.alloc(before.1 + 1, MemoryKind::Plain).map(|_| ());
    assert!(matches!(most, Err(Error::OutOfMemory { .. })), "{most:?}");
}

#[test]
fn plain_and_foreign_memory_is_not_exported() {
    let (device, _) = open(13);
    for kind in [MemoryKind::Host, MemoryKind::Plain] {
        assert_eq!(device.handle_kinds(kind), []);
        let buffer = device.alloc(100, kind).unwrap();
        let export = buffer.export(HandleKind::PosixFd);
        assert!(matches!(export, Err(Error::Unsupported { .. })), "{export:?}");
    }
    let foreign = vec![0u64; 100];
    // SAFETY: the vector lives longer.
    let foreign = unsafe { device.adopt(foreign.as_ptr() as u64, 800) }.unwrap();
    assert!(matches!(foreign.export(HandleKind::PosixFd), Err(Error::Unsupported { .. })));
    let buffer = device.alloc(4096, MemoryKind::Shareable).unwrap();
    // SAFETY: refused.
    let across = unsafe { device.adopt(buffer.address() + 4000, 200) }.map(|_| ());
    assert!(matches!(across, Err(Error::Invalid { .. })), "{across:?}");
}

#[test]
fn descriptors_are_checked() {
    let (device, _) = open(14);
    let buffer = device.alloc(4096, MemoryKind::Shareable).unwrap();
    let handle = buffer.export(HandleKind::PosixFd).unwrap().handle;
    let import = |fd: OwnedFd, handle: &ExportedHandle| {
        device.import(handle, Some(fd)).map(|_| ()).map_err(|error| error.to_string())
    };
    let memfd = |bytes| {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    };
    assert!(import(memfd(4096), &handle).unwrap_err().contains("shrink"));
    assert!(import(memfd(100), &handle).unwrap_err().contains("100 bytes"));
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert!(import(null, &handle).unwrap_err().contains("0 bytes"));
    let good = || buffer.export(HandleKind::PosixFd).unwrap().fd.unwrap();
    let fabric = ExportedHandle { kind: HandleKind::Fabric, ..handle.clone() };
    assert!(import(good(), &fabric).unwrap_err().contains("file descriptors only"));
    let foreign = ExportedHandle { device_uuid: [7; 16], ..handle.clone() };
    assert!(import(good(), &foreign).unwrap_err().contains("CPU devices only"));
    import(good(), &handle).unwrap();
}

#[test]
fn streams_are_found_by_their_number() {
    let (device, stream) = open(15);
    // SAFETY: the stream lives longer.
    let again = unsafe { device.wrap_stream(stream.raw()) }.unwrap();
    assert_eq!(again.raw(), stream.raw());
    for raw in [0, 987_654] {
        // SAFETY: refused.
        let error = unsafe { device.wrap_stream(raw) }.unwrap_err().to_string();
        assert!(error.contains("made with create_stream"), "{error}");
    }
}

#[test]
fn a_capture_takes_in_other_streams() {
    let (device, stream) = open(16);
    let other = device.create_stream().unwrap();
    let control = device.alloc(8192, MemoryKind::Host).unwrap();
    let (a, b) = (control.address() + 4096, control.address() + 4104);
    let [fork, join, outside] = [0; 3].map(|_| device.create_event(false).unwrap());
    let graph = stream.capture::<Error>(|stream| {
        stream.record(&fork)?;
        other.wait(&fork)?;
        assert!(other.is_capturing()?);
        assert!(fork.is_done().is_err());
        // Each side waits for the other: they have to run at the same time.
        launch(stream, "play", &hops(&control, a, b, 100, 1))?;
        launch(&other, "play", &hops(&control, b, a, 100, 0))?;
        other.record(&join)?;
        stream.wait(&join)?;
        // SAFETY: within the buffer, which lives until the end.
        unsafe { stream.copy(a + 16, a, 8) }?;
        for refused in [stream.synchronize(), stream.call_host(|| ()), stream.is_idle().map(|_| ())]
        {
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        }
        Ok(())
    });
    let exec = graph.unwrap().instantiate().unwrap();
    assert!(!other.is_capturing().unwrap());
    for _ in 0..5 {
        control.fill(&stream, 0).unwrap();
        exec.launch(&stream).unwrap();
        let mut count = [0; 8];
        control.read(&stream, 4112, &mut count).unwrap();
        assert_eq!(u64::from_le_bytes(count), 100);
    }
    // Branches that are not joined, and events from outside, are refused.
    let unjoined = stream.capture::<Error>(|stream| {
        stream.record(&fork)?;
        other.wait(&fork)?;
        control.fill(&other, 1)
    });
    assert!(unjoined.is_err());
    assert!(!other.is_capturing().unwrap());
    let gate = Arc::new(std::sync::Barrier::new(2));
    let held = gate.clone();
    other.call_host(move || _ = held.wait()).unwrap();
    other.record(&outside).unwrap();
    assert!(stream.capture::<Error>(|stream| stream.wait(&outside)).is_err());
    gate.wait();
    // A graph within a graph.
    let outer = stream.capture::<Error>(|stream| {
        control.fill(stream, 0)?;
        exec.launch(stream)?;
        exec.launch(stream)
    });
    drop(exec);
    outer.unwrap().instantiate().unwrap().launch(&stream).unwrap();
    assert!(stream.synchronize_within(LIMIT).unwrap());
}

/// The other process of `two_processes_play_over_shared_memory`: the same test, run again with the
/// descriptor's number and size in its environment.
const CHILD: &str = "MSCCLRS_TEST_CHILD";

#[test]
fn two_processes_play_over_shared_memory() {
    const HOPS: u64 = 1000;
    let (device, stream) = open(17);
    let control = device.alloc(4096, MemoryKind::Host).unwrap();
    if let Ok(text) = std::env::var(CHILD) {
        let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let handle = ExportedHandle {
            kind: HandleKind::PosixFd,
            device_uuid: device.uuid(),
            allocation: 1,
            allocation_bytes: numbers[1],
            offset: 0,
            bytes: numbers[1],
            payload: Vec::new(),
        };
        // SAFETY: inherited from the parent for this use alone.
        let fd = unsafe { OwnedFd::from_raw_fd(numbers[0] as i32) };
        let mapping = device.import(&handle, Some(fd)).unwrap();
        let (mine, theirs) = (mapping.address() + 64, mapping.address());
        launch(&stream, "play", &hops(&control, mine, theirs, HOPS, 0)).unwrap();
        assert!(stream.synchronize_within(LIMIT).unwrap());
        return;
    }
    let buffer = device.alloc(8192, MemoryKind::Shareable).unwrap();
    let shared = buffer.export(HandleKind::PosixFd).unwrap();
    let fd = shared.fd.unwrap();
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "two_processes_play_over_shared_memory", "--nocapture"])
        .env(CHILD, format!("{} {}", fd.as_raw_fd(), shared.handle.allocation_bytes))
        .spawn()
        .unwrap();
    let (mine, theirs) = (buffer.address(), buffer.address() + 64);
    launch(&stream, "play", &hops(&control, mine, theirs, HOPS, 1)).unwrap();
    assert!(stream.synchronize_within(LIMIT).unwrap());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success());
    let mut count = [0; 8];
    buffer.read(&stream, 0, &mut count).unwrap();
    assert_eq!(u64::from_le_bytes(count), HOPS);
}

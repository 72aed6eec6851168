//! What waits for the device, and what must not.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use mscclrs_device::Global;
use mscclrs_gpu::MemoryKind::{Host, Plain, Shareable};
use mscclrs_gpu::{BackendKind, Device, Error, Grid, Stream};

use crate::device;
use crate::driver::{Foreign, ok};
use crate::kernels::{AddArgs, Busy, add};

/// Shorter than a spinning kernel of these tests, longer than anything that does not wait for it.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A stream as another library makes it.
struct ForeignStream(sys::CUstream);

impl ForeignStream {
    fn new() -> ForeignStream {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the primary context is current.
        ok(unsafe { sys::cuStreamCreate(&raw mut stream, 1) });
        ForeignStream(stream)
    }
}

impl Drop for ForeignStream {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nobody uses it any more.
        ok(unsafe { sys::cuStreamDestroy_v2(self.0) });
    }
}

/// Launches something short and waits for it, at most as long as anything may take at once.
fn a_launch_gets_through(device: &Device, stream: &Stream) -> bool {
    let function = device.function(add()).unwrap();
    let args = AddArgs { data: Global::from_address(0), count: 0, value: 0 };
    // SAFETY: no word is touched.
    unsafe { stream.launch(&function, Grid::new(1, 32), &args) }.unwrap();
    stream.synchronize_within(AT_ONCE).unwrap()
}

#[test]
fn drops_never_wait_and_never_hold_up_a_launch() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    device.function(add()).unwrap();
    for round in 0..100 {
        let buffers = [Host, Plain, Shareable].map(|kind| device.alloc(3 << 20, kind).unwrap());
        let busy = Busy::prepare(&device);
        let begin = Instant::now();
        // The device is idle, so what is dropped could be released now; and at this very moment a
        // kernel begins that ends only when this thread has gone on.
        drop(buffers);
        busy.begin();
        assert!(a_launch_gets_through(&device, &stream), "round {round}: a launch is held up");
        assert!(begin.elapsed() < AT_ONCE, "round {round}: {:?}", begin.elapsed());
        busy.release();
    }
}

#[test]
fn drops_do_not_wait_for_a_stream_of_somebody_else() {
    let Some((device, _alone)) = device() else { return };
    let _foreign = Foreign::enter();
    let raw = ForeignStream::new();
    let other = device.create_stream().unwrap();
    // SAFETY: the stream outlives it.
    let wrapped = unsafe { device.wrap_stream(raw.0 as u64) }.unwrap();
    let buffers = [Host, Plain, Shareable].map(|kind| device.alloc(3 << 20, kind).unwrap());
    let busy = Busy::start(&device);
    let event = device.create_event(false).unwrap();
    busy.stream().record(&event).unwrap();
    wrapped.wait(&event).unwrap();
    for buffer in &buffers {
        buffer.fill(&wrapped, 7).unwrap();
    }
    let begin = Instant::now();
    drop(buffers);
    drop(wrapped);
    assert!(a_launch_gets_through(&device, &other));
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    busy.release();
    device.reclaim();
    device.synchronize().unwrap();
}

#[test]
fn default_streams_cannot_be_wrapped() {
    let Some((device, _alone)) = device() else { return };
    for raw in [0, 1, 2] {
        // SAFETY: refused.
        let error = unsafe { device.wrap_stream(raw) }.unwrap_err();
        assert!(matches!(error, Error::Invalid { what: "stream", .. }), "{error}");
    }
    assert_eq!(device.kind(), BackendKind::Cuda);
}

/// The calls that drops make at once, and that must not wait for a kernel.
#[test]
fn destroying_streams_events_and_graphs_does_not_wait() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    let event = device.create_event(false).unwrap();
    let function = device.function(add()).unwrap();
    let graph = stream
        .capture(|stream| {
            let args = AddArgs { data: Global::from_address(0), count: 0, value: 0 };
            // SAFETY: no word is touched.
            unsafe { stream.launch(&function, Grid::new(1, 32), &args) }
        })
        .unwrap();
    let exec = graph.instantiate().unwrap();
    let busy = Busy::start(&device);
    busy.stream().record(&event).unwrap();
    stream.wait(&event).unwrap();
    exec.launch(&stream).unwrap();
    let begin = Instant::now();
    drop((exec, graph, event, stream));
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    busy.release();
    device.synchronize().unwrap();
}

/// Not a promise of anybody: prints which calls of the driver wait for a kernel that runs, and whether
/// another thread can launch meanwhile. The rule of the release thread assumes the worst of each.
#[test]
#[ignore = "prints what the driver does"]
fn what_the_driver_does() {
    let Some((device, _alone)) = device() else { return };
    type Call = Box<dyn FnOnce() + Send>;
    type Make = fn() -> Call;
    let make: [(&str, Make); 3] = [
        ("cuMemFree", || {
            let mut address = 0;
            // SAFETY: writes the address of new memory, which is freed once.
            unsafe {
                ok(sys::cuMemAlloc_v2(&raw mut address, 3 << 20));
                Box::new(move || ok(sys::cuMemFree_v2(address)))
            }
        }),
        ("cuMemFreeHost", || {
            let mut pointer = std::ptr::null_mut();
            // SAFETY: as above.
            unsafe { ok(sys::cuMemHostAlloc(&raw mut pointer, 3 << 20, 3)) };
            let address = pointer as usize;
            // SAFETY: as above.
            Box::new(move || ok(unsafe { sys::cuMemFreeHost(address as *mut _) }))
        }),
        ("cuMemAlloc", || {
            Box::new(|| {
                let mut address = 0;
                // SAFETY: as above.
                unsafe {
                    ok(sys::cuMemAlloc_v2(&raw mut address, 300 << 20));
                    ok(sys::cuMemFree_v2(address));
                }
            })
        }),
    ];
    let stream = device.create_stream().unwrap();
    device.function(add()).unwrap();
    for (name, make) in make {
        let call = {
            let _foreign = Foreign::enter();
            make()
        };
        let busy = Busy::start(&device);
        let (done, waits) = mpsc::channel();
        let caller = thread::spawn(move || {
            let _foreign = Foreign::enter();
            call();
            let _ = done.send(());
        });
        let waited = waits.recv_timeout(Duration::from_millis(300)).is_err();
        let (launched, launches) = mpsc::channel();
        let launcher = {
            let (device, stream) = (device.clone(), stream.clone());
            thread::spawn(move || {
                a_launch_gets_through(&device, &stream);
                let _ = launched.send(());
            })
        };
        let held_up = launches.recv_timeout(Duration::from_millis(700)).is_err();
        busy.release();
        caller.join().unwrap();
        launcher.join().unwrap();
        println!("{name}: waits for a kernel: {waited}; holds up a launch meanwhile: {held_up}");
    }
}

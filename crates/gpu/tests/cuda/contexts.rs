//! The caller's context and captures are left as they were.

use mscclrs_gpu::{Device, MemoryKind};

use crate::driver::{Foreign, ForeignCapture, current};
use crate::kernels::add;
use crate::{device, read};

/// One of each call that makes, moves or frees something.
fn everything(device: &Device) {
    let stream = device.create_stream().unwrap();
    for kind in [MemoryKind::Host, MemoryKind::Plain, MemoryKind::Shareable] {
        let buffer = device.alloc(1 << 16, kind).unwrap();
        buffer.write(&stream, 8, &[1, 2, 3]).unwrap();
        assert_eq!(read(&stream, buffer.address() + 7, 5), [0, 1, 2, 3, 0]);
        for form in device.handle_kinds(kind) {
            let shared = buffer.export(form).unwrap();
            let mapping = device.import(&shared.handle, shared.fd).unwrap();
            assert_eq!(read(&stream, mapping.address() + 8, 3), [1, 2, 3]);
        }
        buffer.fill(&stream, 9).unwrap();
    }
    device.function(add()).unwrap();
    let event = device.create_event(true).unwrap();
    stream.record(&event).unwrap();
    stream.wait(&event).unwrap();
    event.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    let graph = stream.capture(|stream| stream.record(&event)).unwrap();
    graph.instantiate().unwrap().launch(&stream).unwrap();
    stream.synchronize().unwrap();
    assert!(stream.is_idle().unwrap());
    device.synchronize().unwrap();
    device.memory().unwrap();
}

#[test]
fn every_call_gives_the_callers_context_back() {
    let Some((device, _alone)) = device() else { return };
    let before = current();
    everything(&device);
    assert_eq!(current(), before, "without a context of ours");
    let _foreign = Foreign::enter();
    let before = current();
    everything(&device);
    assert_eq!(current(), before, "with the primary context current");
    std::thread::spawn(move || {
        assert!(current().is_null());
        everything(&device);
        assert!(current().is_null(), "on a new thread");
    })
    .join()
    .unwrap();
}

#[test]
fn everything_is_legal_while_somebody_captures() {
    let Some((device, _alone)) = device() else { return };
    let _foreign = Foreign::enter();
    let capture = ForeignCapture::begin();
    everything(&device);
    let other = device.clone();
    std::thread::spawn(move || everything(&other)).join().unwrap();
    capture.end();
}

#[test]
fn work_on_a_wrapped_stream_joins_its_owners_capture() {
    let Some((device, _alone)) = device() else { return };
    let _foreign = Foreign::enter();
    let buffer = device.alloc(64, MemoryKind::Plain).unwrap();
    let capture = ForeignCapture::begin();
    // SAFETY: the stream lives until the capture ends.
    let stream = unsafe { device.wrap_stream(capture.raw()) }.unwrap();
    assert!(stream.is_capturing().unwrap());
    buffer.fill(&stream, 3).unwrap();
    stream.retain(std::sync::Arc::new(buffer.clone())).unwrap();
    assert!(stream.is_idle().is_err(), "a captured stream has no state");
    assert!(stream.synchronize().is_err());
    drop(stream);
    capture.end();
    let stream = device.create_stream().unwrap();
    assert_eq!(read(&stream, buffer.address(), 4), [0; 4], "captured, not run");
}

//! Memory and streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mscclrs_gpu::Error;
use mscclrs_gpu::MemoryKind::{Host, Plain, Shareable};

use crate::kernels::Busy;
use crate::{device, pattern, read};

#[test]
fn memory_of_every_kind_is_zero_and_keeps_what_is_written() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    for kind in [Host, Plain, Shareable] {
        for bytes in [1usize, 4097, (9 << 20) + 3] {
            let buffer = device.alloc(bytes as u64, kind).unwrap();
            assert_eq!(buffer.bytes(), bytes as u64);
            assert_eq!(buffer.host_address().is_some(), kind == Host);
            let mut back = vec![1; bytes];
            buffer.read(&stream, 0, &mut back).unwrap();
            assert!(back.iter().all(|byte| *byte == 0), "{kind:?} of {bytes}");
            let data = pattern(5, bytes);
            buffer.write(&stream, 0, &data).unwrap();
            buffer.read(&stream, 0, &mut back).unwrap();
            assert!(back == data, "{kind:?} of {bytes}");
        }
    }
}

#[test]
fn memory_that_does_not_exist_is_refused_with_numbers() {
    let Some((device, _alone)) = device() else { return };
    for kind in [Plain, Shareable] {
        let error = device.alloc(1 << 46, kind).err().unwrap();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert!(error.to_string().contains("bytes free"), "{error}");
    }
}

#[test]
fn free_memory_comes_back() {
    let Some((device, _alone)) = device() else { return };
    let round = || {
        let stream = device.create_stream().unwrap();
        for kind in [Host, Plain, Shareable] {
            let buffer = device.alloc(8 << 20, kind).unwrap();
            for form in device.handle_kinds(kind) {
                let shared = buffer.export(form).unwrap();
                device.import(&shared.handle, shared.fd).unwrap();
            }
            buffer.fill(&stream, 1).unwrap();
        }
    };
    round();
    device.synchronize().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let before = device.memory().unwrap().0;
    for _ in 0..100 {
        round();
    }
    let begin = Instant::now();
    while device.memory().unwrap().0 < before {
        assert!(begin.elapsed() < Duration::from_secs(5), "memory is lost");
        // Another test of the process may have used a stream of somebody else.
        device.reclaim();
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_wait_with_a_limit_and_drops_do_not_wait_for_a_spinning_kernel() {
    let Some((device, _alone)) = device() else { return };
    let buffers = [Host, Plain, Shareable].map(|kind| device.alloc(4 << 20, kind).unwrap());
    let other = device.create_stream().unwrap();
    let event = device.create_event(false).unwrap();
    let busy = Busy::start(&device);
    busy.stream().record(&event).unwrap();
    other.wait(&event).unwrap();
    let begin = Instant::now();
    assert!(!busy.stream().synchronize_within(Duration::from_millis(20)).unwrap());
    assert!(!busy.stream().is_idle().unwrap());
    assert!(!event.is_done().unwrap());
    drop(buffers);
    drop(event);
    drop(other);
    assert!(begin.elapsed() < Duration::from_secs(2), "a drop waited for the kernel");
    busy.release();
    assert!(busy.stream().is_idle().unwrap());
}

#[test]
fn a_dropped_stream_finishes_its_work() {
    let Some((device, _alone)) = device() else { return };
    let buffer = device.alloc(1 << 20, Shareable).unwrap();
    let busy = Busy::start(&device);
    let event = device.create_event(false).unwrap();
    busy.stream().record(&event).unwrap();
    let stream = device.create_stream().unwrap();
    stream.wait(&event).unwrap();
    buffer.fill(&stream, 7).unwrap();
    drop(stream);
    // Also the memory that the dropped stream still fills.
    drop(buffer);
    busy.release();
    device.synchronize().unwrap();
}

#[test]
fn a_host_call_runs_in_the_streams_order_and_may_panic() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    let count = Arc::new(AtomicU32::new(0));
    for expected in 0..10 {
        let count = count.clone();
        stream
            .call_host(move || assert_eq!(count.fetch_add(1, Ordering::SeqCst), expected))
            .unwrap();
    }
    stream.call_host(|| panic!("a test's panic in a host call")).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 10);
    assert_eq!(Arc::strong_count(&count), 1);
    let refused = stream.capture(|stream| stream.call_host(|| ()));
    assert!(matches!(refused, Err(Error::Unsupported { .. })));
}

#[test]
fn events_measure_only_with_timing() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    let buffer = device.alloc(64 << 20, Plain).unwrap();
    let (begin, end) = (device.create_event(true).unwrap(), device.create_event(true).unwrap());
    stream.record(&begin).unwrap();
    buffer.fill(&stream, 1).unwrap();
    stream.record(&end).unwrap();
    end.synchronize().unwrap();
    let us = end.elapsed_us(&begin).unwrap();
    assert!(us > 0.0 && us < 1e6, "{us}");
    let untimed = device.create_event(false).unwrap();
    stream.record(&untimed).unwrap();
    untimed.synchronize().unwrap();
    assert!(untimed.elapsed_us(&begin).is_err());
}

#[test]
fn copies_take_every_kind_of_memory() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    let bytes = (5 << 20) + 1;
    let data = pattern(9, bytes);
    let (host, plain) =
        (device.alloc(bytes as u64, Host).unwrap(), device.alloc(bytes as u64, Plain).unwrap());
    // SAFETY: all ranges are as long and live until the read below.
    unsafe {
        stream.copy(plain.address(), data.as_ptr() as u64, bytes as u64).unwrap();
        stream.copy(host.address(), plain.address(), bytes as u64).unwrap();
    }
    assert!(read(&stream, host.address(), bytes) == data);
}

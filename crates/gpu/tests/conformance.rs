//! What every back end has to do alike: each test runs on the CPU device, and on the first GPU where
//! there is one.
// A test fails by a panic that shows the error.
#![allow(clippy::unwrap_used)]

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use mscclrs_device::{Global, Guard};
use mscclrs_gpu::{
    BackendKind, Buffer, Device, Error, ExportedHandle, Grid, HandleKind, MemoryKind, Stream,
    device_count,
};
use mscclrs_kernels::probe;

/// How long a test waits before it fails.
const LIMIT: Duration = Duration::from_secs(60);
const KINDS: [MemoryKind; 3] = [MemoryKind::Host, MemoryKind::Plain, MemoryKind::Shareable];

/// One module of tests a back end; GPU tests pass where no GPU is.
macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        mod cpu {
            $(#[test] fn $name() { super::$name(super::BackendKind::Cpu); })*
        }
        mod cuda {
            $(#[test] fn $name() {
                match super::device_count(super::BackendKind::Cuda) {
                    Ok(1..) => super::$name(super::BackendKind::Cuda),
                    Ok(0) => println!("skipped: no GPU"),
                    Err(error) => println!("skipped: {error}"),
                }
            })*
        }
    };
}

conformance! {
    a_failed_capture_leaves_the_stream_usable,
    a_launch_that_cannot_run_is_refused,
    a_panic_in_a_capture_leaves_the_stream_usable,
    a_part_of_an_allocation_can_be_adopted_and_exported,
    an_event_orders_two_streams,
    an_event_that_was_never_recorded_holds_nobody_up,
    bytes_go_there_and_back,
    captured_uploads_hold_the_bytes_of_then,
    captures_are_told_apart,
    copies_and_fills_run_in_order,
    devices_of_an_ordinal_are_the_same,
    dropped_memory_outlives_the_work_that_uses_it,
    drops_do_not_wait_for_the_work_that_uses_them,
    events_measure_time,
    exported_memory_is_the_same_memory,
    graphs_replay_kernels,
    replays_of_two_streams_run_one_after_the_other,
    handles_are_checked,
    host_calls_run_in_order,
    memory_dropped_while_a_stream_is_captured_lives_as_long_as_the_graph,
    memory_is_zeroed,
    ranges_outside_of_a_buffer_are_refused,
    residency_is_asked_for,
    retained_objects_live_as_long_as_the_graph,
    streams_of_two_devices_wait_for_each_other,
    synchronize_has_a_limit,
    the_contract_kernel_sees_barriers_and_warps,
}

fn open(kind: BackendKind) -> (Device, Stream) {
    let device = Device::open(kind, 0).unwrap();
    let stream = device.create_stream().unwrap();
    (device, stream)
}

fn finish(stream: &Stream) {
    assert!(stream.synchronize_within(LIMIT).unwrap(), "the stream does not end");
}

fn read(buffer: &Buffer, stream: &Stream) -> Vec<u8> {
    let mut data = vec![0xee; buffer.bytes() as usize];
    buffer.read(stream, 0, &mut data).unwrap();
    data
}

fn read_u32(buffer: &Buffer, stream: &Stream) -> Vec<u32> {
    let data = read(buffer, stream);
    data.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 256 + seed * 31) as u8).collect()
}

fn copy(stream: &Stream, to: u64, from: u64, bytes: u64) {
    // SAFETY: the tests keep both ranges until the stream is synchronised.
    unsafe { stream.copy(to, from, bytes) }.unwrap();
}

/// Holds the stream up until the sender is dropped.
fn gate(stream: &Stream) -> Sender<()> {
    let (sender, receiver) = channel();
    let work = move || {
        let _ = receiver.recv_timeout(LIMIT);
    };
    stream.call_host(work).unwrap();
    sender
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn launch_contract(device: &Device, stream: &Stream, threads: u32, data: &Buffer) {
    let function = device.function(probe::contract.instance("").unwrap()).unwrap();
    let args = probe::ContractArgs { data: Global::from_address(data.address()) };
    // SAFETY: the buffer has a word for each lane and lives until the stream is synchronised.
    unsafe { stream.launch(&function, Grid::new(1, threads), &args) }.unwrap();
}

/// What `contract` leaves in memory that held `data`.
fn contract_result(mut data: Vec<u32>, threads: u32) -> Vec<u32> {
    (5..threads).for_each(|t| data[t as usize] = 3 + t);
    let value = |t: u32| if t > 4 { data[(t ^ 1) as usize] } else { 1 };
    let sum = |warp: u32| (32 * warp..32 * warp + 32).map(value).fold(threads, u32::wrapping_add);
    let sums: Vec<u32> = (0..threads / 32).map(sum).collect();
    (0..threads).for_each(|t| data[t as usize] = sums[t as usize / 32]);
    data
}

fn devices_of_an_ordinal_are_the_same(kind: BackendKind) {
    let (device, _) = open(kind);
    let again = Device::open(kind, 0).unwrap();
    assert_eq!((device.kind(), device.ordinal()), (kind, 0));
    assert_eq!(device.uuid(), again.uuid());
    assert!(device.can_reach(&again.uuid()));
    assert!(!device.name().is_empty());
    let limits = device.limits();
    assert!(limits.multiprocessors > 0 && limits.threads_per_block >= 32, "{limits:?}");
    assert_eq!(limits.warp, 32);
    let (free, total) = device.memory().unwrap();
    assert!(0 < free && free <= total);
}

fn memory_is_zeroed(kind: BackendKind) {
    let (device, stream) = open(kind);
    for memory in KINDS {
        let buffer = device.alloc(10_000, memory).unwrap();
        assert_eq!(buffer.bytes(), 10_000);
        assert_eq!(buffer.address() % 256, 0);
        assert!(read(&buffer, &stream).iter().all(|&byte| byte == 0), "{memory:?}");
        // The next allocation may get the same memory.
        buffer.fill(&stream, 0xaa).unwrap();
        finish(&stream);
    }
    for memory in KINDS {
        let buffer = device.alloc(10_000, memory).unwrap();
        assert!(read(&buffer, &stream).iter().all(|&byte| byte == 0), "{memory:?} used again");
    }
    assert!(device.alloc(0, MemoryKind::Shareable).is_err());
    assert!(device.alloc(1 << 60, MemoryKind::Shareable).is_err());
    let host = device.alloc(64, MemoryKind::Host).unwrap();
    let at = host.host_address().expect("the host reaches it");
    // SAFETY: the first byte of the buffer, which no work uses.
    unsafe { at.write_volatile(9) };
    assert_eq!(read(&host, &stream)[0], 9);
}

fn bytes_go_there_and_back(kind: BackendKind) {
    let (device, stream) = open(kind);
    for memory in KINDS {
        let buffer = device.alloc(1 << 20, memory).unwrap();
        let (whole, part) = (pattern(1 << 20, 1), pattern(777, 2));
        let mut data = whole.clone();
        buffer.write(&stream, 0, &data).unwrap();
        data.fill(0);
        buffer.write(&stream, 12_345, &part).unwrap();
        let found = read(&buffer, &stream);
        assert_eq!(found[12_345..13_122], part);
        assert!(found[..12_345] == whole[..12_345] && found[13_122..] == whole[13_122..]);
        buffer.write(&stream, 5, &[]).unwrap();
        buffer.read(&stream, 5, &mut []).unwrap();
    }
}

fn ranges_outside_of_a_buffer_are_refused(kind: BackendKind) {
    let (device, stream) = open(kind);
    let buffer = device.alloc(100, MemoryKind::Plain).unwrap();
    let mut data = [1; 10];
    for offset in [91, 101, u64::MAX - 3] {
        assert!(matches!(buffer.write(&stream, offset, &data), Err(Error::Invalid { .. })));
        assert!(matches!(buffer.read(&stream, offset, &mut data), Err(Error::Invalid { .. })));
    }
    buffer.write(&stream, 90, &data).unwrap();
}

fn copies_and_fills_run_in_order(kind: BackendKind) {
    let (device, stream) = open(kind);
    let buffers = KINDS.map(|memory| device.alloc(8192, memory).unwrap());
    buffers[0].fill(&stream, 3).unwrap();
    copy(&stream, buffers[1].address(), buffers[0].address(), 8192);
    buffers[0].fill(&stream, 4).unwrap();
    copy(&stream, buffers[2].address() + 100, buffers[1].address() + 7, 1000);
    copy(&stream, buffers[2].address() + 200, buffers[0].address(), 1);
    let found = read(&buffers[2], &stream);
    let expected = |i| match i {
        200 => 4,
        100..1100 => 3,
        _ => 0,
    };
    assert!(found.iter().enumerate().all(|(i, &byte)| byte == expected(i)));
    assert!(stream.is_idle().unwrap());
}

fn the_contract_kernel_sees_barriers_and_warps(kind: BackendKind) {
    let (device, stream) = open(kind);
    let buffer = device.alloc(1024, MemoryKind::Plain).unwrap();
    launch_contract(&device, &stream, 256, &buffer);
    let before = contract_result(vec![0; 256], 256);
    assert_eq!(read_u32(&buffer, &stream), before);
    launch_contract(&device, &stream, 64, &buffer);
    assert_eq!(read_u32(&buffer, &stream), contract_result(before, 64));
}

fn a_launch_that_cannot_run_is_refused(kind: BackendKind) {
    let (device, stream) = open(kind);
    let buffer = device.alloc(1024, MemoryKind::Plain).unwrap();
    let function = device.function(probe::contract.instance("").unwrap()).unwrap();
    let args = probe::ContractArgs { data: Global::from_address(buffer.address()) };
    let most = device.limits().threads_per_block;
    let too_much = device.limits().shared_bytes_per_block + 1;
    for grid in [
        Grid::new(0, 32),
        Grid::new(1, 0),
        Grid::new(1, most + 1),
        Grid { blocks: 1, threads: 32, shared_bytes: too_much },
    ] {
        // SAFETY: refused, so nothing runs.
        assert!(unsafe { stream.launch(&function, grid, &args) }.is_err(), "{grid:?}");
    }
    let (control, claim) = (Global::null(), Global::null());
    let other = probe::EmptyArgs { guard: Guard { control, claim, timeout_ns: 0, launch: 0 } };
    // SAFETY: as above.
    let wrong = unsafe { stream.launch(&function, Grid::new(1, 32), &other) };
    assert!(matches!(wrong, Err(Error::KernelLayout { .. })), "{wrong:?}");
    launch_contract(&device, &stream, 256, &buffer);
    assert_eq!(read_u32(&buffer, &stream), contract_result(vec![0; 256], 256));
}

fn residency_is_asked_for(kind: BackendKind) {
    let (device, _) = open(kind);
    let function = device.function(probe::contract.instance("").unwrap()).unwrap();
    let resident = function.resident_blocks(256, 0).unwrap();
    assert!(resident >= device.limits().multiprocessors);
    function.require_resident(Grid::new(resident, 256)).unwrap();
    let refused = function.require_resident(Grid::new(resident + 1, 256));
    assert!(matches!(refused, Err(Error::NotResident { .. })), "{refused:?}");
}

fn an_event_orders_two_streams(kind: BackendKind) {
    let (device, first) = open(kind);
    let second = device.create_stream().unwrap();
    let source = device.alloc(1 << 16, MemoryKind::Plain).unwrap();
    let target = device.alloc(1 << 16, MemoryKind::Plain).unwrap();
    let event = device.create_event(false).unwrap();
    for round in 1..20 {
        let gate = gate(&first);
        source.fill(&first, round).unwrap();
        first.record(&event).unwrap();
        second.wait(&event).unwrap();
        copy(&second, target.address(), source.address(), 1 << 16);
        assert!(!event.is_done().unwrap());
        drop(gate);
        assert!(read(&target, &second).iter().all(|&byte| byte == round));
        assert!(event.is_done().unwrap());
        event.synchronize().unwrap();
    }
}

fn an_event_that_was_never_recorded_holds_nobody_up(kind: BackendKind) {
    let (device, stream) = open(kind);
    let event = device.create_event(false).unwrap();
    assert!(event.is_done().unwrap());
    event.synchronize().unwrap();
    stream.wait(&event).unwrap();
    finish(&stream);
}

fn streams_of_two_devices_wait_for_each_other(kind: BackendKind) {
    if device_count(kind).unwrap() < 2 {
        println!("skipped: one device");
        return;
    }
    let (device, first) = open(kind);
    let other = Device::open(kind, 1).unwrap();
    let second = other.create_stream().unwrap();
    let source = device.alloc(4096, MemoryKind::Host).unwrap();
    let target = other.alloc(4096, MemoryKind::Plain).unwrap();
    let event = device.create_event(false).unwrap();
    let gate = gate(&first);
    source.fill(&first, 5).unwrap();
    first.record(&event).unwrap();
    second.wait(&event).unwrap();
    copy(&second, target.address(), source.address(), 4096);
    std::thread::sleep(Duration::from_millis(10));
    assert!(!second.is_idle().unwrap());
    drop(gate);
    assert!(read(&target, &second).iter().all(|&byte| byte == 5));
}

fn events_measure_time(kind: BackendKind) {
    let (device, stream) = open(kind);
    let [start, end] = [0; 2].map(|_| device.create_event(true).unwrap());
    stream.record(&start).unwrap();
    stream.call_host(|| std::thread::sleep(Duration::from_millis(20))).unwrap();
    stream.record(&end).unwrap();
    end.synchronize().unwrap();
    let us = end.elapsed_us(&start).unwrap();
    assert!((15_000.0..1e7).contains(&us), "{us}");
    let plain = device.create_event(false).unwrap();
    stream.record(&plain).unwrap();
    finish(&stream);
    assert!(plain.elapsed_us(&start).is_err());
}

fn host_calls_run_in_order(kind: BackendKind) {
    let (device, stream) = open(kind);
    let host = device.alloc(64, MemoryKind::Host).unwrap();
    let seen = Arc::new(AtomicU32::new(0));
    let address = host.host_address().expect("host memory") as usize;
    for round in 1..=5u8 {
        host.fill(&stream, round).unwrap();
        let seen = seen.clone();
        let look = move || {
            // SAFETY: the buffer lives until the stream is synchronised, which orders the access.
            let byte = unsafe { (address as *const u8).read_volatile() };
            seen.fetch_add(u32::from(byte == round), Ordering::Relaxed);
        };
        stream.call_host(look).unwrap();
    }
    finish(&stream);
    assert_eq!(seen.load(Ordering::Relaxed), 5);
}

fn synchronize_has_a_limit(kind: BackendKind) {
    let (_, stream) = open(kind);
    let gate = gate(&stream);
    assert!(!stream.is_idle().unwrap());
    assert!(!stream.synchronize_within(Duration::from_millis(20)).unwrap());
    drop(gate);
    finish(&stream);
    assert!(stream.is_idle().unwrap());
    assert!(stream.synchronize_within(Duration::ZERO).unwrap());
}

fn dropped_memory_outlives_the_work_that_uses_it(kind: BackendKind) {
    let (device, stream) = open(kind);
    let result = device.alloc(1 << 16, MemoryKind::Plain).unwrap();
    for round in 1..10 {
        // Before the gate: to allocate or to free may wait for the device.
        let buffer = device.alloc(1 << 16, MemoryKind::Shareable).unwrap();
        let gate = gate(&stream);
        buffer.fill(&stream, round).unwrap();
        copy(&stream, result.address(), buffer.address(), 1 << 16);
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            drop(gate);
        });
        drop(buffer);
        assert!(read(&result, &stream).iter().all(|&byte| byte == round));
        opener.join().unwrap();
    }
}

fn drops_do_not_wait_for_the_work_that_uses_them(kind: BackendKind) {
    let (device, stream) = open(kind);
    let buffers = KINDS.map(|kind| device.alloc(1 << 16, kind).unwrap());
    let shared = device.alloc(1 << 16, MemoryKind::Shareable).unwrap();
    let mappings = handle_kinds(&device).into_iter().map(|kind| {
        let exported = shared.export(kind).unwrap();
        device.import(&exported.handle, exported.fd).unwrap()
    });
    let mappings: Vec<_> = mappings.collect();
    let event = device.create_event(false).unwrap();
    let other = device.create_stream().unwrap();
    let gate = gate(&stream);
    for buffer in &buffers {
        buffer.fill(&stream, 1).unwrap();
    }
    for mapping in &mappings {
        copy(&stream, mapping.address(), buffers[0].address(), 1 << 16);
    }
    stream.record(&event).unwrap();
    other.wait(&event).unwrap();
    let start = Instant::now();
    drop((buffers, mappings, shared, event, other));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(!stream.is_idle().unwrap(), "the work has still to run");
    drop(gate);
    finish(&stream);
    device.reclaim();
}

fn graphs_replay_kernels(kind: BackendKind) {
    let (device, stream) = open(kind);
    let [data, result] = [0; 2].map(|_| device.alloc(1024, MemoryKind::Plain).unwrap());
    // Kernels are loaded before a capture.
    device.function(probe::contract.instance("").unwrap()).unwrap();
    let graph = stream.capture::<Error>(|stream| {
        assert!(stream.is_capturing()?);
        launch_contract(&device, stream, 256, &data);
        copy(stream, result.address(), data.address(), 1024);
        Ok(())
    });
    let exec = graph.unwrap().instantiate().unwrap();
    assert!(!stream.is_capturing().unwrap());
    finish(&stream);
    assert!(read(&result, &stream).iter().all(|&byte| byte == 0), "captured, not run");
    for round in 0..50u32 {
        let before: Vec<u32> = (0..256).map(|i| i * round).collect();
        let bytes: Vec<u8> = before.iter().flat_map(|word| word.to_le_bytes()).collect();
        data.write(&stream, 0, &bytes).unwrap();
        exec.launch(&stream).unwrap();
        assert_eq!(read_u32(&result, &stream), contract_result(before, 256), "round {round}");
    }
}

fn replays_of_two_streams_run_one_after_the_other(kind: BackendKind) {
    if device_count(kind).unwrap() < 2 {
        println!("skipped: one device");
        return;
    }
    let (device, first) = open(kind);
    let second = device.create_stream().unwrap();
    let other = Device::open(kind, 1).unwrap();
    let elsewhere = other.create_stream().unwrap();
    let data = device.alloc(4096, MemoryKind::Plain).unwrap();
    let exec =
        first.capture::<Error>(|stream| data.fill(stream, 7)).unwrap().instantiate().unwrap();
    let event = other.create_event(false).unwrap();
    let gate = gate(&elsewhere);
    elsewhere.record(&event).unwrap();
    first.wait(&event).unwrap();
    exec.launch(&first).unwrap();
    exec.launch(&second).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    assert!(!second.is_idle().unwrap(), "it passed a replay that has still to run");
    drop(gate);
    finish(&second);
    finish(&first);
    exec.launch(&second).unwrap();
    assert!(read(&data, &second).iter().all(|&byte| byte == 7));
}

fn captured_uploads_hold_the_bytes_of_then(kind: BackendKind) {
    let (device, stream) = open(kind);
    let buffer = device.alloc(5000, MemoryKind::Shareable).unwrap();
    let mut data = pattern(5000, 3);
    let graph = stream.capture::<Error>(|stream| buffer.write(stream, 0, &data)).unwrap();
    let kept = data.clone();
    data.fill(0);
    let exec = graph.instantiate().unwrap();
    drop(graph);
    for _ in 0..3 {
        buffer.fill(&stream, 1).unwrap();
        exec.launch(&stream).unwrap();
        assert_eq!(read(&buffer, &stream), kept);
    }
}

fn a_failed_capture_leaves_the_stream_usable(kind: BackendKind) {
    let (device, stream) = open(kind);
    let buffer = device.alloc(64, MemoryKind::Plain).unwrap();
    let failed = stream.capture::<Error>(|stream| {
        buffer.fill(stream, 9)?;
        Err(Error::Unsupported { what: "this", why: "a test".into() })
    });
    assert!(matches!(failed, Err(Error::Unsupported { what: "this", .. })));
    buffer.write(&stream, 0, &[1]).unwrap();
    assert_eq!(read(&buffer, &stream)[..2], [1, 0]);
}

fn a_panic_in_a_capture_leaves_the_stream_usable(kind: BackendKind) {
    let (device, stream) = open(kind);
    let buffer = device.alloc(64, MemoryKind::Plain).unwrap();
    let panicked = std::thread::scope(|scope| {
        let body = || {
            let _ = stream.capture::<Error>(|_| std::panic::resume_unwind(Box::new("on purpose")));
        };
        scope.spawn(body).join()
    });
    assert!(panicked.is_err());
    assert!(!stream.is_capturing().unwrap());
    buffer.write(&stream, 0, &[1]).unwrap();
    assert_eq!(read(&buffer, &stream)[..2], [1, 0]);
}

fn captures_are_told_apart(kind: BackendKind) {
    let (device, stream) = open(kind);
    let other = device.create_stream().unwrap();
    let (fork, join) = (device.create_event(false).unwrap(), device.create_event(false).unwrap());
    assert_eq!(stream.capture_id().unwrap(), None);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let captured = stream.capture::<Error>(|stream| {
            let id = stream.capture_id()?;
            ids.push(id.unwrap());
            assert_eq!(other.capture_id()?, None);
            stream.record(&fork)?;
            other.wait(&fork)?;
            assert_eq!(other.capture_id()?, id, "it joined");
            other.record(&join)?;
            stream.wait(&join)
        });
        captured.unwrap();
        assert_eq!((stream.capture_id().unwrap(), other.capture_id().unwrap()), (None, None));
    }
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
}

fn memory_dropped_while_a_stream_is_captured_lives_as_long_as_the_graph(kind: BackendKind) {
    const BYTES: u64 = 4 << 20;
    let (device, stream) = open(kind);
    let result = device.alloc(BYTES, MemoryKind::Plain).unwrap();
    for memory in KINDS {
        let source = device.alloc(BYTES, memory).unwrap();
        source.fill(&stream, 7).unwrap();
        finish(&stream);
        let graph = stream.capture::<Error>(|stream| {
            // By address: nobody tells the graph to keep it.
            copy(stream, result.address(), source.address(), BYTES);
            drop(source);
            Ok(())
        });
        let exec = graph.unwrap().instantiate().unwrap();
        for round in 0..3 {
            // What is freed would be given to these.
            let others: Vec<Buffer> =
                (0..8).map(|_| device.alloc(BYTES, memory).unwrap()).collect();
            others.iter().for_each(|other| other.fill(&stream, 0xee).unwrap());
            result.fill(&stream, 0).unwrap();
            exec.launch(&stream).unwrap();
            let bytes = read(&result, &stream);
            assert!(bytes.iter().all(|&byte| byte == 7), "{memory:?} in round {round}");
        }
    }
}

fn retained_objects_live_as_long_as_the_graph(kind: BackendKind) {
    let (device, stream) = open(kind);
    let buffer = device.alloc(64, MemoryKind::Plain).unwrap();
    let held = Arc::new(7);
    let graph = stream.capture::<Error>(|stream| {
        stream.retain(held.clone() as Arc<dyn Any + Send + Sync>)?;
        buffer.fill(stream, 1)
    });
    let graph = graph.unwrap();
    let exec = graph.instantiate().unwrap();
    drop(graph);
    exec.launch(&stream).unwrap();
    finish(&stream);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(Arc::strong_count(&held), 2);
    let gate = gate(&stream);
    exec.launch(&stream).unwrap();
    drop(exec);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(Arc::strong_count(&held), 2, "the last replay has not run");
    drop(gate);
    finish(&stream);
    // Released on another thread, and by some drivers at the next call only.
    wait_until("the object is released", || {
        stream.synchronize().unwrap();
        Arc::strong_count(&held) == 1
    });
}

/// Kinds that a process can import from itself.
fn handle_kinds(device: &Device) -> Vec<HandleKind> {
    let mut kinds = device.handle_kinds(MemoryKind::Shareable);
    kinds.retain(|&kind| kind != HandleKind::RuntimeIpc);
    assert!(!kinds.is_empty(), "shareable memory can be shared");
    kinds
}

fn exported_memory_is_the_same_memory(kind: BackendKind) {
    let (device, stream) = open(kind);
    let scratch = device.alloc(10_000, MemoryKind::Plain).unwrap();
    for handle_kind in handle_kinds(&device) {
        let buffer = device.alloc(10_000, MemoryKind::Shareable).unwrap();
        let shared = buffer.export(handle_kind).unwrap();
        assert_eq!((shared.handle.kind, shared.handle.bytes), (handle_kind, 10_000));
        assert_eq!(shared.handle.device_uuid, device.uuid());
        let mapping = device.import(&shared.handle, shared.fd).unwrap();
        assert_eq!(mapping.bytes(), 10_000);
        let data = pattern(10_000, 5);
        buffer.write(&stream, 0, &data).unwrap();
        copy(&stream, scratch.address(), mapping.address(), 10_000);
        assert_eq!(read(&scratch, &stream), data);
        // The mapping keeps the memory when its owner is gone.
        drop(buffer);
        scratch.fill(&stream, 0).unwrap();
        copy(&stream, scratch.address(), mapping.address(), 10_000);
        assert_eq!(read(&scratch, &stream), data, "{handle_kind:?}");
    }
}

fn a_part_of_an_allocation_can_be_adopted_and_exported(kind: BackendKind) {
    let (device, stream) = open(kind);
    let scratch = device.alloc(512, MemoryKind::Plain).unwrap();
    for handle_kind in handle_kinds(&device) {
        let buffer = device.alloc(10_000, MemoryKind::Shareable).unwrap();
        let data = pattern(10_000, 6);
        buffer.write(&stream, 0, &data).unwrap();
        // SAFETY: within the buffer, which lives longer.
        let part = unsafe { device.adopt(buffer.address() + 4321, 512) }.unwrap();
        assert_eq!((part.address(), part.bytes()), (buffer.address() + 4321, 512));
        let shared = part.export(handle_kind).unwrap();
        let mapping = device.import(&shared.handle, shared.fd).unwrap();
        copy(&stream, scratch.address(), mapping.address(), 512);
        assert_eq!(read(&scratch, &stream), data[4321..4833], "{handle_kind:?}");
    }
}

fn handles_are_checked(kind: BackendKind) {
    let (device, _) = open(kind);
    for handle_kind in handle_kinds(&device) {
        let buffer = device.alloc(10_000, MemoryKind::Shareable).unwrap();
        let import = |change: fn(&mut ExportedHandle)| {
            let mut shared = buffer.export(handle_kind).unwrap();
            change(&mut shared.handle);
            device.import(&shared.handle, shared.fd).map(|_| ())
        };
        import(|_| ()).unwrap();
        assert!(import(|handle| handle.bytes = 0).is_err());
        assert!(import(|handle| handle.bytes = handle.allocation_bytes + 1).is_err());
        assert!(import(|handle| handle.offset = u64::MAX).is_err());
        assert!(import(|handle| handle.offset = handle.allocation_bytes - 5).is_err());
        let shared = buffer.export(handle_kind).unwrap();
        if shared.fd.is_some() {
            assert!(device.import(&shared.handle, None).is_err());
        }
    }
}

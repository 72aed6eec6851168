//! Handles within a process, between devices and between processes.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;

use cudarc::driver::sys;
use mscclrs_gpu::MemoryKind::{Plain, Shareable};
use mscclrs_gpu::{BackendKind, Buffer, Device, Error, ExportedHandle, HandleKind};

use crate::driver::{Foreign, ok};
use crate::{device, pattern, peer, read};

const HANDLE: &str = "MSCCLRS_TEST_HANDLE";
const FD: &str = "MSCCLRS_TEST_FD";
const DEVICE: &str = "MSCCLRS_TEST_DEVICE";
const BYTES: usize = 3 << 20;

fn filled(device: &Device, kind: mscclrs_gpu::MemoryKind) -> Buffer {
    let stream = device.create_stream().unwrap();
    let buffer = device.alloc(BYTES as u64, kind).unwrap();
    buffer.write(&stream, 0, &pattern(1, BYTES)).unwrap();
    buffer
}

/// Imports on `importer`, reads the pattern, and writes another one back.
fn use_import(importer: &Device, handle: &ExportedHandle, fd: Option<OwnedFd>) {
    let stream = importer.create_stream().unwrap();
    let mapping = importer.import(handle, fd).unwrap();
    assert_eq!(mapping.bytes(), BYTES as u64);
    assert!(read(&stream, mapping.address(), BYTES) == pattern(1, BYTES));
    let back = pattern(2, BYTES);
    // SAFETY: both ranges are `BYTES` long; pageable memory blocks until the copy is done.
    unsafe { stream.copy(mapping.address(), back.as_ptr() as u64, BYTES as u64) }.unwrap();
    stream.synchronize().unwrap();
}

fn check_written(device: &Device, buffer: &Buffer) {
    let stream = device.create_stream().unwrap();
    assert!(read(&stream, buffer.address(), BYTES) == pattern(2, BYTES));
}

#[test]
fn the_same_process_imports_every_form_on_the_same_device_and_on_a_peer() {
    let Some((device, _alone)) = device() else { return };
    for importer in [Some(device.clone()), peer(&device)].into_iter().flatten() {
        for kind in [Plain, Shareable] {
            assert!(!device.handle_kinds(kind).is_empty());
            for form in device.handle_kinds(kind) {
                let buffer = filled(&device, kind);
                let shared = buffer.export(form).unwrap();
                use_import(&importer, &shared.handle, shared.fd);
                check_written(&device, &buffer);
            }
        }
    }
}

/// The other process: does nothing unless a parent test starts it.
#[test]
fn child_imports() {
    let Ok(handle) = std::env::var(HANDLE) else { return };
    let handle: ExportedHandle = serde_json::from_str(&handle).unwrap();
    let ordinal = std::env::var(DEVICE).unwrap().parse().unwrap();
    let fd = std::env::var(FD).ok().map(|fd| {
        // SAFETY: the parent left this descriptor open for us.
        unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) }
    });
    let importer = Device::open(BackendKind::Cuda, ordinal).unwrap();
    use_import(&importer, &handle, fd);
}

#[test]
fn another_process_imports_every_form_on_the_same_device_and_on_a_peer() {
    let Some((device, _alone)) = device() else { return };
    for importer in [Some(device.clone()), peer(&device)].into_iter().flatten() {
        for kind in [Plain, Shareable] {
            for form in device.handle_kinds(kind) {
                let buffer = filled(&device, kind);
                let shared = buffer.export(form).unwrap();
                let mut child = Command::new(std::env::current_exe().unwrap());
                child
                    .args(["--exact", "handles::child_imports", "--nocapture"])
                    .env(HANDLE, serde_json::to_string(&shared.handle).unwrap())
                    .env(DEVICE, importer.ordinal().to_string());
                // A duplicate without the close-on-exec flag travels to the child.
                let inherited = shared.fd.map(|fd| rustix::io::dup(&fd).unwrap());
                if let Some(fd) = &inherited {
                    child.env(FD, fd.as_raw_fd().to_string());
                }
                assert!(child.status().unwrap().success(), "{form:?} on {importer:?}");
                check_written(&device, &buffer);
            }
        }
    }
}

#[test]
fn a_form_that_memory_lacks_is_refused() {
    let Some((device, _alone)) = device() else { return };
    for kind in [mscclrs_gpu::MemoryKind::Host, Plain, Shareable] {
        let buffer = device.alloc(64, kind).unwrap();
        for form in [HandleKind::Fabric, HandleKind::PosixFd, HandleKind::RuntimeIpc] {
            if !device.handle_kinds(kind).contains(&form) {
                let error = buffer.export(form).unwrap_err();
                assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            }
        }
    }
}

#[test]
fn a_forged_handle_is_an_error() {
    let Some((device, _alone)) = device() else { return };
    let buffer = device.alloc(4096, Shareable).unwrap();
    let form = device.handle_kinds(Shareable)[0];
    let good = buffer.export(form).unwrap();
    let mut longer = good.handle.clone();
    longer.allocation_bytes *= 4;
    longer.bytes = longer.allocation_bytes;
    assert!(device.import(&longer, None).is_err());
    let mut outside = good.handle.clone();
    outside.offset = u64::MAX;
    assert!(device.import(&outside, None).is_err());
    let mut empty = good.handle.clone();
    empty.payload.clear();
    assert!(device.import(&empty, good.fd).is_err());
}

#[test]
fn a_part_of_a_foreign_allocation_is_exported_with_its_offset() {
    let Some((device, _alone)) = device() else { return };
    let stream = device.create_stream().unwrap();
    for kind in [Plain, Shareable] {
        let whole = filled(&device, kind);
        // SAFETY: `whole` outlives `part`.
        let part = unsafe { device.adopt(whole.address() + 1000, 5000) }.unwrap();
        let mut exported = 0;
        for form in [HandleKind::Fabric, HandleKind::PosixFd, HandleKind::RuntimeIpc] {
            if !device.handle_kinds(kind).contains(&form) {
                assert!(part.export(form).is_err());
                continue;
            }
            let shared = part.export(form).unwrap();
            assert_eq!((shared.handle.offset, shared.handle.bytes), (1000, 5000));
            let mapping = device.import(&shared.handle, shared.fd).unwrap();
            assert!(read(&stream, mapping.address(), 5000) == pattern(1, BYTES)[1000..6000]);
            exported += 1;
        }
        assert!(exported > 0);
        // SAFETY: never used.
        assert!(unsafe { device.adopt(whole.address(), 1 << 40) }.is_err(), "past its end");
    }
}

#[test]
fn memory_that_cannot_travel_is_adopted_but_not_exported() {
    let Some((device, _alone)) = device() else { return };
    let _foreign = Foreign::enter();
    let pageable = [0u8; 64];
    // SAFETY: the memory outlives the call.
    let refused = unsafe { device.adopt(pageable.as_ptr() as u64, 64) };
    assert!(matches!(refused, Err(Error::Invalid { .. })));
    let mut pooled = 0;
    let stream = device.create_stream().unwrap();
    // SAFETY: the primary context is current and the stream lives.
    ok(unsafe { sys::cuMemAllocAsync(&raw mut pooled, 4096, stream.raw() as _) });
    {
        // SAFETY: freed below, after the last use.
        let buffer = unsafe { device.adopt(pooled, 4096) }.unwrap();
        for form in [HandleKind::Fabric, HandleKind::PosixFd, HandleKind::RuntimeIpc] {
            let error = buffer.export(form).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{form:?}: {error}");
        }
    }
    // SAFETY: allocated above.
    ok(unsafe { sys::cuMemFreeAsync(pooled, stream.raw() as _) });
    stream.synchronize().unwrap();
}

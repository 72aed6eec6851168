//! Whether memory really goes to another process, in each form: a little is allocated and filled here,
//! and another process maps it and reads it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mscclrs_gpu::{
    BackendKind, Buffer, Device, ExportedHandle, HandleKind, MemoryKind, SharedDescriptor, Stream,
};
use serde::{Deserialize, Serialize};

use super::model::Handle;
use super::probe::{self, Probe, Question};

const KINDS: [HandleKind; 3] = [HandleKind::Fabric, HandleKind::PosixFd, HandleKind::RuntimeIpc];
/// Bytes that are looked at; the same at both ends.
const BYTES: usize = 16;
/// How long the other process may take.
const IMPORT: Duration = Duration::from_secs(15);
/// How long a copy of a few bytes may take.
const COPY: Duration = Duration::from_secs(5);

/// What a process is to map. The descriptor of a [`HandleKind::PosixFd`] is its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Import {
    is_gpu: bool,
    ordinal: u32,
    handles: Vec<ExportedHandle>,
}

/// Memory on its way.
struct Exported {
    kind: HandleKind,
    handle: ExportedHandle,
    descriptor: Option<OwnedFd>,
    /// Keeps the memory until the other process has looked.
    _buffer: Buffer,
}

/// Of a GPU.
pub(super) fn of_gpu(ordinal: u32) -> Vec<Handle> {
    match Device::open(BackendKind::Cuda, ordinal) {
        Ok(device) => of(&device, ordinal),
        Err(error) => {
            let why = words(&error.into());
            KINDS.map(|kind| judged(kind, Err(why.clone()))).into()
        }
    }
}

/// Of an open device, to the device of that number of its kind in another process.
pub(super) fn of(device: &Device, importer: u32) -> Vec<Handle> {
    let mut outcomes: Vec<(HandleKind, Result<(), String>)> = Vec::new();
    let mut exported = Vec::new();
    for kind in KINDS {
        match export(device, kind) {
            Ok(ready) => exported.push(ready),
            Err(error) => outcomes.push((kind, Err(words(&error)))),
        }
    }
    let kinds: Vec<HandleKind> = exported.iter().map(|exported| exported.kind).collect();
    let imported = import_elsewhere(device.kind(), importer, &mut exported);
    for (place, kind) in kinds.into_iter().enumerate() {
        let outcome = match &imported {
            Ok(errors) => errors.get(place).cloned().flatten().map_or(Ok(()), Err),
            Err(why) => Err(format!("another process did not import it: {why}")),
        };
        outcomes.push((kind, outcome));
    }
    outcomes.sort_by_key(|(kind, _)| KINDS.iter().position(|known| known == kind));
    outcomes.into_iter().map(|(kind, outcome)| judged(kind, outcome)).collect()
}

fn judged(kind: HandleKind, outcome: Result<(), String>) -> Handle {
    Handle { kind: format!("{kind:?}"), works: outcome.is_ok(), why: outcome.err() }
}

/// An error without what is said by where it is told.
fn words(error: &anyhow::Error) -> String {
    match error.downcast_ref::<mscclrs_gpu::Error>() {
        Some(mscclrs_gpu::Error::Unsupported { why, .. }) => why.clone(),
        _ => format!("{error:#}"),
    }
}

/// What the memory holds.
fn pattern(kind: HandleKind) -> [u8; BYTES] {
    let number = KINDS.iter().position(|known| *known == kind).unwrap_or_default();
    std::array::from_fn(|at| (17 * (number + 1) + at) as u8)
}

fn export(device: &Device, kind: HandleKind) -> Result<Exported> {
    device.require_handle(kind)?;
    let memory = match kind {
        HandleKind::Fabric | HandleKind::PosixFd => MemoryKind::Shareable,
        HandleKind::RuntimeIpc => MemoryKind::Plain,
    };
    let buffer = device.alloc(BYTES as u64, memory)?;
    let stream = device.create_stream()?;
    buffer.write(&stream, 0, &pattern(kind))?;
    settle(&stream)?;
    let SharedDescriptor { handle, fd } = buffer.export(kind)?;
    Ok(Exported { kind, handle, descriptor: fd, _buffer: buffer })
}

fn settle(stream: &Stream) -> Result<()> {
    ensure!(stream.synchronize_within(COPY)?, "a copy did not end within {} s", COPY.as_secs());
    Ok(())
}

/// What another process met, in the order of the memory.
fn import_elsewhere(
    kind: BackendKind,
    ordinal: u32,
    exported: &mut [Exported],
) -> Result<Vec<Option<String>>, String> {
    if exported.is_empty() {
        return Ok(Vec::new());
    }
    let descriptor = exported.iter_mut().find_map(|exported| exported.descriptor.take());
    let handles = exported.iter().map(|exported| exported.handle.clone()).collect();
    let import = Import { is_gpu: kind == BackendKind::Cuda, ordinal, handles };
    let question = Question { probe: Probe::Import(import), limit: IMPORT, descriptor };
    probe::ask(vec![question]).pop().map_or(Ok(Vec::new()), probe::read)
}

/// Maps what another process exported, and says what went wrong with each.
pub(super) fn import(import: &Import) -> Vec<Option<String>> {
    let kind = if import.is_gpu { BackendKind::Cuda } else { BackendKind::Cpu };
    match Device::open(kind, import.ordinal) {
        Ok(device) => {
            let look = |handle| look_into(&device, handle).err().map(|error| words(&error));
            import.handles.iter().map(look).collect()
        }
        Err(error) => vec![Some(words(&error.into())); import.handles.len()],
    }
}

fn look_into(device: &Device, handle: &ExportedHandle) -> Result<()> {
    let descriptor = match handle.kind {
        HandleKind::PosixFd => {
            let input = rustix::stdio::stdin();
            Some(rustix::io::fcntl_dupfd_cloexec(input, 3).context("the descriptor is missing")?)
        }
        HandleKind::Fabric | HandleKind::RuntimeIpc => None,
    };
    let mapping = device.import(handle, descriptor).context("importing it")?;
    ensure!(mapping.bytes() >= BYTES as u64, "{} bytes of it are mapped", mapping.bytes());
    let own = device.alloc(BYTES as u64, MemoryKind::Plain)?;
    let stream = device.create_stream()?;
    // SAFETY: both ranges have at least so many bytes and live until the stream is done: if it is not,
    // this process ends without unmapping them.
    unsafe { stream.copy(own.address(), mapping.address(), BYTES as u64) }?;
    if let Err(error) = settle(&stream) {
        std::mem::forget((mapping, own));
        return Err(error);
    }
    let mut found = [0; BYTES];
    own.read(&stream, 0, &mut found)?;
    ensure!(found == pattern(handle.kind), "it holds other bytes than were written");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported(kind: HandleKind) -> Exported {
        let device = Device::open(BackendKind::Cpu, 0).expect("the CPU device");
        export(&device, kind).expect("exported")
    }

    #[test]
    fn memory_of_the_cpu_device_is_read_as_it_was_written() {
        let exported = exported(HandleKind::PosixFd);
        let device = Device::open(BackendKind::Cpu, 1).expect("the CPU device");
        let mapping = device.import(&exported.handle, exported.descriptor).expect("imported");
        let (own, stream) = (
            device.alloc(BYTES as u64, MemoryKind::Plain).expect("memory"),
            device.create_stream().expect("stream"),
        );
        // SAFETY: both live until the read below.
        unsafe { stream.copy(own.address(), mapping.address(), BYTES as u64) }.expect("copied");
        let mut found = [0; BYTES];
        own.read(&stream, 0, &mut found).expect("read");
        assert_eq!(found, pattern(HandleKind::PosixFd));
    }

    #[test]
    fn forms_that_a_device_does_not_have_say_why() {
        let device = Device::open(BackendKind::Cpu, 0).expect("the CPU device");
        for kind in [HandleKind::Fabric, HandleKind::RuntimeIpc] {
            let why = words(&export(&device, kind).err().expect("refused"));
            assert_eq!(why, "the CPU device exports memory as file descriptors only");
        }
    }

    #[test]
    fn a_process_that_does_not_import_is_the_reason() {
        // A test's own process cannot be started again as a probe, so no import comes back.
        let device = Device::open(BackendKind::Cpu, 0).expect("the CPU device");
        let handles = of(&device, 1);
        assert_eq!(handles.len(), KINDS.len());
        let descriptor = &handles[1];
        assert_eq!((descriptor.kind.as_str(), descriptor.works), ("PosixFd", false));
        assert!(descriptor.why.as_deref().expect("why").contains("another process did not import"));
    }
}

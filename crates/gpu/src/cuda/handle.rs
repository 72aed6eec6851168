//! Handles: memory on its way to another process, and back.
//!
//! Invariant: what comes in is checked before anything is mapped, and a mapping releases exactly what
//! its import took. A handle says which process made it: a process cannot open its own legacy
//! handles, so their import finds the allocation by its address instead.

use std::ffi::c_char;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use cudarc::driver::sys::CUipcMemHandle;

use crate::backend::BackendMapping;
use crate::cuda::device::{Gpu, gpu_of};
use crate::cuda::memory::address_range;
use crate::cuda::release;
use crate::cuda::vmm::{FABRIC_BYTES, Mapped, Physical};
use crate::{Error, ExportedHandle, HandleKind, Result};

const LAZY_PEER_ACCESS: u32 = 1;
const IPC_BYTES: usize = 64;
const PROCESS_BYTES: usize = 12;
const BASE_BYTES: usize = 8;

/// Names this process: its id may come again, or mean another process in another container.
fn this_process() -> [u8; PROCESS_BYTES] {
    static NONCE: OnceLock<u64> = OnceLock::new();
    let nonce = NONCE.get_or_init(|| RandomState::new().build_hasher().finish());
    let mut name = [0; PROCESS_BYTES];
    name[..4].copy_from_slice(&std::process::id().to_le_bytes());
    name[4..].copy_from_slice(&nonce.to_le_bytes());
    name
}

/// What an exported handle carries: who made it, the allocation's address there, the driver's bytes.
#[derive(Debug, PartialEq, Eq)]
struct Payload<'a> {
    process: [u8; PROCESS_BYTES],
    base: u64,
    native: &'a [u8],
}

impl<'a> Payload<'a> {
    fn encode(&self) -> Vec<u8> {
        [&self.process[..], &self.base.to_le_bytes(), self.native].concat()
    }

    fn decode(bytes: &'a [u8]) -> Option<Payload<'a>> {
        let (process, rest) = bytes.split_first_chunk::<PROCESS_BYTES>()?;
        let (base, native) = rest.split_first_chunk::<BASE_BYTES>()?;
        Some(Payload { process: *process, base: u64::from_le_bytes(*base), native })
    }
}

/// What memory is made of, as far as exporting goes.
pub(super) enum Backing<'a> {
    Host,
    Plain { legacy_ipc: bool },
    Virtual(&'a Physical),
}

/// The range to export and the allocation it lies in.
pub(super) struct Source<'a> {
    pub(super) base: u64,
    pub(super) allocation_bytes: u64,
    pub(super) allocation: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) backing: Backing<'a>,
}

pub(super) fn export(
    gpu: &'static Gpu,
    source: &Source<'_>,
    kind: HandleKind,
) -> Result<(ExportedHandle, Option<OwnedFd>)> {
    let mut fd = None;
    let native: Vec<u8> = match (kind, &source.backing) {
        (HandleKind::Fabric, Backing::Virtual(physical)) if physical.types.fabric => {
            physical.export_fabric()?.to_vec()
        }
        (HandleKind::PosixFd, Backing::Virtual(physical)) if physical.types.posix => {
            fd = Some(physical.export_fd()?);
            Vec::new()
        }
        (HandleKind::RuntimeIpc, Backing::Plain { legacy_ipc: true }) => {
            let _entered = gpu.context.enter_relaxed()?;
            let mut handle = CUipcMemHandle { reserved: [0; IPC_BYTES] };
            // SAFETY: the base is a live allocation's; writes the 64 bytes of the handle.
            unsafe { gpu.api.cuIpcGetMemHandle(&raw mut handle, source.base) }?;
            handle.reserved.iter().map(|&byte| byte as u8).collect()
        }
        (_, backing) => {
            let why = match backing {
                Backing::Host => "pinned host memory of CUDA cannot be exported",
                Backing::Plain { legacy_ipc: true } => "plain memory is exported as RuntimeIpc",
                Backing::Plain { legacy_ipc: false } => {
                    "managed memory and memory of a pool cannot be exported; use memory of its own allocation"
                }
                Backing::Virtual(_) => {
                    "the virtual memory was not allocated for handles of this form"
                }
            };
            return Err(Error::Unsupported {
                what: "exporting memory in this form",
                why: format!("{kind:?}: {why}"),
            });
        }
    };
    let payload = Payload { process: this_process(), base: source.base, native: &native };
    let handle = ExportedHandle {
        kind,
        device_uuid: gpu.uuid,
        allocation: source.allocation,
        allocation_bytes: source.allocation_bytes,
        offset: source.offset,
        bytes: source.bytes,
        payload: payload.encode(),
    };
    Ok((handle, fd))
}

fn refused(what: &'static str, value: String, allowed: &str) -> Error {
    Error::Invalid { what, value, allowed: allowed.into() }
}

/// Checks what a handle says by itself.
fn parse(handle: &ExportedHandle) -> Result<Payload<'_>> {
    let end = handle.offset.checked_add(handle.bytes);
    if handle.bytes == 0 || end.is_none_or(|end| end > handle.allocation_bytes) {
        return Err(refused(
            "memory handle",
            format!(
                "{} bytes at {} of an allocation of {}",
                handle.bytes, handle.offset, handle.allocation_bytes
            ),
            "at least 1 byte, all of them in the allocation",
        ));
    }
    let native = match handle.kind {
        HandleKind::Fabric => FABRIC_BYTES,
        HandleKind::PosixFd => 0,
        HandleKind::RuntimeIpc => IPC_BYTES,
    };
    Payload::decode(&handle.payload).filter(|payload| payload.native.len() == native).ok_or_else(
        || {
            refused(
                "memory handle",
                format!("{:?} with {} bytes", handle.kind, handle.payload.len()),
                "a handle of a CUDA device as its exporter made it",
            )
        },
    )
}

/// Whether a handle passes what is looked at before the driver is asked.
#[cfg(any(test, fuzzing))]
pub(crate) fn is_well_formed(handle: &ExportedHandle) -> bool {
    let Ok(payload) = parse(handle) else { return false };
    assert_eq!(payload.encode(), handle.payload);
    true
}

pub(super) fn import(
    gpu: &'static Gpu,
    handle: &ExportedHandle,
    fd: Option<OwnedFd>,
) -> Result<Box<dyn BackendMapping>> {
    let payload = parse(handle)?;
    let own = payload.process == this_process();
    let (base, held) = match handle.kind {
        HandleKind::RuntimeIpc if own => (own_plain(gpu, handle, payload.base)?, Held::Nothing),
        HandleKind::RuntimeIpc => {
            let mut native = [0; IPC_BYTES];
            for (to, from) in native.iter_mut().zip(payload.native) {
                *to = *from as c_char;
            }
            let opened = OpenedIpc::open(gpu, CUipcMemHandle { reserved: native }, handle)?;
            (opened.base, Held::Opened(opened))
        }
        HandleKind::Fabric | HandleKind::PosixFd => {
            let imported = match (handle.kind, fd) {
                (HandleKind::PosixFd, Some(fd)) => Physical::import_fd(gpu, fd),
                (HandleKind::PosixFd, None) => {
                    return Err(refused(
                        "memory handle",
                        "PosixFd without its descriptor".into(),
                        "pass the descriptor that travelled with it",
                    ));
                }
                _ => {
                    let mut native = [0; FABRIC_BYTES];
                    native.copy_from_slice(payload.native);
                    Physical::import_fabric(gpu, native)
                }
            };
            let physical = match imported {
                // The address can mean other memory by now, the handle cannot: so it comes second.
                Err(error) if own => Physical::at(gpu, payload.base)?.ok_or(error)?,
                imported => imported?,
            };
            let mapped = Mapped::map(gpu, physical, handle.allocation_bytes)?;
            (mapped.address, Held::Mapped(mapped))
        }
    };
    Ok(Box::new(CudaMapping { address: base + handle.offset, bytes: handle.bytes, _held: held }))
}

/// Where this process's own plain memory lies, once `gpu` may reach it. Its owner keeps it alive, as
/// it has to for other processes.
fn own_plain(gpu: &'static Gpu, handle: &ExportedHandle, base: u64) -> Result<u64> {
    let gone = || {
        refused(
            "memory handle",
            format!("an allocation of {} bytes at {base:#x}", handle.allocation_bytes),
            "the exporter must keep the memory as long as it is imported",
        )
    };
    let owner = gpu_of(&handle.device_uuid)?.ok_or_else(gone)?;
    {
        let _entered = owner.context.enter_relaxed()?;
        let (found, bytes) = address_range(owner, base).map_err(|_| gone())?;
        if found != base || bytes < handle.allocation_bytes {
            return Err(gone());
        }
    }
    gpu.reach(owner)?;
    Ok(base)
}

/// A legacy handle opened in this process.
struct OpenedIpc {
    gpu: &'static Gpu,
    base: u64,
}

impl OpenedIpc {
    fn open(
        gpu: &'static Gpu,
        native: CUipcMemHandle,
        handle: &ExportedHandle,
    ) -> Result<OpenedIpc> {
        let _entered = gpu.context.enter_relaxed()?;
        let mut base = 0;
        // SAFETY: the driver checks the handle's bytes.
        unsafe { gpu.api.cuIpcOpenMemHandle_v2(&raw mut base, native, LAZY_PEER_ACCESS) }?;
        let opened = OpenedIpc { gpu, base };
        if let Ok((found, bytes)) = address_range(gpu, base)
            && found.saturating_add(bytes) < base.saturating_add(handle.offset + handle.bytes)
        {
            return Err(refused(
                "memory handle",
                format!("{} bytes at {}", handle.bytes, handle.offset),
                "the range must lie in the allocation that the handle opens",
            ));
        }
        Ok(opened)
    }
}

impl Drop for OpenedIpc {
    fn drop(&mut self) {
        let (gpu, base) = (self.gpu, self.base);
        mscclrs_log::debug!(
            MEMORY,
            address = format_args!("{base:#x}"),
            "a peer's memory is unmapped"
        );
        release::later(gpu, move || {
            let Ok(_entered) = gpu.context.enter_relaxed() else { return };
            // SAFETY: closes what `open` opened, once. There is nothing to do about a failure.
            let _ = unsafe { gpu.api.cuIpcCloseMemHandle(base) };
        });
    }
}

enum Held {
    Nothing,
    Mapped(#[expect(dead_code, reason = "unmaps when dropped")] Mapped),
    Opened(#[expect(dead_code, reason = "closes when dropped")] OpenedIpc),
}

struct CudaMapping {
    address: u64,
    bytes: u64,
    _held: Held,
}

impl BackendMapping for CudaMapping {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(kind: HandleKind, native: usize) -> ExportedHandle {
        let native = vec![7; native];
        let payload = Payload { process: this_process(), base: 4096, native: &native };
        ExportedHandle {
            kind,
            device_uuid: [0; 16],
            allocation: 1,
            allocation_bytes: 100,
            offset: 40,
            bytes: 60,
            payload: payload.encode(),
        }
    }

    #[test]
    fn a_payload_comes_back_as_it_went() {
        let handle = handle(HandleKind::RuntimeIpc, 64);
        let payload = parse(&handle).unwrap();
        assert_eq!(payload.process, this_process());
        assert_eq!(payload.base, 4096);
        assert_eq!(payload.native, [7; 64]);
    }

    #[test]
    fn a_range_outside_its_allocation_is_refused() {
        let mut bad = handle(HandleKind::PosixFd, 0);
        assert!(parse(&bad).is_ok());
        bad.bytes = 61;
        assert!(parse(&bad).is_err());
        bad.bytes = u64::MAX;
        assert!(parse(&bad).is_err());
        bad.bytes = 0;
        assert!(parse(&bad).is_err());
    }

    #[test]
    fn a_payload_of_another_length_is_refused() {
        assert!(parse(&handle(HandleKind::Fabric, 63)).is_err());
        assert!(parse(&handle(HandleKind::PosixFd, 1)).is_err());
        let mut bad = handle(HandleKind::RuntimeIpc, 64);
        bad.payload.truncate(10);
        assert!(parse(&bad).is_err());
        bad.payload.clear();
        assert!(parse(&bad).is_err());
    }
}

//! Memory: pinned, plain, shareable, and what somebody else allocated.
//!
//! Invariant: memory made here is zero before anybody has its address, and is released some time after
//! its owner was dropped, never by the drop itself, see [`release`].

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::CUpointer_attribute as Attribute;

use crate::backend::{BackendMemory, BackendStream};
use crate::cuda::device::Gpu;
use crate::cuda::handle::{self, Backing, Source};
use crate::cuda::library::Failure;
use crate::cuda::release;
use crate::cuda::vmm::{self, Mapped, Physical};
use crate::rlimits::pinned_limit;
use crate::{Error, ExportedHandle, HandleKind, MemoryKind, Result};

const PORTABLE: u32 = 1;
const DEVICE_MAPPED: u32 = 2;
const ON_HOST: c_int = 1;

/// A number that names an allocation in this process; the driver's own buffer ids are small, so
/// these never meet them.
fn next_allocation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn alloc(
    gpu: &'static Gpu,
    bytes: u64,
    kind: MemoryKind,
) -> Result<Box<dyn BackendMemory>> {
    if bytes == 0 {
        return Err(Error::Invalid {
            what: "allocation",
            value: "0 bytes".into(),
            allowed: "at least 1 byte".into(),
        });
    }
    match kind {
        MemoryKind::Host => {
            Ok(Box::new(HostMemory { pinned: PinnedMemory::alloc(gpu, bytes)?, bytes }))
        }
        MemoryKind::Plain => Ok(Box::new(PlainMemory::alloc(gpu, bytes)?)),
        // Without virtual memory, plain memory still travels as a legacy handle.
        MemoryKind::Shareable if gpu.shareable().kinds().is_empty() => {
            Ok(Box::new(PlainMemory::alloc(gpu, bytes)?))
        }
        MemoryKind::Shareable => Ok(Box::new(ShareableMemory::alloc(gpu, bytes)?)),
    }
}

/// Zeroes on a stream of our own, and waits.
fn zero(gpu: &'static Gpu, address: u64, bytes: u64) -> Result<()> {
    let stream = gpu.service()?;
    stream.fill(address, 0, bytes)?;
    stream.synchronize(None)?;
    Ok(())
}

/// Pinned host memory that kernels reach.
pub(super) struct PinnedMemory {
    gpu: &'static Gpu,
    pointer: *mut u8,
    device_address: u64,
    size: usize,
}

// SAFETY: the memory is plain bytes; who writes where is the users' agreement.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(super) fn alloc(gpu: &'static Gpu, bytes: u64) -> Result<PinnedMemory> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let _entered = gpu.context.enter_relaxed()?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: writes the address of new memory.
        unsafe { gpu.api.cuMemHostAlloc(&raw mut pointer, size, PORTABLE | DEVICE_MAPPED) }
            .map_err(|failure| failure.allocating(bytes, "pinned host memory", pinned_limit()))?;
        let mut memory = PinnedMemory { gpu, pointer: pointer.cast(), device_address: 0, size };
        // SAFETY: the memory is new, ours alone and `size` bytes long.
        unsafe { memory.pointer.write_bytes(0, size) };
        // SAFETY: the memory was allocated for the device just above.
        unsafe {
            gpu.api.cuMemHostGetDevicePointer_v2(&raw mut memory.device_address, pointer, 0)
        }?;
        Ok(memory)
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    pub(super) fn device_address(&self) -> u64 {
        self.device_address
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let (gpu, address) = (self.gpu, self.pointer as usize);
        mscclrs_log::debug!(
            MEMORY,
            address = format_args!("{address:#x}"),
            "pinned memory is freed"
        );
        release::later(gpu, move || {
            let Ok(_entered) = gpu.context.enter_relaxed() else { return };
            // SAFETY: the owner is gone. There is nothing to do about a failure.
            let _ = unsafe { gpu.api.cuMemFreeHost(address as *mut _) };
        });
    }
}

struct HostMemory {
    pinned: PinnedMemory,
    bytes: u64,
}

impl BackendMemory for HostMemory {
    fn address(&self) -> u64 {
        self.pinned.device_address
    }

    fn host_address(&self) -> Option<*mut u8> {
        Some(self.pinned.pointer)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self, kind: HandleKind) -> Result<(ExportedHandle, Option<OwnedFd>)> {
        handle::export(
            self.pinned.gpu,
            &Source {
                base: self.address(),
                allocation_bytes: self.bytes,
                allocation: 0,
                offset: 0,
                bytes: self.bytes,
                backing: Backing::Host,
            },
            kind,
        )
    }
}

struct PlainMemory {
    gpu: &'static Gpu,
    address: u64,
    bytes: u64,
    allocation: u64,
}

impl PlainMemory {
    fn alloc(gpu: &'static Gpu, bytes: u64) -> Result<PlainMemory> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut address = 0;
        {
            let _entered = gpu.context.enter_relaxed()?;
            // SAFETY: writes the address of new memory.
            unsafe { gpu.api.cuMemAlloc_v2(&raw mut address, size) }.map_err(|failure| {
                failure.allocating(bytes, "device memory", gpu.memory_in_words())
            })?;
        }
        let memory = PlainMemory { gpu, address, bytes, allocation: next_allocation() };
        zero(gpu, address, size as u64)?;
        Ok(memory)
    }
}

impl BackendMemory for PlainMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn host_address(&self) -> Option<*mut u8> {
        None
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self, kind: HandleKind) -> Result<(ExportedHandle, Option<OwnedFd>)> {
        handle::export(
            self.gpu,
            &Source {
                base: self.address,
                allocation_bytes: self.bytes,
                allocation: self.allocation,
                offset: 0,
                bytes: self.bytes,
                backing: Backing::Plain { legacy_ipc: self.gpu.abilities.legacy_ipc },
            },
            kind,
        )
    }
}

impl Drop for PlainMemory {
    fn drop(&mut self) {
        let (gpu, address) = (self.gpu, self.address);
        mscclrs_log::debug!(
            MEMORY,
            bytes = self.bytes,
            address = format_args!("{address:#x}"),
            "memory is freed"
        );
        release::later(gpu, move || {
            let Ok(_entered) = gpu.context.enter_relaxed() else { return };
            // SAFETY: the owner is gone. The call waits for all work on the device.
            let _: std::result::Result<(), Failure> = unsafe { gpu.api.cuMemFree_v2(address) };
        });
    }
}

struct ShareableMemory {
    gpu: &'static Gpu,
    mapped: Mapped,
    bytes: u64,
    allocation: u64,
}

impl ShareableMemory {
    fn alloc(gpu: &'static Gpu, bytes: u64) -> Result<ShareableMemory> {
        let types = gpu.shareable();
        let unit = vmm::granularity(gpu, types)?;
        let padded = bytes.checked_next_multiple_of(unit).ok_or_else(|| Error::OutOfMemory {
            bytes,
            kind: "shareable device memory",
            why: gpu.memory_in_words(),
        })?;
        let physical = Physical::create(gpu, padded, types)?;
        let mapped = Mapped::map(gpu, physical, padded)?;
        zero(gpu, mapped.address, padded)?;
        Ok(ShareableMemory { gpu, mapped, bytes, allocation: next_allocation() })
    }
}

impl BackendMemory for ShareableMemory {
    fn address(&self) -> u64 {
        self.mapped.address
    }

    fn host_address(&self) -> Option<*mut u8> {
        None
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self, kind: HandleKind) -> Result<(ExportedHandle, Option<OwnedFd>)> {
        handle::export(
            self.gpu,
            &Source {
                base: self.mapped.address,
                allocation_bytes: self.mapped.bytes,
                allocation: self.allocation,
                offset: 0,
                bytes: self.bytes,
                backing: Backing::Virtual(&self.mapped.physical),
            },
            kind,
        )
    }
}

/// Memory that somebody else allocated and keeps alive. Of virtual memory it holds a reference.
struct AdoptedMemory {
    gpu: &'static Gpu,
    address: u64,
    bytes: u64,
    base: u64,
    allocation_bytes: u64,
    allocation: u64,
    origin: Origin,
}

enum Origin {
    Host,
    Plain { legacy_ipc: bool },
    Virtual(Physical),
}

fn attribute(gpu: &Gpu, attribute: Attribute, address: u64) -> Option<u64> {
    let mut value = 0u64;
    // SAFETY: each attribute asked for is a number of at most 8 bytes.
    let asked =
        unsafe { gpu.api.cuPointerGetAttribute((&raw mut value).cast(), attribute, address) };
    asked.ok().map(|()| value)
}

/// Managed memory and memory of a pool are not.
fn is_legacy_ipc_capable(gpu: &Gpu, address: u64) -> bool {
    let asked = Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    gpu.abilities.legacy_ipc && attribute(gpu, asked, address).is_none_or(|capable| capable != 0)
}

/// The allocation (or mapping) that holds an address: where it begins and how long it is. The context
/// of the memory's device is current.
pub(super) fn address_range(gpu: &Gpu, address: u64) -> Result<(u64, u64)> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: writes two numbers, or fails for an address that is no allocation's.
    unsafe { gpu.api.cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) }?;
    Ok((base, bytes as u64))
}

pub(super) fn adopt(gpu: &'static Gpu, address: u64, bytes: u64) -> Result<Box<dyn BackendMemory>> {
    let refused = |allowed: String| Error::Invalid {
        what: "memory",
        value: format!("{bytes} bytes at {address:#x}"),
        allowed,
    };
    let end = address
        .checked_add(bytes)
        .ok_or_else(|| refused("the range may not pass the end of the address space".into()))?;
    let _entered = gpu.context.enter_relaxed()?;
    let Some(kind) = attribute(gpu, Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) else {
        return Err(refused("CUDA must know it: allocate it with CUDA or pin it".into()));
    };
    let mut memory = AdoptedMemory {
        gpu,
        address,
        bytes,
        base: address,
        allocation_bytes: bytes,
        allocation: next_allocation(),
        origin: Origin::Host,
    };
    if kind == ON_HOST as u64 {
        return Ok(Box::new(memory));
    }
    let device = attribute(gpu, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    if let Some(device) = device.map(|device| device as u32 as i32)
        && device >= 0
        && device as u32 != gpu.ordinal
    {
        return Err(refused(format!(
            "it lies on cuda:{device}, and cuda:{} was asked",
            gpu.ordinal
        )));
    }
    (memory.base, memory.allocation_bytes) = address_range(gpu, address)?;
    let allocation_end = memory.base.saturating_add(memory.allocation_bytes);
    memory.origin = match Physical::at(gpu, address)? {
        Some(physical) => {
            let ends = [memory.base, end.max(address + 1) - 1, allocation_end - 1];
            for place in ends {
                if !Physical::at(gpu, place)?.is_some_and(|found| found.is(&physical)) {
                    return Err(Error::Unsupported {
                        what: "exporting this memory",
                        why: format!(
                            "the {bytes} bytes at {address:#x} lie in a range of several physical allocations; use an allocation of its own"
                        ),
                    });
                }
            }
            Origin::Virtual(physical)
        }
        None if end > allocation_end => {
            return Err(refused(format!(
                "the allocation ends {} bytes after its beginning at {:#x}",
                memory.allocation_bytes, memory.base
            )));
        }
        None => {
            // The driver never gives the id of such an allocation to another one, so that importers
            // may keep their mapping of it. Of virtual memory it does not promise that.
            let id = attribute(gpu, Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
            memory.allocation = id.filter(|id| *id != 0).unwrap_or(memory.allocation);
            Origin::Plain { legacy_ipc: is_legacy_ipc_capable(gpu, address) }
        }
    };
    Ok(Box::new(memory))
}

impl BackendMemory for AdoptedMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn host_address(&self) -> Option<*mut u8> {
        match self.origin {
            Origin::Host => Some(self.address as *mut u8),
            _ => None,
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self, kind: HandleKind) -> Result<(ExportedHandle, Option<OwnedFd>)> {
        handle::export(
            self.gpu,
            &Source {
                base: self.base,
                allocation_bytes: self.allocation_bytes,
                allocation: self.allocation,
                offset: self.address - self.base,
                bytes: self.bytes,
                backing: match &self.origin {
                    Origin::Host => Backing::Host,
                    Origin::Plain { legacy_ipc } => Backing::Plain { legacy_ipc: *legacy_ipc },
                    Origin::Virtual(physical) => Backing::Virtual(physical),
                },
            },
            kind,
        )
    }
}

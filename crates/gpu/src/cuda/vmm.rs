//! Virtual memory: physical allocations that other processes can import, and their mappings.
//!
//! Invariant: a [`Physical`] is one reference to an allocation and gives exactly that one back; a
//! [`Mapped`] is one reserved range with one allocation mapped to it from its beginning. The driver
//! frees the memory when the last reference and the last mapping anywhere are gone, in any order.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType,
};

use crate::cuda::device::Gpu;
use crate::cuda::library::{Failure, code};
use crate::cuda::release;
use crate::{Error, HandleKind, Result};

const POSIX_FD: u32 = 1;
const FABRIC: u32 = 8;
const PINNED: u32 = 1;
const ON_DEVICE: u32 = 1;
pub(super) const FABRIC_BYTES: usize = 64;

/// The driver's `CUmemAllocationProp`, with numbers where the bindings have enums: the driver may
/// write values that they do not list.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: c_int,
    windows: *mut c_void,
    compression: u8,
    direct_rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

const _: () = {
    assert!(size_of::<Properties>() == size_of::<CUmemAllocationProp>());
    assert!(
        offset_of!(Properties, handle_types)
            == offset_of!(CUmemAllocationProp, requestedHandleTypes)
    );
    assert!(offset_of!(Properties, location_kind) == offset_of!(CUmemAllocationProp, location));
    assert!(
        offset_of!(Properties, windows) == offset_of!(CUmemAllocationProp, win32HandleMetaData)
    );
    assert!(offset_of!(Properties, compression) == offset_of!(CUmemAllocationProp, allocFlags));
};

impl Properties {
    fn on(gpu: &Gpu, types: HandleTypes) -> Properties {
        Properties {
            kind: PINNED,
            handle_types: types.bits(),
            location_kind: ON_DEVICE,
            location: gpu.device,
            windows: std::ptr::null_mut(),
            compression: 0,
            direct_rdma: gpu.abilities.rdma_of_virtual_memory.into(),
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// The forms in which an allocation can be exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HandleTypes {
    pub(super) posix: bool,
    pub(super) fabric: bool,
}

impl HandleTypes {
    fn bits(self) -> u32 {
        (if self.posix { POSIX_FD } else { 0 }) | (if self.fabric { FABRIC } else { 0 })
    }

    fn from_bits(bits: u32) -> HandleTypes {
        HandleTypes { posix: bits & POSIX_FD != 0, fabric: bits & FABRIC != 0 }
    }

    /// Most preferred first.
    pub(super) fn kinds(self) -> Vec<HandleKind> {
        let mut kinds = Vec::new();
        if self.fabric {
            kinds.push(HandleKind::Fabric);
        }
        if self.posix {
            kinds.push(HandleKind::PosixFd);
        }
        kinds
    }
}

/// What works on this device. That fabric handles really do needs a trial: the device may be able to
/// and the process not be in an IMEX domain.
pub(super) fn probe(gpu: &'static Gpu) -> HandleTypes {
    if !gpu.abilities.virtual_memory {
        return HandleTypes::default();
    }
    let plain = HandleTypes { posix: gpu.abilities.posix_handles, fabric: false };
    if !gpu.abilities.fabric_handles {
        refused(gpu, &"the device has none");
        return plain;
    }
    match try_fabric(gpu) {
        Ok(()) => HandleTypes { fabric: true, ..plain },
        Err(error) => {
            refused(gpu, &error);
            plain
        }
    }
}

fn refused(gpu: &Gpu, why: &dyn std::fmt::Display) {
    mscclrs_log::debug!(
        GPU, device = gpu.ordinal, handle = ?HandleKind::Fabric, %why,
        "a kind of handle does not work here"
    );
}

/// Exports a little memory as a fabric handle, as memory that is exported as a descriptor too where
/// the device can.
pub(super) fn try_fabric(gpu: &'static Gpu) -> Result<()> {
    let types = HandleTypes { posix: gpu.abilities.posix_handles, fabric: true };
    let memory = Physical::create(gpu, granularity(gpu, types)?, types)?;
    memory.export_fabric().map(|_| ())
}

/// The unit in which memory of this kind is best allocated.
pub(super) fn granularity(gpu: &'static Gpu, types: HandleTypes) -> Result<u64> {
    let _entered = gpu.context.enter_relaxed()?;
    let properties = Properties::on(gpu, types);
    let mut bytes = 0;
    let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: the properties have the driver's layout.
    unsafe {
        gpu.api.cuMemGetAllocationGranularity(
            &raw mut bytes,
            (&raw const properties).cast(),
            option,
        )
    }?;
    Ok(bytes as u64)
}

/// A reference to a physical allocation.
pub(super) struct Physical {
    gpu: &'static Gpu,
    handle: CUmemGenericAllocationHandle,
    pub(super) types: HandleTypes,
}

impl Physical {
    /// Allocates; `bytes` is a multiple of the granularity.
    pub(super) fn create(gpu: &'static Gpu, bytes: u64, types: HandleTypes) -> Result<Physical> {
        let _entered = gpu.context.enter_relaxed()?;
        let properties = Properties::on(gpu, types);
        let mut handle = 0;
        // SAFETY: the properties have the driver's layout.
        unsafe {
            gpu.api.cuMemCreate(&raw mut handle, bytes as usize, (&raw const properties).cast(), 0)
        }
        .map_err(|failure| {
            failure.allocating(bytes, "shareable device memory", gpu.memory_in_words())
        })?;
        Ok(Physical { gpu, handle, types })
    }

    /// The allocation that is mapped at an address of this process; `None` if that is not virtual
    /// memory.
    pub(super) fn at(gpu: &'static Gpu, address: u64) -> Result<Option<Physical>> {
        let _entered = gpu.context.enter_relaxed()?;
        let mut handle = 0;
        // SAFETY: fails for an address at which no allocation is mapped.
        let found =
            unsafe { gpu.api.cuMemRetainAllocationHandle(&raw mut handle, address as *mut c_void) };
        if found.is_err() {
            return Ok(None);
        }
        let mut physical = Physical { gpu, handle, types: HandleTypes::default() };
        let mut properties = Properties::on(gpu, HandleTypes::default());
        // SAFETY: the reference is ours, and the properties have the driver's layout.
        let asked = unsafe {
            gpu.api.cuMemGetAllocationPropertiesFromHandle((&raw mut properties).cast(), handle)
        };
        if asked.is_ok() {
            physical.types = HandleTypes::from_bits(properties.handle_types);
        }
        Ok(Some(physical))
    }

    /// Whether both are the same allocation.
    pub(super) fn is(&self, other: &Physical) -> bool {
        self.handle == other.handle
    }

    pub(super) fn export_fd(&self) -> Result<OwnedFd> {
        let _entered = self.gpu.context.enter_relaxed()?;
        let mut fd: c_int = -1;
        // SAFETY: the reference is ours; writes an int for this type.
        unsafe {
            self.gpu.api.cuMemExportToShareableHandle(
                (&raw mut fd).cast(),
                self.handle,
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                0,
            )
        }?;
        // SAFETY: the driver made the descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| Error::System { call: "fcntl(FD_CLOEXEC)", source: error.into() })?;
        Ok(fd)
    }

    pub(super) fn export_fabric(&self) -> Result<[u8; FABRIC_BYTES]> {
        let _entered = self.gpu.context.enter_relaxed()?;
        let mut bytes = [0u8; FABRIC_BYTES];
        // SAFETY: the reference is ours; writes 64 bytes for this type.
        unsafe {
            self.gpu.api.cuMemExportToShareableHandle(
                (&raw mut bytes).cast(),
                self.handle,
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC,
                0,
            )
        }?;
        Ok(bytes)
    }

    /// From a descriptor, which is closed.
    pub(super) fn import_fd(gpu: &'static Gpu, fd: OwnedFd) -> Result<Physical> {
        let _entered = gpu.context.enter_relaxed()?;
        let mut handle = 0;
        // SAFETY: for this type the descriptor itself is passed in the pointer's place; the driver
        // keeps its own reference to what it names.
        unsafe {
            gpu.api.cuMemImportFromShareableHandle(
                &raw mut handle,
                fd.as_raw_fd() as usize as *mut c_void,
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            )
        }?;
        Ok(Physical { gpu, handle, types: HandleTypes::default() })
    }

    pub(super) fn import_fabric(gpu: &'static Gpu, mut bytes: [u8; 64]) -> Result<Physical> {
        let _entered = gpu.context.enter_relaxed()?;
        let mut handle = 0;
        // SAFETY: reads 64 bytes for this type; the driver checks them.
        unsafe {
            gpu.api.cuMemImportFromShareableHandle(
                &raw mut handle,
                (&raw mut bytes).cast(),
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC,
            )
        }?;
        Ok(Physical { gpu, handle, types: HandleTypes::default() })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let Ok(_entered) = self.gpu.context.enter_relaxed() else { return };
        // SAFETY: the reference is ours, and a mapping holds one of its own.
        let _: std::result::Result<(), Failure> = unsafe { self.gpu.api.cuMemRelease(self.handle) };
    }
}

/// An allocation mapped for the kernels of one device.
pub(super) struct Mapped {
    gpu: &'static Gpu,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) physical: Arc<Physical>,
}

impl Mapped {
    /// Maps the whole allocation, `bytes` long, for reading and writing by `gpu`. The allocation may
    /// lie on another device that it can reach.
    pub(super) fn map(gpu: &'static Gpu, physical: Physical, bytes: u64) -> Result<Mapped> {
        let size = usize::try_from(bytes).map_err(|_| Error::Invalid {
            what: "allocation",
            value: format!("{bytes} bytes"),
            allowed: "at most what an address can count".into(),
        })?;
        let unit = granularity(gpu, HandleTypes::default())? as usize;
        let _entered = gpu.context.enter_relaxed()?;
        let mut address = 0;
        // SAFETY: reserves addresses that nobody uses.
        unsafe { gpu.api.cuMemAddressReserve(&raw mut address, size, unit, 0, 0) }?;
        // SAFETY: the range is reserved above and the reference is ours.
        if let Err(failure) = unsafe { gpu.api.cuMemMap(address, size, 0, physical.handle, 0) } {
            // SAFETY: nothing is mapped to the range.
            let _ = unsafe { gpu.api.cuMemAddressFree(address, size) };
            return Err(if failure.code == code::INVALID_VALUE {
                Error::Invalid {
                    what: "allocation",
                    value: format!("{bytes} bytes"),
                    allowed: "the handle's own size, as its exporter knows it".into(),
                }
            } else {
                failure.into()
            });
        }
        let mapped = Mapped { gpu, address, bytes, physical: Arc::new(physical) };
        let access = CUmemAccessDesc {
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: gpu.device,
            },
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is the one mapped above.
        unsafe { gpu.api.cuMemSetAccess(address, size, &raw const access, 1) }?;
        Ok(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let (gpu, address, size) = (self.gpu, self.address, self.bytes as usize);
        mscclrs_log::debug!(
            MEMORY,
            bytes = self.bytes,
            address = format_args!("{address:#x}"),
            "memory is unmapped"
        );
        // The reference goes with the mapping: whichever is last frees the memory.
        let physical = self.physical.clone();
        release::later(gpu, move || {
            let _physical = physical;
            let Ok(_entered) = gpu.context.enter_relaxed() else { return };
            // SAFETY: the range is exactly what `map` mapped, and nobody has its address any more.
            let unmapped = unsafe { gpu.api.cuMemUnmap(address, size) };
            if unmapped.is_ok() {
                // SAFETY: as above, and nothing is mapped to it now.
                let _ = unsafe { gpu.api.cuMemAddressFree(address, size) };
            }
        });
    }
}

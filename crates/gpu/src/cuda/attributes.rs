//! What a GPU is, by what the driver says of it without a context.

use std::ffi::{CStr, c_int};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUuuid};

use crate::cuda::library::Api;
use crate::{Limits, Result};

/// What a device can do besides its limits.
pub(super) struct Abilities {
    pub(super) virtual_memory: bool,
    pub(super) posix_handles: bool,
    pub(super) fabric_handles: bool,
    pub(super) rdma_of_virtual_memory: bool,
    pub(super) legacy_ipc: bool,
}

/// The device of a number.
pub(super) fn device_of(api: &Api, ordinal: u32) -> Result<CUdevice> {
    let mut device: CUdevice = 0;
    // SAFETY: writes a device, or fails.
    unsafe { api.cuDeviceGet(&raw mut device, ordinal as c_int) }?;
    Ok(device)
}

pub(super) fn uuid_of(api: &Api, device: CUdevice) -> Result<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: writes 16 bytes; of a MIG instance, the instance's own.
    unsafe { api.cuDeviceGetUuid_v2(&raw mut uuid, device) }?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

pub(super) fn name_of(api: &Api, device: CUdevice) -> Result<String> {
    let mut name = [0; 256];
    // SAFETY: writes a NUL-terminated text of at most the length given.
    unsafe { api.cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int - 1, device) }?;
    // SAFETY: the last byte was left zero.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// Where the device is on its PCI bus, as the driver writes it: `0000:3B:00.0`.
pub(super) fn pci_of(api: &Api, device: CUdevice) -> Result<String> {
    let mut text = [0; 32];
    // SAFETY: writes a NUL-terminated text of at most the length given.
    unsafe { api.cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int - 1, device) }?;
    // SAFETY: the last byte was left zero.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

/// Bytes of the device's memory.
pub(super) fn memory_of(api: &Api, device: CUdevice) -> Result<u64> {
    let mut bytes = 0;
    // SAFETY: writes a number.
    unsafe { api.cuDeviceTotalMem_v2(&raw mut bytes, device) }?;
    Ok(bytes as u64)
}

/// Whether kernels of a device can reach memory of the other one.
pub(super) fn can_access(api: &Api, device: CUdevice, peer: CUdevice) -> Result<bool> {
    let mut can: c_int = 0;
    // SAFETY: writes a number; both devices are ones that cuDeviceGet gave.
    unsafe { api.cuDeviceCanAccessPeer(&raw mut can, device, peer) }?;
    Ok(can != 0)
}

fn attribute(api: &Api, device: CUdevice, attribute: Attribute) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: writes a number.
    unsafe { api.cuDeviceGetAttribute(&raw mut value, attribute, device) }?;
    Ok(u32::try_from(value).unwrap_or(0))
}

pub(super) fn limits_of(api: &Api, device: CUdevice) -> Result<Limits> {
    let attribute = |name| attribute(api, device, name);
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Limits {
        sm: 10 * major + minor,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        threads_per_multiprocessor: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
        )?,
        threads_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        warp: attribute(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        shared_bytes_per_block: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
    })
}

pub(super) fn abilities_of(api: &Api, device: CUdevice) -> Abilities {
    // An older driver does not know the newest abilities; then it does not have them.
    let can = |ability| attribute(api, device, ability).is_ok_and(|value| value != 0);
    Abilities {
        virtual_memory: can(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED),
        posix_handles: can(
            Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ),
        fabric_handles: can(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
        rdma_of_virtual_memory: can(
            Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        ),
        legacy_ipc: can(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
    }
}

//! All GPUs of this host as the driver sees them. No context is made, so no GPU's memory is taken.

use std::ffi::c_int;

use crate::cuda::attributes::{
    can_access, device_of, limits_of, memory_of, name_of, pci_of, uuid_of,
};
use crate::cuda::device;
use crate::cuda::library::api;
use crate::{Limits, Result};

/// What the driver says of all GPUs.
pub(crate) struct Survey {
    /// The newest version of CUDA that the driver speaks, as it codes it: 13000 is 13.0.
    pub(crate) cuda_version: u32,
    pub(crate) gpus: Vec<Found>,
}

/// What the driver says of one GPU.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) limits: Limits,
    pub(crate) memory_bytes: u64,
    /// Where it is on its PCI bus, as the driver writes it.
    pub(crate) pci: Option<String>,
    /// For each GPU, whether this one reaches its memory; itself too.
    pub(crate) reaches: Vec<bool>,
}

/// Asks the driver; an error says why there are no GPUs.
pub(crate) fn survey() -> Result<Survey> {
    let count = device::count()?;
    let api = api()?;
    let mut version: c_int = 0;
    // SAFETY: writes a number.
    unsafe { api.cuDriverGetVersion(&raw mut version) }?;
    let devices: Vec<_> =
        (0..count).map(|ordinal| device_of(api, ordinal)).collect::<Result<_>>()?;
    let found = |(ordinal, &device)| -> Result<Found> {
        let reaches = |(other, &peer)| {
            // The driver says of a GPU that it does not reach itself as a peer.
            other == ordinal || can_access(api, device, peer).unwrap_or(false)
        };
        Ok(Found {
            name: name_of(api, device)?,
            uuid: uuid_of(api, device)?,
            limits: limits_of(api, device)?,
            memory_bytes: memory_of(api, device)?,
            pci: pci_of(api, device).ok(),
            reaches: devices.iter().enumerate().map(reaches).collect(),
        })
    };
    let gpus = devices.iter().enumerate().map(found).collect::<Result<_>>()?;
    Ok(Survey { cuda_version: u32::try_from(version).unwrap_or(0), gpus })
}

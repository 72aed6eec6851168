//! Fuzz targets: handles of memory on both back ends, and addresses on the PCI bus. In tests and
//! under `cfg(fuzzing)` only.

use std::os::fd::OwnedFd;

use mscclrs_fuzz::Target;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::topology::PciAddress;
use crate::{BackendKind, Device, ExportedHandle, HandleKind, cuda};

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "memory_handle", run: memory_handle, seeds: handle_seeds },
    Target { name: "memory_handle_json", run: handle_json, seeds: json_seeds },
    Target { name: "pci_address", run: pci_address, seeds: pci_seeds },
];

/// The largest descriptor that is made here.
const MOST_BYTES: u64 = 1 << 20;
/// Flags of an input: a descriptor comes with the handle; it is sealed; it has another size; the handle is
/// of the device that imports it.
const COMES: u8 = 1;
const SEALED: u8 = 2;
const OTHER_SIZE: u8 = 4;
const OURS: u8 = 8;
/// Flags, kind, allocation, bytes of it, offset, bytes.
const HEAD: usize = 2 + 4 * 8;

/// A handle and what may come with it, as it is given to `import`.
fn memory_handle(input: &[u8]) -> bool {
    let Some((head, payload)) = input.split_first_chunk::<HEAD>() else { return false };
    let kinds = [HandleKind::Fabric, HandleKind::PosixFd, HandleKind::RuntimeIpc];
    let (words, _) = head[2..].as_chunks();
    let number = |at: usize| u64::from_le_bytes(words[at]);
    let handle = ExportedHandle {
        kind: kinds[usize::from(head[1]) % 3],
        device_uuid: [1; 16],
        allocation: number(0),
        allocation_bytes: number(1),
        offset: number(2),
        bytes: number(3),
        payload: payload.to_vec(),
    };
    check(handle, head[0])
}

/// The same, from the form that serde gives a handle; the flags come first.
fn handle_json(input: &[u8]) -> bool {
    let Some((&flags, text)) = input.split_first() else { return false };
    let Ok(handle) = serde_json::from_slice::<ExportedHandle>(text) else { return false };
    let again = serde_json::to_vec(&handle).and_then(|text| serde_json::from_slice(&text));
    assert_eq!(again.ok().as_ref(), Some(&handle));
    check(handle, flags)
}

/// Whether one of the back ends takes it.
fn check(mut handle: ExportedHandle, flags: u8) -> bool {
    let on_cuda = cuda::is_well_formed(&handle);
    let Ok(device) = Device::open(BackendKind::Cpu, 0) else { return on_cuda };
    let bytes =
        handle.allocation_bytes.saturating_add(u64::from(flags & OTHER_SIZE)).min(MOST_BYTES);
    let fd = if flags & COMES == 0 { None } else { descriptor(bytes, flags & SEALED != 0).ok() };
    let (comes, is_whole) = (fd.is_some(), bytes == handle.allocation_bytes);
    if flags & OURS != 0 {
        handle.device_uuid = device.uuid();
    }
    let Ok(mapping) = device.import(&handle, fd) else { return on_cuda };
    assert_eq!(handle.device_uuid, device.uuid());
    assert!(comes && is_whole && flags & SEALED != 0 && handle.kind == HandleKind::PosixFd);
    assert_eq!(mapping.bytes(), handle.bytes);
    let (first, last) = (mapping.address(), mapping.address() + mapping.bytes() - 1);
    for at in [first, last] {
        // SAFETY: `import` promises that the range is mapped as long as the mapping lives; were it
        // not, this target would have found that.
        assert_eq!(unsafe { (at as usize as *const u8).read_volatile() }, 0);
    }
    true
}

fn descriptor(bytes: u64, sealed: bool) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("mscclrs-fuzz", flags)?;
    rustix::fs::ftruncate(&fd, bytes)?;
    if sealed {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    }
    Ok(fd)
}

fn handle_seeds() -> Vec<Vec<u8>> {
    let seed = |flags: u8, kind: u8, native: usize| {
        let numbers = [9u64, 8192, 4096, 4096].map(u64::to_le_bytes).concat();
        [&[flags, kind][..], &numbers, &vec![7; native]].concat()
    };
    vec![
        seed(COMES | SEALED | OURS, 1, 0),
        seed(0, 0, 20 + 64),
        seed(0, 1, 20),
        seed(0, 2, 20 + 64),
    ]
}

fn json_seeds() -> Vec<Vec<u8>> {
    let seed = |flags: u8, kind, payload: &[u8]| {
        let handle = ExportedHandle {
            kind,
            device_uuid: [3; 16],
            allocation: 1,
            allocation_bytes: 8192,
            offset: 0,
            bytes: 100,
            payload: payload.to_vec(),
        };
        [&[flags], &serde_json::to_vec(&handle).unwrap_or_default()[..]].concat()
    };
    vec![
        seed(COMES | SEALED | OURS, HandleKind::PosixFd, &[]),
        seed(0, HandleKind::PosixFd, &[7; 20]),
        seed(0, HandleKind::RuntimeIpc, &[7; 84]),
    ]
}

fn pci_address(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let Ok(address) = text.parse::<PciAddress>() else { return false };
    assert_eq!(address.to_string().parse::<PciAddress>().ok(), Some(address));
    true
}

fn pci_seeds() -> Vec<Vec<u8>> {
    ["0000:3b:00.0", "00018000:01:1f.7", "0:3B:0.0"].map(|text| text.as_bytes().to_vec()).to_vec()
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_hold_for_their_corpora_and_what_is_close_to_them() {
        mscclrs_fuzz::walk(super::TARGETS);
    }
}

//! How memory is given to another process.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::backend::BackendMapping;
use crate::capture::Parked;
use crate::{Buffer, Device, Result};

/// The form in which memory is given to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HandleKind {
    /// 64 bytes that any process of the NVLink domain can import, over hosts too.
    Fabric,
    /// A file descriptor, passed over a Unix socket to a process of the same user on the same host.
    PosixFd,
    /// CUDA's legacy handle of 64 bytes, for plain allocations on one host.
    RuntimeIpc,
}

/// A handle to memory, as it travels between processes. Parsed, not trusted: importing checks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedHandle {
    /// Its form.
    pub kind: HandleKind,
    /// The device that the memory lies on.
    pub device_uuid: [u8; 16],
    /// Names the allocation within the exporting process, for import caches.
    pub allocation: u64,
    /// Bytes of the whole allocation.
    pub allocation_bytes: u64,
    /// Where the exported range begins in it.
    pub offset: u64,
    /// Bytes of the exported range.
    pub bytes: u64,
    /// The back end's own bytes.
    pub payload: Vec<u8>,
}

/// What an export gives: the handle, and the descriptor for kinds that need one.
#[derive(Debug)]
pub struct SharedDescriptor {
    /// What travels as bytes.
    pub handle: ExportedHandle,
    /// What travels over a Unix socket.
    pub fd: Option<OwnedFd>,
}

impl Buffer {
    /// Exports the buffer in one form; the result holds what it exports until it is dropped.
    pub fn export(&self, kind: HandleKind) -> Result<SharedDescriptor> {
        let (handle, fd) = self.memory().export(kind)?;
        Ok(SharedDescriptor { handle, fd })
    }
}

/// A peer's memory mapped here; unmapped after it was dropped, as a [`Buffer`] is freed.
pub struct Mapping {
    inner: Parked<Box<dyn BackendMapping>>,
}

impl Mapping {
    /// Address of the exported range, for kernels of the importing device.
    pub fn address(&self) -> u64 {
        self.inner.address()
    }

    /// Bytes of the exported range.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapping({:#x}, {} bytes)", self.address(), self.bytes())
    }
}

impl Device {
    /// Maps a peer's memory. `fd` is the descriptor of a [`HandleKind::PosixFd`]. May wait for the
    /// device, as [`Device::alloc`] may.
    pub fn import(&self, handle: &ExportedHandle, fd: Option<OwnedFd>) -> Result<Mapping> {
        let mapping = self.backend().import(handle, fd)?;
        Ok(Mapping { inner: Parked::new(self.kind(), mapping) })
    }
}

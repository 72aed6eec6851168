//! Memory that kernels reach.

use std::sync::Arc;

use crate::backend::BackendMemory;
use crate::capture::Parked;
use crate::{Device, Result, Stream};

/// The kind of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Host memory that kernels and the host read and write; pinned.
    Host,
    /// What a framework's plain allocation gives (CUDA: cuMemAlloc).
    Plain,
    /// Device memory that other processes can map (CUDA: virtual memory with exportable handles).
    Shareable,
}

/// An allocation, freed some time after the last clone was dropped: when what streams had to do with it
/// by then is done, no graph that used it by calls of this type is left, and neither is one whose
/// capture was open at that time. Dropping never waits.
///
/// A graph that uses it by address alone, in a kernel's arguments, has to be told to keep it:
/// [`Stream::retain`].
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<Parked<Box<dyn BackendMemory>>>,
    device: Device,
}

impl Buffer {
    pub(crate) fn new(device: Device, memory: Box<dyn BackendMemory>) -> Self {
        Buffer { inner: Arc::new(Parked::new(device.kind(), memory)), device }
    }

    pub(crate) fn memory(&self) -> &dyn BackendMemory {
        &***self.inner
    }

    /// The device it was allocated on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Address for kernels.
    pub fn address(&self) -> u64 {
        self.inner.address()
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    /// Address for the host: for [`MemoryKind::Host`] and on the CPU device.
    pub fn host_address(&self) -> Option<*mut u8> {
        self.inner.host_address()
    }

    /// Copies `data` to byte `offset`, in the stream's order. `data` may be reused on return.
    pub fn write(&self, stream: &Stream, offset: u64, data: &[u8]) -> Result<()> {
        self.check("write", offset, data.len() as u64)?;
        self.keep(stream)?;
        stream.inner.upload(self.address() + offset, data)
    }

    /// Copies from byte `offset` to `data`, in the stream's order; blocks until it is there.
    pub fn read(&self, stream: &Stream, offset: u64, data: &mut [u8]) -> Result<()> {
        self.check("read", offset, data.len() as u64)?;
        stream.inner.download(data, self.address() + offset)
    }

    /// Sets every byte, in the stream's order; does not block.
    pub fn fill(&self, stream: &Stream, byte: u8) -> Result<()> {
        self.keep(stream)?;
        stream.inner.fill(self.address(), byte, self.bytes())
    }

    /// A graph that writes to the buffer keeps it.
    fn keep(&self, stream: &Stream) -> Result<()> {
        if stream.is_capturing()? {
            stream.retain(Arc::new(self.clone()))?;
        }
        Ok(())
    }

    fn check(&self, what: &'static str, offset: u64, bytes: u64) -> Result<()> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes()) {
            return Ok(());
        }
        Err(crate::Error::Invalid {
            what,
            value: format!("{bytes} bytes at {offset}"),
            allowed: format!("the buffer has {} bytes", self.bytes()),
        })
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:#x}, {} bytes)", self.address(), self.bytes())
    }
}

//! What a back end does. The public types are thin owners of these objects; a back end never shows.
//!
//! Addresses are u64: for CUDA a device address, for the CPU device an address in this process.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mscclrs_device::Kernel;

use crate::{BackendKind, ExportedHandle, Grid, HandleKind, Limits, MemoryKind, Result};

/// One device of a back end. Shared by everything made on it.
pub(crate) trait BackendDevice: Send + Sync {
    fn kind(&self) -> BackendKind;
    fn ordinal(&self) -> u32;
    fn name(&self) -> String;
    /// 16 bytes that name this device among all processes of the host.
    fn uuid(&self) -> [u8; 16];
    fn limits(&self) -> &Limits;
    /// Free and total bytes of device memory.
    fn memory(&self) -> Result<(u64, u64)>;
    /// Whether this device can map the memory of the device with that uuid, on the same host.
    fn can_reach(&self, uuid: &[u8; 16]) -> bool;
    /// Handle kinds that memory of this kind can be exported as, most preferred first.
    fn handle_kinds(&self, memory: MemoryKind) -> Vec<HandleKind>;
    /// An error that says why no memory here can be exported as this kind, if so.
    fn require_handle(&self, kind: HandleKind) -> Result<()>;
    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Box<dyn BackendMemory>>;
    /// Finds the allocation that holds a foreign address (a framework's tensor) so that it can be
    /// exported. Does not own it.
    fn adopt(&self, address: u64, bytes: u64) -> Result<Box<dyn BackendMemory>>;
    /// Maps a peer's memory; `fd` is given for kinds that travel as descriptors.
    fn import(
        &self,
        handle: &ExportedHandle,
        fd: Option<OwnedFd>,
    ) -> Result<Box<dyn BackendMapping>>;
    /// Releases what was dropped. May wait for the device.
    fn reclaim(&self) {}
    fn create_stream(&self) -> Result<Arc<dyn BackendStream>>;
    /// Uses a stream that somebody else owns (CUDA: a CUstream as a number).
    fn wrap_stream(&self, raw: u64) -> Result<Arc<dyn BackendStream>>;
    fn create_event(&self, timing: bool) -> Result<Arc<dyn BackendEvent>>;
    /// Loads the kernel's module if it is not loaded, and finds the entry. May wait for the device.
    fn function(&self, kernel: &'static Kernel) -> Result<Arc<dyn BackendFunction>>;
    /// A host word (pinned, device-visible) is written by the host this way.
    fn synchronize(&self) -> Result<()>;
    /// What running kernels wait for, as text for an error, where the back end can tell.
    fn waiting_report(&self) -> Option<String> {
        None
    }
}

/// An allocation, or an adopted one.
pub(crate) trait BackendMemory: Send + Sync {
    /// Address for kernels.
    fn address(&self) -> u64;
    /// Address for the host, where the host can reach the memory.
    fn host_address(&self) -> Option<*mut u8>;
    fn bytes(&self) -> u64;
    fn export(&self, kind: HandleKind) -> Result<(ExportedHandle, Option<OwnedFd>)>;
}

/// A peer's memory mapped here; unmaps when dropped.
pub(crate) trait BackendMapping: Send + Sync {
    fn address(&self) -> u64;
    fn bytes(&self) -> u64;
}

/// An entry of a loaded module.
pub(crate) trait BackendFunction: Send + Sync {
    fn kernel(&self) -> &'static Kernel;
    /// Blocks of this shape that are resident at once on the whole device.
    fn resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32>;
    fn as_any(&self) -> &dyn Any;
}

/// A queue of work, executed in order. Nothing here blocks unless it says so.
pub(crate) trait BackendStream: Send + Sync {
    /// Enqueues a launch; `args` is copied.
    fn launch(&self, function: &dyn BackendFunction, grid: Grid, args: &[u8]) -> Result<()>;
    /// Copies between any two addresses that the device reaches, host memory included; pageable host
    /// memory is staged, and the call then blocks until it may be reused.
    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<()>;
    fn upload(&self, to: u64, from: &[u8]) -> Result<()>;
    /// Blocks until `to` is filled.
    fn download(&self, to: &mut [u8], from: u64) -> Result<()>;
    fn fill(&self, to: u64, byte: u8, bytes: u64) -> Result<()>;
    fn record(&self, event: &dyn BackendEvent) -> Result<()>;
    fn wait(&self, event: &dyn BackendEvent) -> Result<()>;
    /// Whether all work is done.
    fn is_idle(&self) -> Result<bool>;
    /// Blocks until all work is done, at most `limit`; false when the limit passed.
    fn synchronize(&self, limit: Option<Duration>) -> Result<bool>;
    /// Runs `work` on a thread of the back end when the stream reaches it. It makes no device calls.
    fn call_host(&self, work: Box<dyn FnOnce() + Send>) -> Result<()>;
    fn begin_capture(&self) -> Result<()>;
    fn end_capture(&self) -> Result<Box<dyn BackendGraph>>;
    /// A broken capture is one too.
    fn is_capturing(&self) -> Result<bool>;
    /// The number of the capture that the stream is in; an error for a broken one.
    fn capture_id(&self) -> Result<Option<u64>>;
    /// While capturing: keeps `held` alive as long as the graph and what is made from it.
    fn retain(&self, held: Arc<dyn Any + Send + Sync>) -> Result<()>;
    fn raw(&self) -> u64;
    fn as_any(&self) -> &dyn Any;
}

pub(crate) trait BackendEvent: Send + Sync {
    fn is_done(&self) -> Result<bool>;
    fn synchronize(&self) -> Result<()>;
    /// Microseconds from `earlier` to this event; both with timing, both done.
    fn elapsed_us(&self, earlier: &dyn BackendEvent) -> Result<f64>;
    fn as_any(&self) -> &dyn Any;
}

pub(crate) trait BackendGraph: Send + Sync {
    fn instantiate(&self) -> Result<Box<dyn BackendGraphExec>>;
}

pub(crate) trait BackendGraphExec: Send + Sync {
    fn launch(&self, stream: &dyn BackendStream) -> Result<()>;
}

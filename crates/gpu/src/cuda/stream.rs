//! Streams.
//!
//! Invariant: everything is enqueued on the stream itself, never on the legacy stream. Memory that
//! the host could move or reuse is not given to the driver: data travels through a pinned staging
//! buffer of the stream, which is used by one call at a time and is idle when the call returns. A
//! stream made here has its staging buffer from the start: pinning memory can wait for the device, and
//! a kernel that spins for another rank's upload would then spin for ever.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::sys::{CUgraph, CUpointer_attribute, CUstream, CUstreamCaptureMode};

use crate::backend::{BackendEvent, BackendFunction, BackendGraph, BackendStream};
use crate::cuda::device::{Gpu, lock};
use crate::cuda::event::{Backoff, CudaEvent};
use crate::cuda::graph::{self, CudaGraph};
use crate::cuda::library::{Api, Failure, code};
use crate::cuda::memory::PinnedMemory;
use crate::cuda::module::CudaFunction;
use crate::cuda::release::GATE;
use crate::{Error, Grid, Result};

const NON_BLOCKING: u32 = 1;
const STAGING: u64 = 1 << 20;
/// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
const CAPTURE_NONE: c_int = 0;
const CAPTURE_ACTIVE: c_int = 1;

type Call = Box<dyn FnOnce() + Send>;
/// A host call that was enqueued; empty once it has run.
type CallSlot = Arc<Mutex<Option<Call>>>;

pub(super) struct CudaStream {
    gpu: &'static Gpu,
    raw: CUstream,
    owned: bool,
    staging: Mutex<Option<PinnedMemory>>,
    calls: Mutex<Vec<CallSlot>>,
}

// SAFETY: a stream is a handle that the driver lets any thread use.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

/// Whether the stream is idle. A context is current, and the stream is not being captured.
pub(super) fn query(api: &Api, stream: CUstream) -> std::result::Result<bool, Failure> {
    // SAFETY: the caller's stream lives.
    match unsafe { api.cuStreamQuery(stream) } {
        Ok(()) => Ok(true),
        Err(failure) if failure.code == code::NOT_READY => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Whether the stream is being captured, a broken capture included. A context is current.
pub(super) fn is_capturing(api: &Api, stream: CUstream) -> std::result::Result<bool, Failure> {
    let mut status = CAPTURE_NONE;
    // SAFETY: the caller's stream lives; the status is an int in the driver's ABI.
    unsafe { api.cuStreamIsCapturing(stream, (&raw mut status).cast()) }?;
    Ok(status != CAPTURE_NONE)
}

fn bytes_of(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::Invalid {
        what: "bytes",
        value: bytes.to_string(),
        allowed: "at most what an address can count".into(),
    })
}

/// An error for the handles that mean a default stream instead of naming one.
fn refuse_default(raw: u64) -> Result<()> {
    let (name, why) = match raw {
        0 | LEGACY => (
            "the legacy default stream",
            "its work waits for all other streams of the device and they for it, so a kernel that waits \
             for another rank could hold up what that rank waits for",
        ),
        PER_THREAD => (
            "the per-thread default stream",
            "it means another stream on each thread, and streams are used from more threads than one",
        ),
        _ => return Ok(()),
    };
    Err(Error::Invalid {
        what: "stream",
        value: format!("{raw:#x}, {name},"),
        allowed: format!(
            "{why}: give a stream of its own (cuStreamCreate, cudaStreamCreateWithFlags, \
             torch.cuda.Stream, or Device::create_stream)"
        ),
    })
}

unsafe extern "C" fn run_call(slot: *mut c_void) {
    // SAFETY: `call_host` made the pointer from an `Arc`, and the driver calls once an enqueued call.
    let slot = unsafe { Arc::from_raw(slot.cast::<Mutex<Option<Call>>>()) };
    let call = lock(&slot).take();
    if let Some(call) = call {
        // A panic must not unwind into the driver; the hook has reported it.
        let _ = catch_unwind(AssertUnwindSafe(call));
    }
}

impl CudaStream {
    /// A new stream that does not wait for the legacy stream.
    pub(super) fn create(gpu: &'static Gpu) -> Result<CudaStream> {
        let _entered = gpu.context.enter_relaxed()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device's context is current.
        unsafe { gpu.api.cuStreamCreate(&raw mut raw, NON_BLOCKING) }?;
        gpu.register(raw);
        let stream = CudaStream::new(gpu, raw, true);
        stream.with_staging(|_| Ok(()))?;
        Ok(stream)
    }

    /// A stream that somebody else owns.
    pub(super) fn wrap(gpu: &'static Gpu, raw: u64) -> Result<CudaStream> {
        refuse_default(raw)?;
        let _entered = gpu.context.enter_relaxed()?;
        let stream = bytes_of(raw)? as CUstream;
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller of `wrap_stream` gives a live stream. Where the driver cannot tell the
        // context (streams of green contexts), the first launch does.
        let asked = unsafe { gpu.api.cuStreamGetCtx(stream, &raw mut context) };
        if asked.is_ok() && context != gpu.context.raw {
            return Err(Error::Invalid {
                what: "stream",
                value: format!("{raw:#x}"),
                allowed: format!("a stream of the primary context of cuda:{}", gpu.ordinal),
            });
        }
        gpu.register_wrapped(stream);
        Ok(CudaStream::new(gpu, stream, false))
    }

    fn new(gpu: &'static Gpu, raw: CUstream, owned: bool) -> CudaStream {
        CudaStream { gpu, raw, owned, staging: Mutex::default(), calls: Mutex::default() }
    }

    /// The stream behind the trait object; an error if it is not one of `gpu`.
    pub(super) fn of<'a>(
        stream: &'a dyn BackendStream,
        gpu: &'static Gpu,
    ) -> Result<&'a CudaStream> {
        match stream.as_any().downcast_ref::<CudaStream>() {
            Some(stream) if stream.gpu.ordinal == gpu.ordinal => Ok(stream),
            _ => Err(Error::Invalid {
                what: "stream",
                value: "a stream of another device".into(),
                allowed: format!("a stream of cuda:{}", gpu.ordinal),
            }),
        }
    }

    pub(super) fn raw_stream(&self) -> CUstream {
        self.raw
    }

    /// An error if the stream is being captured: the driver would break the capture instead.
    fn refuse_capture(&self, what: &'static str) -> Result<()> {
        if is_capturing(self.gpu.api, self.raw)? {
            return Err(Error::Unsupported {
                what,
                why: "the stream is being captured into a graph; end the capture first".into(),
            });
        }
        Ok(())
    }

    /// Whether the driver will run nothing of this stream any more.
    fn is_broken(&self) -> bool {
        let Ok(_entered) = self.gpu.context.enter_relaxed() else { return false };
        let _order = self.gpu.capture_order();
        matches!(is_capturing(self.gpu.api, self.raw), Ok(false))
            && query(self.gpu.api, self.raw).is_err()
    }

    /// The capture that the stream is in: its number, and the graph that it is captured into.
    fn under_capture(&self) -> Result<Option<(u64, CUgraph)>> {
        let mut status = CAPTURE_NONE;
        let (mut id, mut graph) = (0, std::ptr::null_mut());
        // SAFETY: the stream lives; outputs that are not wanted may be null.
        unsafe {
            self.gpu.api.cuStreamGetCaptureInfo_v2(
                self.raw,
                (&raw mut status).cast(),
                &raw mut id,
                &raw mut graph,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        }?;
        match status {
            CAPTURE_NONE => Ok(None),
            CAPTURE_ACTIVE if !graph.is_null() => Ok(Some((id, graph))),
            _ => {
                let code = code::STREAM_CAPTURE_INVALIDATED;
                Err(Failure { call: "cuStreamGetCaptureInfo", code }.into())
            }
        }
    }

    /// Enqueues a copy between memory that the driver knows.
    fn copy_pinned(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller of `copy` gives mapped ranges, or they are our own staging.
        unsafe { self.gpu.api.cuMemcpyAsync(to, from, bytes, self.raw) }?;
        Ok(())
    }

    /// Blocks until the stream is idle. A context is current and capture mode relaxed.
    fn drain(&self) -> Result<()> {
        // SAFETY: the stream lives.
        unsafe { self.gpu.api.cuStreamSynchronize(self.raw) }?;
        Ok(())
    }

    /// Whether the driver knows the memory at this address: device memory, pinned or managed.
    fn is_known(&self, address: u64) -> bool {
        let mut kind: c_int = 0;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        // SAFETY: writes an int, or fails for memory that the driver does not know.
        let asked = unsafe {
            self.gpu.api.cuPointerGetAttribute((&raw mut kind).cast(), attribute, address)
        };
        asked.is_ok() && kind != 0
    }

    /// Runs `step` with the staging buffer; a stream of somebody else's gets one when it first needs it.
    /// Buffers go from stream to stream and are never freed: freeing pinned memory can wait for kernels
    /// too.
    fn with_staging<T>(&self, step: impl FnOnce(&PinnedMemory) -> Result<T>) -> Result<T> {
        let mut staging = lock(&self.staging);
        match &*staging {
            Some(memory) => step(memory),
            None => step(staging.insert(self.gpu.take_staging(STAGING)?)),
        }
    }

    /// An upload that is part of a graph: the graph keeps a pinned copy of the data.
    fn capture_upload(&self, graph: CUgraph, to: u64, from: &[u8]) -> Result<()> {
        let memory = Arc::new(PinnedMemory::alloc(self.gpu, from.len() as u64)?);
        // SAFETY: the memory is ours alone and as long as the data.
        unsafe { memory.pointer().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        graph::retain(self.gpu, graph, memory.clone())?;
        self.copy_pinned(to, memory.device_address(), from.len())
    }
}

impl BackendStream for CudaStream {
    fn launch(&self, function: &dyn BackendFunction, grid: Grid, args: &[u8]) -> Result<()> {
        let function = CudaFunction::of(function, self.gpu)?;
        function.check(grid, args.len())?;
        let mut parameters = [args.as_ptr().cast_mut().cast::<c_void>()];
        let _entered = self.gpu.context.enter()?;
        let _pass = GATE.pass();
        // SAFETY: function and stream belong to the current context; the kernel takes one parameter
        // of `args.len()` bytes (its layout word was compared when it was loaded), which the driver
        // copies before it returns.
        unsafe {
            self.gpu.api.cuLaunchKernel(
                function.raw,
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                grid.shared_bytes,
                self.raw,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }?;
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        let bytes = bytes_of(bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let entered = self.gpu.context.enter_relaxed()?;
        match (self.is_known(to), self.is_known(from)) {
            (true, true) => self.copy_pinned(to, from, bytes),
            (true, false) => {
                drop(entered);
                // SAFETY: the caller of `copy` gives a readable range; the driver does not know it,
                // so it is the host's.
                self.upload(to, unsafe { std::slice::from_raw_parts(from as *const u8, bytes) })
            }
            (false, true) => {
                drop(entered);
                // SAFETY: as above, and writable.
                let to = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, bytes) };
                self.download(to, from)
            }
            (false, false) => {
                drop(entered);
                self.synchronize(None)?;
                // SAFETY: both ranges are the host's and may overlap.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                Ok(())
            }
        }
    }

    /// Blocks until the data is there, unless the stream is being captured.
    fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let _entered = self.gpu.context.enter_relaxed()?;
        if let Some((_, graph)) = self.under_capture()? {
            return self.capture_upload(graph, to, from);
        }
        self.with_staging(|staging| {
            let mut to = to;
            for part in from.chunks(staging.size()) {
                // SAFETY: the staging buffer is idle, ours while its lock is held, and as long.
                unsafe { staging.pointer().copy_from_nonoverlapping(part.as_ptr(), part.len()) };
                self.copy_pinned(to, staging.device_address(), part.len())?;
                self.drain()?;
                to += part.len() as u64;
            }
            Ok(())
        })
    }

    fn download(&self, to: &mut [u8], from: u64) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let _entered = self.gpu.context.enter_relaxed()?;
        self.refuse_capture("reading device memory")?;
        self.with_staging(|staging| {
            let mut from = from;
            for part in to.chunks_mut(staging.size()) {
                self.copy_pinned(staging.device_address(), from, part.len())?;
                self.drain()?;
                // SAFETY: the copy to the staging buffer is done, and it is as long as the part.
                unsafe {
                    part.as_mut_ptr().copy_from_nonoverlapping(staging.pointer(), part.len())
                };
                from += part.len() as u64;
            }
            Ok(())
        })
    }

    fn fill(&self, to: u64, byte: u8, bytes: u64) -> Result<()> {
        let bytes = bytes_of(bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.gpu.context.enter()?;
        // SAFETY: the range is a buffer's.
        unsafe { self.gpu.api.cuMemsetD8Async(to, byte, bytes, self.raw) }?;
        Ok(())
    }

    fn record(&self, event: &dyn BackendEvent) -> Result<()> {
        let event = CudaEvent::of(event)?;
        if event.gpu.ordinal != self.gpu.ordinal {
            return Err(Error::Invalid {
                what: "event",
                value: format!("an event of cuda:{}", event.gpu.ordinal),
                allowed: format!("a stream of cuda:{} records its own", self.gpu.ordinal),
            });
        }
        let _entered = self.gpu.context.enter()?;
        // SAFETY: event and stream live and belong to the current context.
        unsafe { self.gpu.api.cuEventRecord(event.raw, self.raw) }?;
        Ok(())
    }

    fn wait(&self, event: &dyn BackendEvent) -> Result<()> {
        let event = CudaEvent::of(event)?;
        let _entered = self.gpu.context.enter()?;
        // An event of a capture draws this stream into it.
        let _order = self.gpu.capture_order();
        // SAFETY: event and stream live; they may be of different devices.
        unsafe { self.gpu.api.cuStreamWaitEvent(self.raw, event.raw, 0) }?;
        Ok(())
    }

    fn is_idle(&self) -> Result<bool> {
        let _entered = self.gpu.context.enter_relaxed()?;
        self.refuse_capture("asking whether a stream is idle")?;
        Ok(query(self.gpu.api, self.raw)?)
    }

    fn synchronize(&self, limit: Option<Duration>) -> Result<bool> {
        let _entered = self.gpu.context.enter_relaxed()?;
        self.refuse_capture("waiting for a stream")?;
        if limit.is_none() {
            self.drain()?;
            return Ok(true);
        }
        let backoff = Backoff::new();
        loop {
            if query(self.gpu.api, self.raw)? {
                return Ok(true);
            }
            if !backoff.pause(limit) {
                return Ok(false);
            }
        }
    }

    fn call_host(&self, work: Call) -> Result<()> {
        let _entered = self.gpu.context.enter()?;
        // A replay would run it again, and it can run once only.
        self.refuse_capture("a host call in a graph")?;
        let slot: CallSlot = Arc::new(Mutex::new(Some(work)));
        let mut calls = lock(&self.calls);
        calls.retain(|call| Arc::strong_count(call) > 1);
        let data = Arc::into_raw(slot.clone()).cast_mut();
        // SAFETY: the function takes exactly this pointer.
        let enqueued =
            unsafe { self.gpu.api.cuLaunchHostFunc(self.raw, Some(run_call), data.cast()) };
        if let Err(failure) = enqueued {
            // SAFETY: nothing was enqueued, so the reference made above is still ours.
            drop(unsafe { Arc::from_raw(data) });
            return Err(failure.into());
        }
        calls.push(slot);
        Ok(())
    }

    fn begin_capture(&self) -> Result<()> {
        let _entered = self.gpu.context.enter_relaxed()?;
        let _order = self.gpu.capture_order();
        // Relaxed: this capture forbids nobody anything, on this thread or another.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives.
        unsafe { self.gpu.api.cuStreamBeginCapture_v2(self.raw, mode) }?;
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn BackendGraph>> {
        let _entered = self.gpu.context.enter_relaxed()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives; the capture ends whether or not it was broken.
        unsafe { self.gpu.api.cuStreamEndCapture(self.raw, &raw mut graph) }?;
        Ok(Box::new(CudaGraph::own(self.gpu, graph)))
    }

    fn is_capturing(&self) -> Result<bool> {
        let _entered = self.gpu.context.enter()?;
        Ok(is_capturing(self.gpu.api, self.raw)?)
    }

    fn capture_id(&self) -> Result<Option<u64>> {
        let _entered = self.gpu.context.enter()?;
        Ok(self.under_capture()?.map(|(id, _)| id))
    }

    fn retain(&self, held: Arc<dyn Any + Send + Sync>) -> Result<()> {
        let _entered = self.gpu.context.enter_relaxed()?;
        match self.under_capture()? {
            Some((_, graph)) => graph::retain(self.gpu, graph, held),
            None => Err(Error::Invalid {
                what: "retain",
                value: "a stream that is not being captured".into(),
                allowed: "retain what a graph needs while its capture lasts".into(),
            }),
        }
    }

    fn raw(&self) -> u64 {
        self.raw as u64
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let calls = std::mem::take(&mut *lock(&self.calls));
        if !calls.is_empty() && self.is_broken() {
            for slot in calls {
                let never_run = lock(&slot).take();
                drop(never_run);
            }
        }
        // Idle: every call that used it drained the stream.
        if let Some(staging) = lock(&self.staging).take() {
            self.gpu.give_staging(staging);
        }
        if self.owned {
            self.gpu.retire(self.raw);
        } else {
            self.gpu.let_go(self.raw);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_streams_are_refused_with_what_to_give_instead() {
        for (raw, name) in [(0, "legacy"), (1, "legacy"), (2, "per-thread")] {
            let error = refuse_default(raw).unwrap_err();
            assert!(matches!(error, Error::Invalid { what: "stream", .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(&format!("{raw:#x}, the {name} default stream")), "{text}");
            assert!(text.contains("cudaStreamCreateWithFlags"), "{text}");
        }
        refuse_default(3).unwrap();
        refuse_default(0x5555_0000_1230).unwrap();
    }
}

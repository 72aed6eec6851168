//! Queues of device work.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use mscclrs_device::KernelArgs;

use crate::backend::{BackendGraph, BackendStream};
use crate::capture::OpenCapture;
use crate::{Device, Error, Event, Function, Graph, Result};

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Lanes a block.
    pub threads: u32,
    /// Shared memory a block, in bytes.
    pub shared_bytes: u32,
}

impl Grid {
    /// Without shared memory.
    pub const fn new(blocks: u32, threads: u32) -> Grid {
        Grid { blocks, threads, shared_bytes: 0 }
    }
}

/// A queue of work on one device, executed in order. Clones are the same queue.
#[derive(Clone)]
pub struct Stream {
    pub(crate) inner: Arc<dyn BackendStream>,
    device: Device,
}

impl Stream {
    pub(crate) fn new(device: Device, inner: Arc<dyn BackendStream>) -> Self {
        Stream { inner, device }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Enqueues a launch; does not block. The arguments are copied.
    ///
    /// # Safety
    /// The arguments hold addresses that the kernel may use as it does until it has run; in a graph, as
    /// long as the graph or what is made of it is used.
    pub unsafe fn launch<A: KernelArgs>(
        &self,
        function: &Function,
        grid: Grid,
        args: &A,
    ) -> Result<()> {
        let kernel = function.kernel();
        if A::ABI != kernel.abi || size_of::<A>() != kernel.args_bytes {
            return Err(Error::KernelLayout {
                kernel: kernel.name,
                module: kernel.module.name,
                expected: A::ABI,
                found: kernel.abi,
            });
        }
        // SAFETY: `KernelArgs` is plain data; padding is copied and never read.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(args).cast::<u8>(), size_of::<A>())
        };
        self.inner.launch(&*function.inner, grid, bytes)
    }

    /// Enqueues a copy between two addresses that the device reaches; does not block.
    ///
    /// # Safety
    /// Both ranges are mapped and may be read and written until the copy has run.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        self.inner.copy(to, from, bytes)
    }

    /// Records a point; does not block.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.inner.record(&*event.inner)
    }

    /// Makes what is enqueued from now on wait for the event; does not block.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.inner.wait(&*event.inner)
    }

    /// Whether all work is done.
    pub fn is_idle(&self) -> Result<bool> {
        self.inner.is_idle()
    }

    /// Blocks until all work is done.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.synchronize(None).map(|_| ())
    }

    /// Blocks until all work is done, at most `limit`; false when the limit passed.
    pub fn synchronize_within(&self, limit: Duration) -> Result<bool> {
        self.inner.synchronize(Some(limit))
    }

    /// Runs `work` on a thread of the back end when the stream gets there. It makes no device calls
    /// and does not block. It runs once, so it cannot be captured.
    pub fn call_host(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.inner.call_host(Box::new(work))
    }

    /// Captures what `work` enqueues on this stream into a graph, instead of running it.
    ///
    /// The graph keeps what `work` writes to by calls of [`Buffer`](crate::Buffer), what it was told to
    /// [retain](Stream::retain), and memory that is dropped while the capture lasts. What else captured
    /// launches use has to live as long as the graph, and what is made of it, are used.
    pub fn capture<E: From<Error>>(
        &self,
        work: impl FnOnce(&Stream) -> std::result::Result<(), E>,
    ) -> std::result::Result<Graph, E> {
        self.inner.begin_capture()?;
        // Ended in any case, a panic too, so that a failed one does not stick to the stream.
        let mut capturing = Capturing { stream: Some(self) };
        let open = OpenCapture::begin(self.device.kind());
        self.inner.retain(open.parking())?;
        let done = work(self);
        drop(open);
        let graph = capturing.end();
        done?;
        Ok(Graph { inner: graph? })
    }

    /// Whether what is enqueued now is captured into a graph.
    pub fn is_capturing(&self) -> Result<bool> {
        self.inner.is_capturing()
    }

    /// The capture that the stream is in: a number that no other capture of this process ever has. All
    /// streams that joined a capture have the same. An error if the capture was broken by a call that
    /// captures forbid.
    pub fn capture_id(&self) -> Result<Option<u64>> {
        self.inner.capture_id()
    }

    /// While the stream is capturing: keeps `held` alive as long as the graph and what is made of it.
    pub fn retain(&self, held: Arc<dyn Any + Send + Sync>) -> Result<()> {
        self.inner.retain(held)
    }

    /// The back end's own handle (CUDA: the CUstream).
    pub fn raw(&self) -> u64 {
        self.inner.raw()
    }
}

/// Ends a capture.
struct Capturing<'a> {
    stream: Option<&'a Stream>,
}

impl Capturing<'_> {
    fn end(&mut self) -> Result<Box<dyn BackendGraph>> {
        match self.stream.take() {
            Some(stream) => stream.inner.end_capture(),
            None => unreachable!("a capture is ended once"),
        }
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        if self.stream.is_some() {
            // What it came to is of no interest any more.
            let _ = self.end();
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:#x} on {:?})", self.raw(), self.device)
    }
}

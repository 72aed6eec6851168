//! The streams of a device, and points in them.
//!
//! Invariant: a stream is asked whether it is idle only if it was made here and is not being captured,
//! under a lock that keeps a capture of ours from beginning meanwhile: asking about a captured stream
//! breaks the capture. Streams of somebody else are never asked; events are recorded in them, which
//! breaks nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use cudarc::driver::sys::CUstream;

use crate::Error;
use crate::backend::BackendEvent;
use crate::cuda::device::{Gpu, OPENED, lock};
use crate::cuda::event::CudaEvent;
use crate::cuda::library::code;
use crate::cuda::release::Due;
use crate::cuda::stream;

/// Streams that work was, or may be, enqueued on here.
#[derive(Default)]
pub(super) struct Streams {
    /// Made here and in use.
    live: Vec<RawStream>,
    /// Made here, without an owner any more, but with work to do.
    draining: Vec<RawStream>,
    /// Of somebody else, and in use here.
    wrapped: Vec<RawStream>,
    /// Behind what streams of somebody else had when they were let go of.
    let_go: Vec<Arc<CudaEvent>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RawStream(pub(super) CUstream);

// SAFETY: a stream is a handle that the driver lets any thread use.
unsafe impl Send for RawStream {}

/// Whether this process ever used a stream of somebody else.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Whether no kernel of ours runs on any device. What a device frees may wait for others too. The gate
/// is closed, so none can begin.
pub(super) fn all_are_quiet() -> bool {
    // There is work that cannot be looked at.
    if FOREIGN.load(Ordering::SeqCst) {
        return false;
    }
    let gpus = lock(&OPENED).clone();
    gpus.into_iter().all(Gpu::is_quiet)
}

impl Gpu {
    /// Held while a stream may begin to be captured, so that nobody asks whether it is idle then:
    /// asking about a captured stream breaks the capture.
    pub(super) fn capture_order(&self) -> MutexGuard<'_, Streams> {
        lock(&self.streams)
    }

    pub(super) fn register(&self, stream: CUstream) {
        lock(&self.streams).live.push(RawStream(stream));
    }

    /// A stream of somebody else is in use here.
    pub(super) fn register_wrapped(&self, stream: CUstream) {
        FOREIGN.store(true, Ordering::SeqCst);
        lock(&self.streams).wrapped.push(RawStream(stream));
    }

    /// A stream of somebody else, which may be gone after this call, is not in use here any more. It may
    /// have been wrapped more than once.
    pub(super) fn let_go(&'static self, stream: CUstream) {
        let mut streams = lock(&self.streams);
        if let Some(at) = streams.wrapped.iter().position(|wrapped| wrapped.0 == stream) {
            streams.wrapped.swap_remove(at);
        }
        if let Ok(_entered) = self.context.enter_relaxed()
            && let Some(point) = self.point(stream)
        {
            streams.let_go.retain(|point| matches!(point.is_done(), Ok(false)));
            streams.let_go.push(point);
        }
    }

    /// Takes a stream whose owner is gone; destroys it now or when its work is done.
    pub(super) fn retire(&self, stream: CUstream) {
        let mut streams = lock(&self.streams);
        streams.live.retain(|live| live.0 != stream);
        streams.draining.push(RawStream(stream));
        if let Ok(_entered) = self.context.enter_relaxed() {
            self.drain(&mut streams);
        }
    }

    fn drain(&self, streams: &mut Streams) {
        streams.draining.retain(|stream| {
            let busy = matches!(stream::is_capturing(self.api, stream.0), Ok(false))
                && stream::query(self.api, stream.0) == Ok(false);
            if !busy {
                // SAFETY: the stream's owner is gone. Destroying it does not wait, and there is
                // nothing to do about a failure.
                let _ = unsafe { self.api.cuStreamDestroy_v2(stream.0) };
            }
            busy
        });
    }

    /// An event behind what the stream has, which is not being captured; none if it cannot be recorded:
    /// then the context is broken and runs nothing. The device's context is current, and the lock of the
    /// streams is held.
    fn point(&'static self, stream: CUstream) -> Option<Arc<CudaEvent>> {
        if !matches!(stream::is_capturing(self.api, stream), Ok(false)) {
            return None;
        }
        let event = CudaEvent::new(self, false).ok()?;
        // SAFETY: event and stream live and belong to the current context.
        let recorded = unsafe { self.api.cuEventRecord(event.raw, stream) };
        recorded.is_ok().then(|| Arc::new(event))
    }

    /// Events behind all work that streams made here have by now; none if they are idle.
    pub(super) fn busy_points(&'static self) -> Vec<Arc<CudaEvent>> {
        let Ok(_entered) = self.context.enter_relaxed() else { return Vec::new() };
        let mut streams = lock(&self.streams);
        self.drain(&mut streams);
        let made_here = streams.live.iter().chain(&streams.draining);
        let busy = made_here.filter(|stream| {
            // The lock keeps the stream from being captured between the two questions.
            matches!(stream::is_capturing(self.api, stream.0), Ok(false))
                && stream::query(self.api, stream.0) == Ok(false)
        });
        busy.filter_map(|stream| self.point(stream.0)).collect()
    }

    /// What has to pass before anything that is dropped now may be released.
    pub(super) fn points(&'static self) -> Points {
        let mut points = Points { gpu: self, events: self.busy_points(), again: false };
        let Ok(_entered) = self.context.enter_relaxed() else { return points };
        let streams = lock(&self.streams);
        let all = streams.live.iter().chain(&streams.draining).chain(&streams.wrapped);
        points.again = all
            .map(|stream| stream::is_capturing(self.api, stream.0))
            .any(|capturing| capturing == Ok(true));
        // Asking whether a stream of somebody else is idle would break a capture that its owner begins
        // at this moment; recording an event does not.
        points.events.extend(streams.wrapped.iter().filter_map(|stream| self.point(stream.0)));
        points.events.extend(streams.let_go.iter().cloned());
        points
    }

    /// Whether streams made here are idle, so that no kernel of ours runs. One that is being captured
    /// cannot be asked.
    fn is_quiet(&'static self) -> bool {
        let Ok(_entered) = self.context.enter_relaxed() else { return true };
        let mut streams = lock(&self.streams);
        self.drain(&mut streams);
        streams.live.iter().chain(&streams.draining).all(|stream| {
            // A stream that reports an error runs nothing any more.
            matches!(stream::is_capturing(self.api, stream.0), Ok(false) | Err(_))
                && stream::query(self.api, stream.0) != Ok(false)
        })
    }
}

/// Points in the streams of a device.
pub(super) struct Points {
    gpu: &'static Gpu,
    events: Vec<Arc<CudaEvent>>,
    /// A stream was being captured, and what it had before could not be seen: ask again.
    again: bool,
}

impl Due for Points {
    fn is_due(&mut self) -> bool {
        // A point whose state cannot be asked for is passed: its context is broken or gone. Not so one
        // that a capture took, which its owner began at that very moment.
        self.events.retain(|event| match event.is_done() {
            Ok(done) => !done,
            Err(Error::Call { code, .. }) if code == i64::from(code::CAPTURED_EVENT) => {
                self.again = true;
                false
            }
            Err(_) => false,
        });
        if self.again && self.events.is_empty() {
            *self = self.gpu.points();
        }
        self.events.is_empty() && !self.again
    }
}

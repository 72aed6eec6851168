//! Events: points in streams.
//!
//! Invariant: an event belongs to the device it was made on, and every query of it is legal while
//! somebody else captures.

use std::any::Any;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent;

use crate::backend::BackendEvent;
use crate::cuda::device::Gpu;
use crate::cuda::library::code;
use crate::{Error, Result};

const WITH_TIMING: u32 = 0;
const WITHOUT_TIMING: u32 = 2;

/// How a host thread waits: it spins while an answer is likely to come at once, then gives the
/// processor away.
pub(super) struct Backoff {
    begin: Instant,
}

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff { begin: Instant::now() }
    }

    /// Waits a little; `false` once `limit` has passed since the beginning.
    pub(super) fn pause(&self, limit: Option<Duration>) -> bool {
        let waited = self.begin.elapsed();
        if limit.is_some_and(|limit| waited >= limit) {
            return false;
        }
        if waited < Duration::from_micros(50) {
            std::hint::spin_loop();
        } else if waited < Duration::from_micros(500) {
            std::thread::yield_now();
        } else {
            let nap = (waited / 16).clamp(Duration::from_micros(50), Duration::from_millis(1));
            std::thread::sleep(limit.map_or(nap, |limit| nap.min(limit - waited)));
        }
        true
    }
}

pub(super) struct CudaEvent {
    pub(super) gpu: &'static Gpu,
    pub(super) raw: CUevent,
    timing: bool,
}

// SAFETY: an event is a handle that the driver lets any thread use.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    pub(super) fn new(gpu: &'static Gpu, timing: bool) -> Result<CudaEvent> {
        let _entered = gpu.context.enter_relaxed()?;
        let mut raw = std::ptr::null_mut();
        let flags = if timing { WITH_TIMING } else { WITHOUT_TIMING };
        // SAFETY: the device's context is current.
        unsafe { gpu.api.cuEventCreate(&raw mut raw, flags) }?;
        Ok(CudaEvent { gpu, raw, timing })
    }

    /// The event behind the trait object; an error if it belongs to the other back end.
    pub(super) fn of(event: &dyn BackendEvent) -> Result<&CudaEvent> {
        event.as_any().downcast_ref().ok_or_else(|| Error::Invalid {
            what: "event",
            value: "an event of the CPU device".into(),
            allowed: "a CUDA stream takes events of CUDA devices".into(),
        })
    }
}

impl BackendEvent for CudaEvent {
    fn is_done(&self) -> Result<bool> {
        let _entered = self.gpu.context.enter_relaxed()?;
        // SAFETY: the event lives.
        match unsafe { self.gpu.api.cuEventQuery(self.raw) } {
            Ok(()) => Ok(true),
            Err(failure) if failure.code == code::NOT_READY => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    fn synchronize(&self) -> Result<()> {
        let backoff = Backoff::new();
        while !self.is_done()? {
            backoff.pause(None);
        }
        Ok(())
    }

    fn elapsed_us(&self, earlier: &dyn BackendEvent) -> Result<f64> {
        let earlier = CudaEvent::of(earlier)?;
        if !(self.timing && earlier.timing) {
            return Err(Error::Invalid {
                what: "event",
                value: "an event made without timing".into(),
                allowed: "make both with create_event(true)".into(),
            });
        }
        let _entered = self.gpu.context.enter_relaxed()?;
        let mut milliseconds = 0f32;
        // SAFETY: both events live; the driver refuses events that were not recorded or are not done.
        unsafe { self.gpu.api.cuEventElapsedTime(&raw mut milliseconds, earlier.raw, self.raw) }?;
        Ok(f64::from(milliseconds) * 1000.0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let Ok(_entered) = self.gpu.context.enter_relaxed() else { return };
        // SAFETY: nobody else has the event; the driver frees it when the stream has passed it, and
        // does not wait. A failure leaves nothing to do.
        let _ = unsafe { self.gpu.api.cuEventDestroy_v2(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_with_a_limit_ends_at_the_limit() {
        let limit = Duration::from_millis(5);
        let backoff = Backoff::new();
        while backoff.pause(Some(limit)) {}
        assert!(backoff.begin.elapsed() >= limit);
    }
}

//! Contexts: every entry into this back end makes the device's context current and gives the
//! caller's back.
//!
//! Invariant: when an [`Entered`] is dropped, the thread's context stack and its capture mode are
//! what they were. The primary context is retained once a process and device and never released, so
//! that nothing which outlives its device, at exit least of all, meets a dead context.

use std::ffi::c_int;
use std::marker::PhantomData;

use cudarc::driver::sys::{CUcontext, CUdevice};

use crate::Result;
use crate::cuda::library::{Api, Failure, Outcome};

const RELAXED: c_int = 2;

/// The primary context of a device.
pub(super) struct Context {
    pub(super) api: &'static Api,
    pub(super) raw: CUcontext,
}

// SAFETY: a context is a handle that the driver lets any thread use.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context for the rest of the process.
    pub(super) fn retain(api: &'static Api, device: CUdevice) -> Result<Context> {
        let _relaxed = Relaxed::enter(api)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device is one that cuDeviceGet gave.
        unsafe { api.cuDevicePrimaryCtxRetain(&raw mut raw, device) }?;
        Ok(Context { api, raw })
    }

    /// Makes the context current.
    #[inline]
    pub(super) fn enter(&self) -> std::result::Result<Entered, Failure> {
        let mut current = std::ptr::null_mut();
        // SAFETY: writes the thread's context, or null.
        unsafe { self.api.cuCtxGetCurrent(&raw mut current) }?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: the context is retained.
            unsafe { self.api.cuCtxPushCurrent_v2(self.raw) }?;
        }
        Ok(Entered { api: self.api, pushed, relaxed: None, _thread: PhantomData })
    }

    /// Makes the context current, and calls legal that somebody's capture forbids: those that
    /// allocate, free, load or synchronise.
    pub(super) fn enter_relaxed(&self) -> std::result::Result<Entered, Failure> {
        let mut entered = self.enter()?;
        entered.relaxed = Some(Relaxed::enter(self.api)?);
        Ok(entered)
    }
}

/// The device's context is current as long as this lives.
pub(super) struct Entered {
    api: &'static Api,
    pushed: bool,
    relaxed: Option<Relaxed>,
    _thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.relaxed = None;
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed on this thread. There is nobody to tell of a failure:
            // it only comes when the driver is gone, at the end of the process.
            let _: Outcome = unsafe { self.api.cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}

/// The thread's capture mode is relaxed as long as this lives.
struct Relaxed {
    api: &'static Api,
    before: c_int,
    _thread: PhantomData<*const ()>,
}

impl Relaxed {
    fn enter(api: &'static Api) -> std::result::Result<Relaxed, Failure> {
        let mut before = RELAXED;
        // SAFETY: swaps the thread's mode, an int in the driver's ABI, with ours.
        unsafe { api.cuThreadExchangeStreamCaptureMode((&raw mut before).cast()) }?;
        Ok(Relaxed { api, before, _thread: PhantomData })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: gives the thread the mode that it had.
        let _: Outcome =
            unsafe { self.api.cuThreadExchangeStreamCaptureMode((&raw mut self.before).cast()) };
    }
}

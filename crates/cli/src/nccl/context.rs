//! NCCL works on the device whose context is current on the calling thread.
//!
//! Invariant: a [`Current`] on the stack has the device's primary context current, and restores the
//! caller's when it ends; the context is retained once a device and process.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;
use mscclrs_gpu::{BackendKind, Device};

use super::Error;

/// The device's context is current on this thread as long as this lives.
pub(super) struct Current {
    // It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

/// A primary context, retained.
#[derive(Clone, Copy)]
pub(super) struct Context(sys::CUcontext);

// SAFETY: a handle; the driver allows any thread to make a context current.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The primary context of a CUDA device, which `mscclrs-gpu` uses too.
    pub(super) fn of(device: &Device) -> Result<Context, Error> {
        static RETAINED: Mutex<Option<HashMap<u32, Context>>> = Mutex::new(None);
        if device.kind() != BackendKind::Cuda {
            return Err(Error::Invalid {
                what: "device for NCCL",
                value: format!("{device:?}"),
                allowed: "NCCL runs on CUDA devices only".into(),
            });
        }
        // SAFETY: it looks for the library and calls nothing in it.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Invalid {
                what: "CUDA's driver",
                value: "no libcuda.so.1 in the loader's path".into(),
                allowed: "NCCL needs the driver that the device was opened with".into(),
            });
        }
        let ordinal = device.ordinal();
        let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
        let retained = retained.get_or_insert_default();
        if let Some(context) = retained.get(&ordinal) {
            return Ok(*context);
        }
        let mut raw = 0;
        let mut context = std::ptr::null_mut();
        let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: the device was opened, so the driver's library is there and initialised; the calls
        // write a device and a context.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&mut raw, number))?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, raw))?;
        }
        retained.insert(ordinal, Context(context));
        Ok(Context(context))
    }

    /// Makes it current.
    pub(super) fn enter(self) -> Result<Current, Error> {
        // SAFETY: the context is retained until the process ends.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.0) })?;
        Ok(Current { _thread: PhantomData })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: pops what `enter` pushed on this thread. An error leaves nothing to be done.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

fn check(call: &'static str, code: sys::CUresult) -> Result<(), Error> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(Error::Cuda { call, code: code as u32 }),
    }
}

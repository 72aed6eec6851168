//! The driver as another library in the same process uses it.

use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream, CUstreamCaptureMode};

pub(crate) fn ok(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

pub(crate) fn current() -> CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: writes the thread's context.
    ok(unsafe { sys::cuCtxGetCurrent(&raw mut context) });
    context
}

/// The primary context of device 0, made current on this thread until dropped.
pub(crate) struct Foreign;

impl Foreign {
    pub(crate) fn enter() -> Foreign {
        let mut context = std::ptr::null_mut();
        // SAFETY: device 0 exists, the tests opened it; its context stays retained.
        unsafe {
            ok(sys::cuDevicePrimaryCtxRetain(&raw mut context, 0));
            ok(sys::cuCtxPushCurrent_v2(context));
        }
        Foreign
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: pops what `enter` pushed.
        ok(unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) });
    }
}

/// A capture as PyTorch makes it: on a stream of somebody else, in the strictest mode.
pub(crate) struct ForeignCapture {
    stream: CUstream,
}

impl ForeignCapture {
    pub(crate) fn begin() -> ForeignCapture {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the primary context is current.
        unsafe {
            ok(sys::cuStreamCreate(&raw mut stream, 1));
            ok(sys::cuStreamBeginCapture_v2(
                stream,
                CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            ));
        }
        ForeignCapture { stream }
    }

    pub(crate) fn raw(&self) -> u64 {
        self.stream as u64
    }

    /// Ends it; fails if anything broke the capture.
    pub(crate) fn end(self) {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is being captured.
        unsafe {
            ok(sys::cuStreamEndCapture(self.stream, &raw mut graph));
            ok(sys::cuGraphDestroy(graph));
            ok(sys::cuStreamDestroy_v2(self.stream));
        }
    }
}

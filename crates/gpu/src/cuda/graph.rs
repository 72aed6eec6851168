//! Graphs, and what they keep alive.
//!
//! Invariant: the driver does not guard a graph against two threads, so each is used under its lock.
//! What a captured launch needs is held by a user object of the graph: instantiated graphs and
//! replays in flight hold it too, and its last holder hands it to the release thread.

use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUgraph, CUgraphExec};

use crate::Result;
use crate::backend::{BackendGraph, BackendGraphExec, BackendStream};
use crate::cuda::device::{Gpu, lock};
use crate::cuda::library::Failure;
use crate::cuda::release::{self, GATE};
use crate::cuda::stream::CudaStream;

const NO_DESTRUCTOR_SYNC: u32 = 1;
const MOVE: u32 = 1;

type Held = Arc<dyn Any + Send + Sync>;

/// Called by the driver, on a thread of its own that may make no CUDA calls.
unsafe extern "C" fn let_go(held: *mut c_void) {
    // SAFETY: `retain` made the pointer from a box, and a user object is destroyed once.
    let held = unsafe { Box::from_raw(held.cast::<Held>()) };
    release::hand_over(*held);
}

/// Makes a graph under capture hold `held`. A context is current.
pub(super) fn retain(gpu: &'static Gpu, graph: CUgraph, held: Held) -> Result<()> {
    release::start()?;
    let data: *mut c_void = Box::into_raw(Box::new(held)).cast();
    let mut object = std::ptr::null_mut();
    // SAFETY: the callback takes exactly this pointer, and calls nothing of CUDA.
    let created = unsafe {
        gpu.api.cuUserObjectCreate(&raw mut object, data, Some(let_go), 1, NO_DESTRUCTOR_SYNC)
    };
    if let Err(failure) = created {
        // SAFETY: no user object was made, so the pointer is still ours alone.
        drop(unsafe { Box::from_raw(data.cast::<Held>()) });
        return Err(failure.into());
    }
    // SAFETY: the graph is the one that the stream is captured into, and may be added to while the
    // capture lasts; our one reference moves to it.
    let moved = unsafe { gpu.api.cuGraphRetainUserObject(graph, object, 1, MOVE) };
    if let Err(failure) = moved {
        // SAFETY: the reference did not move, so it is ours to release.
        let _ = unsafe { gpu.api.cuUserObjectRelease(object, 1) };
        return Err(failure.into());
    }
    Ok(())
}

pub(super) struct CudaGraph {
    gpu: &'static Gpu,
    raw: Mutex<CUgraph>,
}

// SAFETY: the handle is used by one thread at a time, under its lock.
unsafe impl Send for CudaGraph {}
// SAFETY: as above.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Takes a graph that a capture gave.
    pub(super) fn own(gpu: &'static Gpu, raw: CUgraph) -> CudaGraph {
        CudaGraph { gpu, raw: Mutex::new(raw) }
    }
}

impl BackendGraph for CudaGraph {
    fn instantiate(&self) -> Result<Box<dyn BackendGraphExec>> {
        let graph = lock(&self.raw);
        let _entered = self.gpu.context.enter_relaxed()?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph lives, and its lock is held.
        unsafe { self.gpu.api.cuGraphInstantiateWithFlags(&raw mut exec, *graph, 0) }?;
        Ok(Box::new(CudaGraphExec { gpu: self.gpu, raw: Mutex::new(exec) }))
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let Ok(_entered) = self.gpu.context.enter_relaxed() else { return };
        // SAFETY: nobody else has the graph; instantiated ones do not need it.
        let _: std::result::Result<(), Failure> =
            unsafe { self.gpu.api.cuGraphDestroy(*lock(&self.raw)) };
    }
}

struct CudaGraphExec {
    gpu: &'static Gpu,
    raw: Mutex<CUgraphExec>,
}

// SAFETY: the handle is used by one thread at a time, under its lock.
unsafe impl Send for CudaGraphExec {}
// SAFETY: as above.
unsafe impl Sync for CudaGraphExec {}

impl BackendGraphExec for CudaGraphExec {
    fn launch(&self, stream: &dyn BackendStream) -> Result<()> {
        let stream = CudaStream::of(stream, self.gpu)?;
        let exec = lock(&self.raw);
        let _entered = self.gpu.context.enter_relaxed()?;
        let _pass = GATE.pass();
        // SAFETY: graph and stream live and belong to the current context.
        unsafe { self.gpu.api.cuGraphLaunch(*exec, stream.raw_stream()) }?;
        Ok(())
    }
}

impl Drop for CudaGraphExec {
    fn drop(&mut self) {
        let Ok(_entered) = self.gpu.context.enter_relaxed() else { return };
        // SAFETY: nobody else has it; the driver frees one in flight when its replay is done.
        let _: std::result::Result<(), Failure> =
            unsafe { self.gpu.api.cuGraphExecDestroy(*lock(&self.raw)) };
    }
}

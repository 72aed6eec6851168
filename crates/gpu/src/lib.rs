//! Devices, memory, streams, events, graphs and shareable handles: one set of types over two back
//! ends, chosen at run time.
//!
//! `cuda` drives GPUs through libcuda, opened when first asked for; `cpu` is the CPU device, whose
//! GPU threads are fibers and whose memory other processes can map. Nothing runs on the legacy
//! stream, every call sets the device's context and restores the caller's, and all calls are legal
//! while somebody else captures a graph.

mod backend;
mod buffer;
mod capture;
mod cgroup;
mod cpu;
mod cuda;
mod device;
mod error;
mod event;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod graph;
mod handle;
mod limits;
mod report;
mod rlimits;
pub mod simulation;
mod stream;
pub mod topology;

pub use buffer::{Buffer, MemoryKind};
pub use cgroup::{GroupLimit, group_memory_limit};
pub use cpu::CpuConfig;
pub use device::{
    BackendKind, Device, Function, available_backends, default_backend, device_count,
};
pub use error::{Error, Result};
pub use event::Event;
pub use graph::{Graph, GraphExec};
pub use handle::{ExportedHandle, HandleKind, Mapping, SharedDescriptor};
pub use limits::Limits;
pub use rlimits::{descriptor_limit, limit_hint};
pub use stream::{Grid, Stream};
pub use topology::Topology;

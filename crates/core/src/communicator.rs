//! A group of ranks.

use std::sync::Arc;
use std::time::Duration;

use mscclrs_device::Guard;
use mscclrs_gpu::{Buffer, Device, Stream};

use crate::{Bootstrap, Region, Registration, Result, SymmetricBuffer};

/// A group of ranks, each with a device. Clones are the same communicator.
#[derive(Clone)]
pub struct Communicator {}

#[allow(unused_variables, missing_docs)]
impl Communicator {
    pub fn new(bootstrap: Arc<dyn Bootstrap>, device: Device) -> Result<Communicator> {
        todo!()
    }
    pub fn rank(&self) -> u32 {
        todo!()
    }
    pub fn world_size(&self) -> u32 {
        todo!()
    }
    pub fn device(&self) -> &Device {
        todo!()
    }
    pub fn bootstrap(&self) -> &dyn Bootstrap {
        todo!()
    }
    /// Seconds a device wait may take; none by default.
    pub fn set_timeout(&self, limit: Option<Duration>) {
        todo!()
    }
    /// What kernels of this communicator end their waits by; `launch` goes to the record of a wait
    /// that ended early.
    pub fn guard(&self, launch: u64) -> Guard {
        todo!()
    }
    /// An error if a rank was lost or a wait ended early; the communicator is of no use then.
    pub fn check(&self) -> Result<()> {
        todo!()
    }
    /// Blocks until the stream is done, or a rank is lost, or a wait ended early.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        todo!()
    }
    /// Makes this stream wait for what the communicator enqueued on another one before.
    pub fn order(&self, stream: &Stream) -> Result<()> {
        todo!()
    }
    /// Cuts one new allocation of scratch into regions and maps every peer's. Collective.
    pub fn create_regions(&self, bytes: &[u64]) -> Result<Vec<Region>> {
        todo!()
    }
    /// Registers memory for zero copy. Collective: every rank, same order, same size.
    pub fn register(&self, buffer: &Buffer) -> Result<Registration> {
        todo!()
    }
    /// Allocates memory that every rank can reach, and registers it. Collective.
    pub fn alloc(&self, bytes: u64) -> Result<SymmetricBuffer> {
        todo!()
    }
}

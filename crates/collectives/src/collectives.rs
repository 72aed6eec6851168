//! The collectives of a communicator.

use mscclrs_core::Communicator;
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::{Buffer, Stream};

use crate::Result;

/// An address in device memory, as a caller of a collective names it.
pub type Pointer = u64;

/// The collectives of a communicator. One thread at a time uses it.
pub struct Collectives {}

#[allow(unused_variables, missing_docs)]
impl Collectives {
    /// Prepares the algorithms. Collective.
    pub fn new(communicator: &Communicator) -> Result<Collectives> {
        todo!()
    }
    pub fn communicator(&self) -> &Communicator {
        todo!()
    }
    /// Reduces `count` elements over all ranks; every rank gets the result. Enqueues and returns.
    pub fn all_reduce(
        &self,
        input: &Buffer,
        output: &Buffer,
        count: u64,
        data_type: DataType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        todo!()
    }
    /// Gathers `count` elements of every rank into `world_size * count` of every rank.
    pub fn all_gather(
        &self,
        input: &Buffer,
        output: &Buffer,
        count: u64,
        data_type: DataType,
        stream: &Stream,
    ) -> Result<()> {
        todo!()
    }
    /// As `all_reduce`, by address.
    ///
    /// # Safety
    /// `count` elements at both addresses are mapped on the device until the stream has passed.
    pub unsafe fn all_reduce_raw(
        &self,
        input: Pointer,
        output: Pointer,
        count: u64,
        data_type: DataType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        todo!()
    }
    /// As `all_gather`, by address.
    ///
    /// # Safety
    /// As for `all_reduce_raw`.
    pub unsafe fn all_gather_raw(
        &self,
        input: Pointer,
        output: Pointer,
        count: u64,
        data_type: DataType,
        stream: &Stream,
    ) -> Result<()> {
        todo!()
    }
    /// The name of the algorithm that a call with these arguments uses.
    pub fn all_reduce_algorithm(
        &self,
        input: Pointer,
        output: Pointer,
        count: u64,
        data_type: DataType,
        op: ReduceOp,
    ) -> &'static str {
        todo!()
    }
    /// The name of the algorithm that a call with these arguments uses.
    pub fn all_gather_algorithm(
        &self,
        input: Pointer,
        output: Pointer,
        count: u64,
        data_type: DataType,
    ) -> &'static str {
        todo!()
    }
}

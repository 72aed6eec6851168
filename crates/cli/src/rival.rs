//! Other implementations of the collectives, measured beside ours by the same harness.

use anyhow::Result;
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::Stream;

/// A collective that the command measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    AllGather,
    AllReduce,
}

/// One call of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    /// Elements: of the whole vector for allreduce, of one rank's part for allgather.
    pub(crate) count: u64,
    pub(crate) data_type: DataType,
    /// Not read for allgather.
    pub(crate) op: ReduceOp,
    pub(crate) in_place: bool,
}

/// Another implementation. It has memory of its own, made with it: an input and an output of the
/// sizes asked for then, so that nothing is allocated or registered while ranks measure.
pub(crate) trait Rival {
    /// For the table and the rows, e.g. "nccl symmetric".
    fn name(&self) -> &str;
    /// What exactly it is and where it came from, for the lines above the table.
    fn origin(&self) -> String;
    /// Enqueues the call on its own memory; does not block; may be captured.
    fn enqueue(&self, call: &Call, stream: &Stream) -> Result<()>;
}

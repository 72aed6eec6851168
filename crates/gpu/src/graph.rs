//! Work captured once and replayed.

use crate::backend::{BackendGraph, BackendGraphExec};
use crate::{Result, Stream};

/// Work captured from a stream.
pub struct Graph {
    pub(crate) inner: Box<dyn BackendGraph>,
}

impl Graph {
    /// Makes it ready to be replayed.
    pub fn instantiate(&self) -> Result<GraphExec> {
        Ok(GraphExec { inner: self.inner.instantiate()? })
    }
}

/// A graph ready to be replayed.
pub struct GraphExec {
    inner: Box<dyn BackendGraphExec>,
}

impl GraphExec {
    /// Enqueues one replay; does not block. Replays run one after the other in the order of these
    /// calls, on whatever streams: for some at the same time, instantiate the graph as often.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        self.inner.launch(&*stream.inner)
    }
}

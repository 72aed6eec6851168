//! Points in streams.

use std::sync::Arc;

use crate::Result;
use crate::backend::BackendEvent;

/// A point in a stream, to wait for or to measure from.
#[derive(Clone)]
pub struct Event {
    pub(crate) inner: Arc<dyn BackendEvent>,
}

impl Event {
    /// Whether the stream has passed the point.
    pub fn is_done(&self) -> Result<bool> {
        self.inner.is_done()
    }

    /// Blocks until the stream has passed the point.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    /// Microseconds from `earlier` to this event. Both were made with timing and are done.
    pub fn elapsed_us(&self, earlier: &Event) -> Result<f64> {
        self.inner.elapsed_us(&*earlier.inner)
    }
}

//! Events.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mscclrs_sim::Point;

use super::capture::Capture;
use crate::backend::BackendEvent;
use crate::{Error, Result};

/// What the last record of an event meant.
#[derive(Clone, Default)]
pub(super) enum Recorded {
    #[default]
    Never,
    /// In a capture: the nodes that come before it.
    Captured(Arc<Capture>, Vec<u32>),
    Point(Arc<Point>),
}

pub(super) struct CpuEvent {
    timing: bool,
    recorded: Mutex<Recorded>,
}

impl CpuEvent {
    pub(super) fn new(timing: bool) -> Self {
        CpuEvent { timing, recorded: Mutex::default() }
    }

    pub(super) fn of(event: &dyn BackendEvent) -> Result<&CpuEvent> {
        event.as_any().downcast_ref().ok_or_else(|| Error::Invalid {
            what: "event",
            value: "an event of another back end".into(),
            allowed: "CPU devices take events of CPU devices".into(),
        })
    }

    pub(super) fn recorded(&self) -> Recorded {
        self.lock().clone()
    }

    pub(super) fn set_recorded(&self, recorded: Recorded) {
        *self.lock() = recorded;
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The point to ask; none if the event was never recorded.
    fn point(&self) -> Result<Option<Arc<Point>>> {
        match self.recorded() {
            Recorded::Never => Ok(None),
            Recorded::Point(point) => Ok(Some(point)),
            Recorded::Captured(..) => Err(Error::Unsupported {
                what: "asking a captured event",
                why: "it was recorded in a capture, where it only orders the graph; record it \
                      outside"
                    .into(),
            }),
        }
    }

    fn passed_at(&self) -> Result<Instant> {
        if !self.timing {
            return Err(Error::Unsupported {
                what: "measuring with this event",
                why: "it was made without timing".into(),
            });
        }
        self.point()?.and_then(|point| point.passed_at()).ok_or_else(|| Error::Invalid {
            what: "event to measure with",
            value: "one that is not done".into(),
            allowed: "record it and wait for it first".into(),
        })
    }
}

impl BackendEvent for CpuEvent {
    fn is_done(&self) -> Result<bool> {
        Ok(self.point()?.is_none_or(|point| point.is_passed()))
    }

    fn synchronize(&self) -> Result<()> {
        if let Some(point) = self.point()? {
            point.wait(None)?;
        }
        Ok(())
    }

    fn elapsed_us(&self, earlier: &dyn BackendEvent) -> Result<f64> {
        let (from, to) = (CpuEvent::of(earlier)?.passed_at()?, self.passed_at()?);
        let after = to.saturating_duration_since(from).as_secs_f64();
        // Negative if the order was the other one, as on GPUs.
        Ok(1e6 * (after - from.saturating_duration_since(to).as_secs_f64()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

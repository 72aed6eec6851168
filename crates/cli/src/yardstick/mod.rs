//! Bare two-rank kernels without any safety: what the hardware does, to compare with.

mod bare;
mod kernels;
mod method;

use anyhow::{Context, Result};
use mscclrs_core::Communicator;
use mscclrs_gpu::Stream;

pub(crate) use bare::{Bare, Copy, HOP_ROUNDS, unavailable};
pub(crate) use method::Shape;

use crate::harness::{Harness, Timing};

/// The best bare allreduce for a size, as the measure of ours.
pub(crate) struct Yardstick<'a> {
    bare: Bare,
    stream: &'a Stream,
}

impl<'a> Yardstick<'a> {
    /// For vectors of up to `bytes` bytes, where nothing is [`unavailable`]. Every rank calls it.
    pub(crate) fn new(communicator: &Communicator, bytes: u64, stream: &'a Stream) -> Result<Self> {
        Ok(Yardstick { bare: Bare::new(communicator, bytes, stream)?, stream })
    }

    /// Microseconds of the best bare allreduce of `bytes` bytes, rounded up to a multiple of 32,
    /// measured now by the schedule of `harness`. Every rank calls it.
    pub(crate) fn time_us(&mut self, bytes: u64, harness: &mut Harness<'_>) -> Result<f64> {
        let bytes = bytes.max(1).next_multiple_of(32);
        let timings = self.bare.measure(bytes, harness, self.stream)?;
        best(&timings).map(|(_, timing)| timing.time_us).with_context(|| {
            format!("no bare kernel for {bytes} bytes fits on the device beside its twin")
        })
    }
}

/// The fastest of what was measured.
pub(crate) fn best(timings: &[(Shape, Timing)]) -> Option<&(Shape, Timing)> {
    timings.iter().min_by(|a, b| a.1.time_us.total_cmp(&b.1.time_us))
}

//! The CPU device.
use std::sync::Arc;

use crate::backend::BackendDevice;
use crate::{Error, Result};

/// Limits of the CPU device.
#[derive(Clone, Debug)]
pub struct CpuConfig {}

pub(crate) fn open(ordinal: u32) -> Result<Arc<dyn BackendDevice>> {
    Err(Error::NoDevice { backend: "CPU", ordinal, why: "not built yet".into() })
}

//! NVIDIA GPUs, through libcuda opened at run time.
use std::sync::Arc;

use crate::backend::BackendDevice;
use crate::{Error, Result};

pub(crate) fn device_count() -> Result<u32> {
    Err(Error::Unsupported { what: "CUDA", why: "not built yet".into() })
}

pub(crate) fn open(ordinal: u32) -> Result<Arc<dyn BackendDevice>> {
    Err(Error::NoDevice { backend: "CUDA", ordinal, why: "not built yet".into() })
}

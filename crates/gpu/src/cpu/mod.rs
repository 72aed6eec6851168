//! The CPU device: the engine of `mscclrs-sim` behind the back end's traits.
//!
//! Memory is mapped into this process, so addresses for kernels and for the host are the same. A
//! buffer that is dropped while work is in flight is unmapped after what all queues of all devices of
//! the process had at that time: a running kernel never loses its memory. Kernels of other processes
//! reach it through mappings of their own.

mod capture;
mod config;
mod device;
mod event;
mod memory;
mod stream;

pub use config::CpuConfig;
pub(crate) use config::SHARED_BYTES;
pub(crate) use device::{CpuDevice, open};

use crate::Error;

impl From<mscclrs_sim::Stopped> for Error {
    fn from(stopped: mscclrs_sim::Stopped) -> Self {
        Error::Stopped { report: stopped.report.to_string() }
    }
}

impl From<mscclrs_sim::LaunchError> for Error {
    fn from(error: mscclrs_sim::LaunchError) -> Self {
        Error::Invalid {
            what: error.what,
            value: format!("{} for kernel {}", error.value, error.kernel),
            allowed: error.allowed,
        }
    }
}

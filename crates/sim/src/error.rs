//! What can go wrong on the CPU device.

use std::sync::Arc;

/// Work of a queue ended early: a lane panicked, or its kernels waited for each other for too long.
/// The queue takes no more work; the device and its other queues go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{report}")]
pub struct Stopped {
    /// Who stopped, and why.
    pub report: Arc<str>,
}

impl Stopped {
    pub(crate) fn new(report: impl Into<Arc<str>>) -> Self {
        Stopped { report: report.into() }
    }
}

/// A launch that the device cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of kernel {kernel}: {value} is not allowed; {allowed}")]
pub struct LaunchError {
    /// The kernel.
    pub kernel: &'static str,
    /// Which number of the launch.
    pub what: &'static str,
    /// What was given.
    pub value: u64,
    /// What is allowed.
    pub allowed: String,
}

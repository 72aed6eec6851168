//! What can go wrong with NCCL.

/// What can go wrong with NCCL.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A call of NCCL failed.
    #[error("{call} failed: {text}{detail}")]
    Call {
        call: &'static str,
        text: String,
        /// NCCL's last error, beginning with "; ", or empty.
        detail: String,
    },
    /// Ranks could not exchange what NCCL needs.
    #[error(transparent)]
    Core(#[from] mscclrs_core::Error),
    /// A call of CUDA's driver failed.
    #[error("{call} failed with CUDA error {code}")]
    Cuda { call: &'static str, code: u32 },
    /// A device call failed.
    #[error(transparent)]
    Gpu(#[from] mscclrs_gpu::Error),
    /// What was asked for is outside what is allowed.
    #[error("{what}: {value} is not allowed; {allowed}")]
    Invalid { what: &'static str, value: String, allowed: String },
    /// There is no library to open.
    #[error(
        "NCCL was not found (looked for {looked}); install it (pip install nvidia-nccl-cu13, or the libnccl2 package) or set MSCCLRS_NCCL_LIBRARY to the path of libnccl.so.2"
    )]
    NotFound { looked: String },
    /// The library is there and cannot be used.
    #[error("{path} cannot be used: {why}")]
    Unusable { path: String, why: String },
}

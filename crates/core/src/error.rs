//! What can go wrong between ranks.

/// The result of a call that involves other ranks.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device call failed.
    #[error(transparent)]
    Gpu(#[from] mscclrs_gpu::Error),
}

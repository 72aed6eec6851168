//! What a program that starts ranks looks at before it does.

use mscclrs_gpu::CpuConfig;

use crate::Result;
use crate::bootstrap::{InterfaceFilter, secret_text};
use crate::communicator::time_limit;
use crate::env::{self, from_process};
use crate::launch::address;

/// An error about an environment variable of [`env::TABLE`] that has a value which is not allowed,
/// whether it is going to be used or not. Does not block.
///
/// For programs that start ranks: each of them would find the mistake by itself, and say so.
pub fn check_environment() -> Result<()> {
    address(&from_process)?;
    env::BOOTSTRAP_TIMEOUT.seconds()?;
    CpuConfig::from_env()?;
    mscclrs_gpu::default_backend()?;
    for rank in [&env::LOCAL_RANK, &env::RANK] {
        rank.number(0..=u32::MAX)?;
    }
    for count in [&env::LOCAL_WORLD_SIZE, &env::WORLD_SIZE] {
        count.number(1..=u32::MAX)?;
    }
    secret_text()?;
    InterfaceFilter::from_environment()?;
    time_limit()?;
    Ok(())
}

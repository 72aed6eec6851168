//! What a program that starts ranks looks at before it does.

use crate::Result;
use crate::bootstrap::InterfaceFilter;
use crate::env::{self, Source};
use crate::launch::address;
use crate::logging;

/// An error about an environment variable of [`env::TABLE`] that has a value which is not allowed,
/// whether it is going to be used or not. Does not block.
///
/// For programs that start ranks: each of them would find the mistake by itself, and say so.
pub fn check_environment() -> Result<()> {
    for variable in env::TABLE {
        variable.check(Source::PROCESS)?;
    }
    // What is parsed further by who reads it.
    address(Source::PROCESS)?;
    InterfaceFilter::from_environment()?;
    logging::settings()?;
    mscclrs_gpu::CpuConfig::from_env()?;
    Ok(())
}

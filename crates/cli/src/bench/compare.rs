//! Which other implementations are measured beside ours.

use anyhow::{Result, bail};

use crate::options::CollectiveOptions;
use crate::ranks::Rank;
use crate::rival::{Collective, Rival};

/// The implementations that were asked for, ready for all sizes up to `bytes`. Collective.
pub(crate) fn rivals(
    _rank: &Rank,
    _collective: Collective,
    options: &CollectiveOptions,
    _bytes: u64,
) -> Result<Vec<Box<dyn Rival>>> {
    match options.compare {
        None => Ok(Vec::new()),
        Some(_) => bail!("--compare nccl is not built in yet"),
    }
}

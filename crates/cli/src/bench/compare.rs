//! Which other implementations are measured beside ours.

use anyhow::Result;

use crate::nccl;
use crate::options::{CollectiveOptions, Compare};
use crate::ranks::Rank;
use crate::rival::{Collective, Rival};
use crate::usage::usage;

/// The implementations that were asked for, ready for all sizes up to `bytes`. Collective.
pub(crate) fn rivals(
    rank: &Rank,
    collective: Collective,
    options: &CollectiveOptions,
    bytes: u64,
) -> Result<Vec<Box<dyn Rival>>> {
    let ranks = u64::from(rank.communicator.world_size());
    let input = match collective {
        // `bytes` is of the whole vector.
        Collective::AllGather => bytes.div_ceil(ranks),
        Collective::AllReduce => bytes,
    };
    match options.compare {
        None => Ok(Vec::new()),
        Some(Compare::Nccl) => {
            rank.agree(nccl::require().map_err(|why| usage!("--compare: {why}")))?;
            nccl::rivals(&rank.communicator, input, bytes)
        }
    }
}

//! One measured row, as JSON has it.

use serde::{Deserialize, Serialize};

use crate::rival::Collective;

/// One row: an operation at one size, in one form, by one implementation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) op: String,
    /// nccl-tests' size: the vector for allreduce, all ranks' parts together for allgather.
    pub(crate) bytes: u64,
    /// Elements: of the vector for allreduce, of one rank's part for allgather.
    pub(crate) count: u64,
    pub(crate) dtype: String,
    /// "none" where nothing is reduced.
    pub(crate) redop: String,
    pub(crate) in_place: bool,
    pub(crate) time_us: f64,
    pub(crate) spread_us: f64,
    pub(crate) algbw_gbps: f64,
    pub(crate) busbw_gbps: f64,
    /// Wrong elements over all ranks; null where nothing was checked.
    pub(crate) wrong: Option<u64>,
    /// "mscclrs", or another implementation's name.
    pub(crate) implementation: String,
    /// What ours chose; another implementation's name again.
    pub(crate) algorithm: String,
    pub(crate) ranks: u32,
    pub(crate) device: String,
    /// Operations a graph; 0 without.
    pub(crate) graph: u64,
    pub(crate) buffers: String,
    /// Time of the fastest other implementation over ours, where others were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    /// Time of the best bare allreduce of that size, out of place, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bare_us: Option<f64>,
}

impl Row {
    /// Whether it is another implementation's, measured beside ours.
    pub(crate) fn is_other(&self) -> bool {
        self.implementation != OURS
    }
}

/// How rows name this project's implementation.
pub(crate) const OURS: &str = "mscclrs";

impl Collective {
    /// As rows name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Collective::AllGather => "allgather",
            Collective::AllReduce => "allreduce",
        }
    }

    /// Bus bandwidth over algorithm bandwidth: what a ring carries on each link.
    pub(crate) fn bus_factor(self, ranks: u32) -> f64 {
        let ranks = f64::from(ranks.max(1));
        match self {
            Collective::AllGather => (ranks - 1.0) / ranks,
            Collective::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        }
    }

    /// Elements of a call and the size of its row, for a size that was asked for: whole elements, and
    /// for allgather the same number from each rank.
    pub(crate) fn shape(self, asked: u64, element: u32, ranks: u32) -> (u64, u64) {
        let least = self.element(element, ranks);
        let count = asked / least;
        (count, count * least)
    }

    /// Of what a size has whole elements, in words behind "an element".
    pub(crate) fn each(self) -> &'static str {
        match self {
            Collective::AllGather => " a rank",
            Collective::AllReduce => "",
        }
    }

    /// Bytes of the smallest size that is not 0: an element, for allgather one from each rank.
    pub(crate) fn element(self, element: u32, ranks: u32) -> u64 {
        match self {
            Collective::AllGather => u64::from(element) * u64::from(ranks),
            Collective::AllReduce => u64::from(element),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allgather_sizes_count_all_ranks_parts() {
        assert_eq!(Collective::AllReduce.shape(1027, 4, 8), (256, 1024));
        assert_eq!(Collective::AllGather.shape(1024, 4, 8), (32, 1024));
        assert_eq!(Collective::AllGather.shape(1027, 2, 3), (171, 1026));
        assert_eq!(Collective::AllGather.shape(8, 4, 8), (0, 0));
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(Collective::AllReduce.bus_factor(2), 1.0);
        assert_eq!(Collective::AllReduce.bus_factor(8), 1.75);
        assert_eq!(Collective::AllGather.bus_factor(8), 0.875);
        assert_eq!(Collective::AllReduce.bus_factor(1), 0.0);
    }
}

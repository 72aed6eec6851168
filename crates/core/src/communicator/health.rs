//! What ended a communicator.
//!
//! Invariant: the failure is noted before the abort word is set, so who finds a wait aborted finds
//! the reason too. The first failure stays.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::control::ControlBlock;
use crate::liveness::LossCause;
use crate::{Error, Loss, LostRank, Result, WaitCause};

/// Shared by a communicator and what watches its peers.
pub(crate) struct Health {
    rank: u32,
    pub(crate) control: Arc<ControlBlock>,
    failure: OnceLock<Loss>,
    /// This rank's own early wait was told to the others.
    told: AtomicBool,
}

impl Health {
    pub(crate) fn new(rank: u32, control: Arc<ControlBlock>) -> Self {
        Health { rank, control, failure: OnceLock::new(), told: AtomicBool::new(false) }
    }

    /// A rank is of no use any more: every wait of this rank's kernels ends.
    pub(crate) fn fail(&self, loss: Loss) {
        if self.failure.set(loss.clone()).is_ok() {
            mscclrs_log::error!(
                LIVENESS,
                rank = self.rank,
                lost = loss.rank,
                why = %loss,
                "the communicator ends early: its kernels are told to end their waits"
            );
        }
        self.control.abort();
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.control.is_aborted() || self.control.has_record()
    }

    /// Whether this is the first call: what only one may tell the others.
    pub(crate) fn tell_once(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// The error of a poisoned communicator.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_poisoned() {
            return Ok(());
        }
        let wait = self.control.record();
        let failure = self.failure.get().cloned();
        match (wait, failure) {
            // A rank that was lost comes first: who left, left because of it.
            (Some(wait), failure)
                if wait.cause == WaitCause::Left
                    && failure
                        .as_ref()
                        .is_none_or(|loss| matches!(loss.cause, LossCause::Failed(_))) =>
            {
                let why = "it left, and a kernel of this rank still waited for it";
                let rank = wait.peer.unwrap_or(self.rank);
                let loss = Loss { rank, cause: LossCause::Failed(why.into()) };
                Err(Error::RankLost(Box::new(LostRank { loss, wait: Some(wait) })))
            }
            // What this rank itself found came first; a loss that it caused elsewhere is no news.
            (Some(wait), failure)
                if wait.cause != WaitCause::Abort
                    && failure.as_ref().is_none_or(|failure| failure.rank == self.rank) =>
            {
                Err(Error::Wait { rank: self.rank, wait: Box::new(wait) })
            }
            (wait, Some(loss)) => Err(Error::RankLost(Box::new(LostRank { loss, wait }))),
            (Some(wait), None) => Err(Error::Wait { rank: self.rank, wait: Box::new(wait) }),
            (None, None) => Ok(()),
        }
    }
}

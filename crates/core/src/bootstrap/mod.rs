//! How ranks find each other and exchange small messages during set-up.

use crate::Result;

/// Small messages between the ranks of a communicator, for set-up only.
///
/// Messages between two ranks with one tag arrive in the order sent. Every call has a deadline and
/// ends with an error that names the rank it waited for. Any thread may call.
pub trait Bootstrap: Send + Sync {
    /// This rank.
    fn rank(&self) -> u32;
    /// Number of ranks.
    fn world_size(&self) -> u32;
    /// Sends a message; does not wait for it to be received.
    fn send(&self, peer: u32, tag: u32, data: &[u8]) -> Result<()>;
    /// Waits for the next message of `peer` with `tag`.
    fn recv(&self, peer: u32, tag: u32) -> Result<Vec<u8>>;
    /// Every rank's `data`, by rank. Lengths may differ. All ranks call it.
    fn all_gather(&self, data: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Waits until every rank called it.
    fn barrier(&self) -> Result<()> {
        self.all_gather(&[]).map(|_| ())
    }
}

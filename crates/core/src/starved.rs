//! A service that has no descriptor left to accept a connection with.

use rustix::io::Errno;

/// Says so once: those who connect only see that nobody answers.
#[derive(Default)]
pub(crate) struct Starved {
    told: bool,
}

impl Starved {
    /// Whether accepting failed for want of something that others may give back.
    pub(crate) fn is(error: Errno) -> bool {
        matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
    }

    pub(crate) fn tell(&mut self, error: Errno) {
        if !std::mem::replace(&mut self.told, true) {
            let hint = mscclrs_gpu::limit_hint(&error.into());
            mscclrs_log::warn!(BOOTSTRAP, "a connection cannot be accepted: {error}{hint}");
        }
    }
}

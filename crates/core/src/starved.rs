//! A service that has no descriptor left to accept a connection with.

use rustix::io::Errno;

/// Says so once: those who connect only see that nobody answers. Who waits for them in this process can
/// ask.
#[derive(Default)]
pub(crate) struct Starved {
    told: bool,
    now: Option<Errno>,
}

impl Starved {
    /// Whether accepting failed for want of something that others may give back.
    pub(crate) fn is(error: Errno) -> bool {
        matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
    }

    /// Why the last connection could not be accepted; none if it could.
    pub(crate) fn now(&self) -> Option<Errno> {
        self.now
    }

    /// A connection was accepted.
    pub(crate) fn is_over(&mut self) {
        self.now = None;
    }

    pub(crate) fn tell(&mut self, error: Errno) {
        self.now = Some(error);
        if !std::mem::replace(&mut self.told, true) {
            let hint = mscclrs_gpu::limit_hint(&error.into());
            mscclrs_log::warn!(BOOTSTRAP, "a connection cannot be accepted: {error}{hint}");
        }
    }
}

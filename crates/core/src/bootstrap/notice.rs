//! Who waits for long says once for whom: the mistake is often in what started the ranks, and can be
//! seen long before the deadline.

use std::time::{Duration, Instant};

/// How long is long.
const PATIENCE: Duration = Duration::from_secs(3);

/// When a rank began to wait, and until when it does.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) started: Instant,
    pub(super) deadline: Instant,
}

/// What a rank says when it has waited for long.
pub(super) struct Notice {
    times: Times,
    told: bool,
}

impl Notice {
    pub(super) fn new(times: Times) -> Notice {
        Notice { times, told: false }
    }

    /// To be called now and then while nothing comes. `what` says who waits where for whom, given
    /// how long.
    pub(super) fn tell(&mut self, what: impl FnOnce(&str) -> String) {
        if let Some(text) = self.text(Instant::now(), what) {
            mscclrs_log::warn!(BOOTSTRAP, "{text}");
        }
    }

    fn text(&mut self, now: Instant, what: impl FnOnce(&str) -> String) -> Option<String> {
        let Times { started, deadline } = self.times;
        let waited = now.saturating_duration_since(started);
        if self.told || waited < PATIENCE {
            return None;
        }
        self.told = true;
        let what = what(&format!("has waited {} s", waited.as_secs()));
        let limit = deadline.saturating_duration_since(started).as_secs_f64();
        Some(format!("{what}; it gives up after {limit} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_told_once() {
        let started = Instant::now();
        let at = |seconds| started + Duration::from_secs(seconds);
        let mut notice = Notice::new(Times { started, deadline: at(60) });
        let what = |waited: &str| format!("rank 1 {waited} for rank 0");
        assert_eq!(notice.text(at(2), what), None);
        let told = notice.text(at(4), what);
        assert_eq!(
            told.as_deref(),
            Some("rank 1 has waited 4 s for rank 0; it gives up after 60 s")
        );
        assert_eq!(notice.text(at(5), what), None);
    }
}

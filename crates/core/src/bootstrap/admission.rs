//! A rank's end of its connection to the rendezvous, from its report until all are told to go.
//!
//! It is read on the watcher's thread, so that a rank hears that another was lost while it waits for
//! that one to connect.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::join::{self, MAX_VERDICT, Report, Verdict, take_frame};
use super::socket;
use crate::Result;
use crate::watcher::{Watch, Watched};

/// How often who waits looks up.
const SLICE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Admission {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    socket: Option<(u32, Watched)>,
    inbox: Vec<u8>,
    /// What it said and nobody heard yet.
    verdicts: Vec<Verdict>,
    /// It said to go; its end is no news then.
    goes: bool,
    /// The rendezvous says no more: how its connection ended.
    ended: Option<String>,
}

/// What came of waiting for the rendezvous.
pub(super) enum Heard {
    Verdict(Verdict),
    Ended(String),
    Deadline,
}

impl Admission {
    /// Goes on with a connection on which this rank has joined.
    pub(super) fn open(&self, socket: OwnedFd, key: u32, watch: &Watch) -> Result<()> {
        // Under the lock: events of the socket come as soon as it is watched.
        let mut state = self.lock();
        state.socket = Some((key, watch.watch(socket, key)?));
        Ok(())
    }

    /// Whether this is the key of its socket.
    pub(super) fn has(&self, key: u32) -> bool {
        self.lock().socket.as_ref().is_some_and(|(own, _)| *own == key)
    }

    pub(super) fn report(&self, report: &Report, deadline: Instant) -> std::io::Result<()> {
        let state = self.lock();
        match &state.socket {
            Some((_, socket)) => socket::send_all(socket.as_fd(), &report.encode(), deadline),
            None => Err(std::io::ErrorKind::NotConnected.into()),
        }
    }

    /// Reads what there is. False if this rank will not be told to go.
    pub(super) fn read(&self) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some((_, socket)) = &state.socket else { return true };
        let recv_now = |buffer: &mut [u8]| socket::recv_now(socket.as_fd(), buffer);
        let ended = match join::fill(&mut state.inbox, MAX_VERDICT, recv_now) {
            Ok(true) => None,
            Ok(false) => Some("it hung up before all ranks had come together".into()),
            Err(error) => Some(format!("its connection failed: {error}")),
        };
        let damaged = loop {
            match take_frame(&mut state.inbox, MAX_VERDICT)
                .and_then(|frame| frame.map(|frame| Verdict::decode(&frame)).transpose())
            {
                Ok(None) => break None,
                Ok(Some(verdict)) => {
                    state.goes |= verdict == Verdict::Go;
                    state.verdicts.push(verdict);
                }
                Err(_) => break Some("it answered nonsense".to_owned()),
            }
        };
        if let Some(why) = damaged.or(ended) {
            state.socket = None;
            state.ended = Some(why);
        }
        let fails = |verdict: &Verdict| matches!(verdict, Verdict::Failed(_));
        let goes = state.goes || (state.ended.is_none() && !state.verdicts.iter().any(fails));
        drop(guard);
        self.changed.notify_all();
        goes
    }

    /// Waits for the next verdict; what came before the end counts more than the end. `waiting` is called
    /// now and then while nothing comes.
    pub(super) fn hear(&self, deadline: Instant, mut waiting: impl FnMut()) -> Heard {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let silent = |state: &mut State| state.verdicts.is_empty() && state.ended.is_none();
            let waited = self.changed.wait_timeout_while(self.lock(), left.min(SLICE), silent);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !state.verdicts.is_empty() {
                return Heard::Verdict(state.verdicts.remove(0));
            }
            if let Some(why) = &state.ended {
                return Heard::Ended(why.clone());
            }
            drop(state);
            if left.is_zero() {
                return Heard::Deadline;
            }
            waiting();
        }
    }

    /// Hangs up.
    pub(super) fn close(&self) {
        self.lock().socket = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;
    use crate::watcher::{self, Handler};

    /// Reads nothing by itself.
    struct Idle;

    impl Handler for Idle {
        fn ready(&self, _: u32) {}
    }

    /// An admission, and the rendezvous' end of its connection.
    fn admission() -> (Admission, UnixStream, watcher::Registration) {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let admission = Admission::default();
        let mut opened = Ok(());
        let (_, registration) = watcher::register(|watch| {
            opened = admission.open(mine.into(), 1, &watch);
            Ok(Arc::new(Idle))
        })
        .unwrap();
        opened.unwrap();
        (admission, theirs, registration)
    }

    #[test]
    fn who_was_told_to_go_goes_whenever_the_rendezvous_hangs_up() {
        for heard_between in [false, true] {
            let (admission, mut rendezvous, _watched) = admission();
            rendezvous.write_all(&Verdict::Go.encode()).unwrap();
            assert!(admission.read());
            let hear =
                || matches!(admission.hear(Instant::now(), || ()), Heard::Verdict(Verdict::Go));
            assert!(!heard_between || hear());
            drop(rendezvous);
            assert!(admission.read(), "heard before the end: {heard_between}");
            assert!(heard_between || hear());
        }
    }

    #[test]
    fn who_was_not_told_to_go_does_not() {
        let failed = Verdict::Failed(super::super::RendezvousError::RankLost { rank: 3 });
        let (admission, mut rendezvous, _watched) = self::admission();
        rendezvous.write_all(&failed.encode()).unwrap();
        assert!(!admission.read());
        drop(rendezvous);
        assert!(!admission.read());
        assert!(matches!(admission.hear(Instant::now(), || ()), Heard::Verdict(v) if v == failed));
        let (admission, rendezvous, _watched) = self::admission();
        assert!(admission.read(), "nothing was said");
        drop(rendezvous);
        assert!(!admission.read());
        assert!(matches!(admission.hear(Instant::now(), || ()), Heard::Ended(_)));
    }
}

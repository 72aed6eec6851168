//! Where messages wait until somebody asks for them.
//!
//! A message is put under its sender and key and taken by the first call that asks for that pair,
//! so messages of one pair keep their order and those nobody asked for yet disturb nobody. What
//! arrived before a peer left can still be taken afterwards.
//!
//! A peer that left ends the waits for itself. A rank that was lost ends all waits, for whoever is
//! waited for may be waiting for that rank; so every rank names the one that was lost.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why a rank that said goodbye is gone.
pub(super) const LEFT: &str = "it left";

/// What a message is about: calls of users and calls of ours never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// `send` and `recv` with a tag.
    User(u32),
    /// `all_gather` and `barrier`.
    Collective,
}

impl Key {
    pub(super) fn to_wire(self) -> u64 {
        match self {
            Key::User(tag) => u64::from(tag),
            Key::Collective => 1 << 32,
        }
    }

    pub(super) fn from_wire(word: u64) -> Option<Key> {
        match u32::try_from(word) {
            Ok(tag) => Some(Key::User(tag)),
            Err(_) if word == 1 << 32 => Some(Key::Collective),
            Err(_) => None,
        }
    }
}

/// Why nothing could be taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missed {
    Deadline,
    /// The rank that was waited for is gone.
    Gone(String),
    /// A rank was lost, whichever was waited for.
    Lost {
        rank: u32,
        why: String,
    },
}

/// The messages and sockets that arrived for one rank.
#[derive(Default)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    messages: HashMap<(u32, Key), VecDeque<Vec<u8>>>,
    streams: HashMap<(u32, u32), VecDeque<OwnedFd>>,
    gone: HashMap<u32, String>,
    /// The first rank that was lost, and how.
    lost: Option<(u32, String)>,
}

impl Mailbox {
    pub(super) fn put(&self, from: u32, key: Key, message: Vec<u8>) {
        self.lock().messages.entry((from, key)).or_default().push_back(message);
        self.arrived.notify_all();
    }

    pub(super) fn put_stream(&self, from: u32, label: u32, stream: OwnedFd) {
        self.lock().streams.entry((from, label)).or_default().push_back(stream);
        self.arrived.notify_all();
    }

    /// Nothing more comes from `peer`; the first reason stays.
    pub(super) fn close(&self, peer: u32, why: &str) {
        let mut state = self.lock();
        // Who goes after a loss goes because of it.
        if state.lost.is_none() {
            state.gone.entry(peer).or_insert_with(|| why.to_owned());
        }
        drop(state);
        self.arrived.notify_all();
    }

    /// A rank is lost: nobody waits any more. The first loss stays.
    pub(super) fn lose(&self, rank: u32, why: &str) {
        self.lock().lost.get_or_insert_with(|| (rank, why.to_owned()));
        self.arrived.notify_all();
    }

    /// Why a call to `peer` is in vain, where it is known that it is.
    pub(super) fn why_gone(&self, peer: u32) -> Option<Missed> {
        self.lock().why_gone(peer)
    }

    /// Waits to be told of a rank that was lost.
    pub(super) fn hear_of_loss(&self, limit: Duration) -> Option<u32> {
        let none = |state: &mut State| state.lost.is_none();
        let waited = self.arrived.wait_timeout_while(self.lock(), limit, none);
        waited.unwrap_or_else(PoisonError::into_inner).0.lost.as_ref().map(|(rank, _)| *rank)
    }

    /// Waits to be told why `peer` is gone, which this rank has found by itself.
    pub(super) fn hear_why_gone(&self, peer: u32, limit: Duration) -> Option<Missed> {
        let unknown = |state: &mut State| state.why_gone(peer).is_none();
        let state = self.lock();
        let waited = self.arrived.wait_timeout_while(state, limit, unknown);
        waited.unwrap_or_else(PoisonError::into_inner).0.why_gone(peer)
    }

    pub(super) fn take(&self, from: u32, key: Key, deadline: Instant) -> Result<Vec<u8>, Missed> {
        self.wait(from, deadline, |state| pop(&mut state.messages, (from, key)))
    }

    pub(super) fn take_stream(
        &self,
        from: u32,
        label: u32,
        deadline: Instant,
    ) -> Result<OwnedFd, Missed> {
        self.wait(from, deadline, |state| pop(&mut state.streams, (from, label)))
    }

    fn wait<T>(
        &self,
        from: u32,
        deadline: Instant,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Missed> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Ok(found);
            }
            if let Some(missed) = state.why_gone(from) {
                return Err(missed);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Missed::Deadline);
            }
            state =
                self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn why_gone(&self, peer: u32) -> Option<Missed> {
        let gone = self.gone.get(&peer).map(|why| Missed::Gone(why.clone()));
        let lost = |(rank, why): &(u32, String)| Missed::Lost { rank: *rank, why: why.clone() };
        gone.or_else(|| self.lost.as_ref().map(lost))
    }
}

/// Takes the oldest and forgets the queue when it is empty, so that tags used once leave nothing.
fn pop<K: Eq + std::hash::Hash, T>(queues: &mut HashMap<K, VecDeque<T>>, key: K) -> Option<T> {
    let queue = queues.get_mut(&key)?;
    let item = queue.pop_front();
    if queue.is_empty() {
        queues.remove(&key);
    }
    item
}

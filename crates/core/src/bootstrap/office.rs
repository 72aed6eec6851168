//! The receiving half of a rank: connections of peers are read into the mailbox as data comes.
//!
//! It runs on the watcher's thread, so a sender never waits for the receiver to be in a call. Who is
//! gone is said by the tree of ranks, which hears of a loss before it hears that others left because
//! of it; the end of a connection says only that nothing more comes on it. So a peer is gone when the
//! tree says so and all that it sent was read. What the tree cannot say, because a rank between has left,
//! the end of a connection says after a while, of those that this rank sends on too.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::acceptor::{Accepted, Acceptor};
use super::admission::Admission;
use super::join::{MAIL, STREAM};
use super::letter::Letter;
use super::mailbox::{LEFT, Mailbox};
use super::socket;
use super::wire::{Damaged, Reader, Writer};
use crate::Result;
use crate::liveness::{Listener, Loss};
use crate::watcher::{Handler, Watch, Watched};

const ENDED: &str = "it left or ended";
/// How long the tree may take to say what became of a peer whose connection has ended.
const WORD: Duration = Duration::from_secs(1);

pub(super) struct Office {
    rank: u32,
    world_size: u32,
    pub(super) mailbox: Mailbox,
    pub(super) admission: Admission,
    acceptor: Acceptor,
    watch: Watch,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    incoming: HashMap<u32, Incoming>,
    /// Peers that ever opened a connection for messages.
    opened: HashSet<u32>,
    /// Keys of connections that this rank sends on, and to whom.
    outgoing: HashMap<u32, u32>,
    /// Peers that said goodbye and of which something may still have to be read.
    leaving: HashSet<u32>,
    /// Peers whose connection ended, how and when, and of which the tree has said nothing yet.
    ended: HashMap<u32, (String, Instant)>,
}

struct Incoming {
    from: u32,
    socket: Watched,
    letter: Letter,
}

/// What the first message of a connection between ranks says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct First {
    pub(super) purpose: u8,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) label: u32,
}

impl First {
    /// With its length in front.
    pub(super) fn encode(&self) -> Vec<u8> {
        Writer::default().u32(13).u8(self.purpose).u32(self.from).u32(self.to).u32(self.label).0
    }

    pub(super) fn decode(bytes: &[u8]) -> std::result::Result<First, Damaged> {
        let mut reader = Reader(bytes);
        let (purpose, from) = (reader.u8()?, reader.u32()?);
        let first = First { purpose, from, to: reader.u32()?, label: reader.u32()? };
        reader.end()?;
        Ok(first)
    }
}

impl Office {
    pub(super) fn new(rank: u32, world_size: u32, acceptor: Acceptor, watch: Watch) -> Office {
        Office {
            rank,
            world_size,
            mailbox: Mailbox::default(),
            admission: Admission::default(),
            acceptor,
            watch,
            state: Mutex::default(),
        }
    }

    /// Goes on with the connection to the rendezvous, on which this rank has joined.
    pub(super) fn await_admission(&self, socket: OwnedFd) -> Result<()> {
        self.admission.open(socket, self.acceptor.new_key(), &self.watch)
    }

    /// Watches a connection that this rank sends on, to see when the peer ends it.
    pub(super) fn watch_outgoing(&self, peer: u32, fd: OwnedFd) -> Result<Watched> {
        let key = self.acceptor.new_key();
        self.lock().outgoing.insert(key, peer);
        self.watch.watch_for_end(fd, key)
    }

    /// Why this rank cannot hear of a peer that tries to reach it.
    pub(super) fn starved(&self) -> Option<Errno> {
        self.acceptor.starved()
    }

    fn accepted(&self, accepted: Accepted) {
        let Ok(first) = First::decode(&accepted.first) else { return };
        let from = first.from;
        if first.to != self.rank || from >= self.world_size || from == self.rank {
            return;
        }
        match first.purpose {
            MAIL => {
                let mut state = self.lock();
                // A second connection would break the order of messages.
                if state.opened.insert(from) {
                    let socket = accepted.socket;
                    let incoming = Incoming { from, socket, letter: Letter::default() };
                    state.incoming.insert(accepted.key, incoming);
                }
            }
            STREAM => {
                if let Some(fd) = accepted.socket.into_fd() {
                    self.mailbox.put_stream(from, first.label, fd);
                }
            }
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for Office {
    fn ready(&self, key: u32) {
        let mut state = self.lock();
        if let Some(incoming) = state.incoming.get_mut(&key) {
            if let Err(why) = incoming.read(&self.mailbox) {
                let peer = incoming.from;
                state.incoming.remove(&key);
                if state.leaving.remove(&peer) {
                    self.mailbox.close(peer, LEFT);
                } else {
                    state.ended.insert(peer, (why, Instant::now()));
                }
            }
            return;
        }
        if let Some(peer) = state.outgoing.remove(&key) {
            state.ended.entry(peer).or_insert_with(|| (ENDED.into(), Instant::now()));
            return;
        }
        drop(state);
        if self.admission.has(key) {
            if !self.admission.read() {
                // Who waits for a neighbour to connect waits in vain, and is told why by the admission.
                self.mailbox.lose(self.rank, "the rendezvous came to nothing");
            }
        } else if let Some(accepted) = self.acceptor.ready(key) {
            self.accepted(accepted);
        }
    }

    fn tick(&self) {
        self.acceptor.tick();
        let mut state = self.lock();
        let now = Instant::now();
        // A connection on which a peer has sent something may not have been opened here yet.
        if self.acceptor.has_proved() {
            return;
        }
        let State { leaving, incoming, ended, .. } = &mut *state;
        let reads = |peer: &u32| incoming.values().any(|incoming| incoming.from == *peer);
        for peer in leaving.extract_if(|peer| !reads(peer)) {
            self.mailbox.close(peer, LEFT);
        }
        let silent = |since: &Instant| now.duration_since(*since) >= WORD;
        for (peer, (why, _)) in ended.extract_if(|peer, (_, since)| silent(since) && !reads(peer)) {
            self.mailbox.close(peer, &why);
        }
    }

    fn needs_tick(&self) -> bool {
        let state = self.lock();
        self.acceptor.is_busy() || !state.ended.is_empty() || !state.leaving.is_empty()
    }
}

/// A rank's ear at the tree of ranks.
pub(super) struct Ear(pub(super) Arc<Office>);

impl Listener for Ear {
    fn lost(&self, loss: &Loss) {
        self.0.mailbox.lose(loss.rank, &loss.cause.to_string());
    }

    fn left(&self, rank: u32) {
        let office = &self.0;
        let mut state = office.lock();
        let has_ended = state.ended.remove(&rank).is_some();
        if has_ended || !(state.opened.contains(&rank) || office.acceptor.has_proved()) {
            office.mailbox.close(rank, LEFT);
        } else {
            state.leaving.insert(rank);
            office.watch.wake();
        }
    }
}

impl Incoming {
    /// Reads what is there; an error says why nothing more comes.
    fn read(&mut self, mailbox: &Mailbox) -> std::result::Result<(), String> {
        let mut chunk = [0; 32 << 10];
        // A bounded amount, so that one peer does not keep the thread.
        for _ in 0..32 {
            let room = chunk.len().min(self.letter.missing()?);
            match socket::recv_now(self.socket.as_fd(), &mut chunk[..room]) {
                Ok(None) => return Ok(()),
                Ok(Some(0)) if self.letter.is_empty() => return Err(ENDED.into()),
                Ok(Some(0)) => return Err(format!("{ENDED} in the middle of a message")),
                Ok(Some(count)) => {
                    if let Some((key, message)) = self.letter.add(&chunk[..count])? {
                        mailbox.put(self.from, key, message);
                    }
                }
                Err(error) => return Err(format!("its connection failed: {error}")),
            }
        }
        Ok(())
    }
}

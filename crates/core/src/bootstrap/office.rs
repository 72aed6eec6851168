//! The receiving half of a rank: connections of peers are read into the mailbox as data comes.
//!
//! It runs on the watcher's thread, so a sender never waits for the receiver to be in a call. A peer
//! is gone when the connection it sends on has ended and everything on it was read; if it never
//! opened one, when it has closed the one this rank sends on and no connection is still coming in.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::MAX_MESSAGE;
use super::acceptor::{Accepted, Acceptor};
use super::join::{MAIL, STREAM};
use super::mailbox::{Key, Mailbox};
use super::socket;
use super::wire::{Damaged, Reader, Writer};
use crate::Result;
use crate::watcher::{Handler, Interest, Watch, Watched};

/// Length and key of a message.
pub(super) const HEADER: usize = 12;
const ENDED: &str = "it left or ended";

pub(super) struct Office {
    rank: u32,
    world_size: u32,
    pub(super) mailbox: Mailbox,
    acceptor: Acceptor,
    watch: Watch,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    incoming: HashMap<u32, Incoming>,
    /// Whether a peer ever opened a connection for messages.
    opened: HashMap<u32, ()>,
    /// Key of a connection this rank sends on, and to whom.
    outgoing: HashMap<u32, u32>,
    /// Peers that closed what this rank sends on.
    suspects: Vec<u32>,
}

struct Incoming {
    from: u32,
    socket: Watched,
    header: Vec<u8>,
    body: Vec<u8>,
}

/// What the first message of a connection between ranks says.
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

    fn decode(bytes: &[u8]) -> std::result::Result<First, Damaged> {
        let mut reader = Reader(bytes);
        let (purpose, from) = (reader.u8()?, reader.u32()?);
        let first = First { purpose, from, to: reader.u32()?, label: reader.u32()? };
        reader.end()?;
        Ok(first)
    }
}

impl Office {
    pub(super) fn new(rank: u32, world_size: u32, acceptor: Acceptor, watch: Watch) -> Office {
        let (mailbox, state) = (Mailbox::default(), Mutex::default());
        Office { rank, world_size, mailbox, acceptor, watch, state }
    }

    /// Watches a connection that this rank sends on, to see when the peer ends it.
    pub(super) fn watch_outgoing(&self, peer: u32, fd: OwnedFd) -> Result<Watched> {
        let key = self.acceptor.new_key();
        self.lock().outgoing.insert(key, peer);
        self.watch.watch(fd, key, Interest::Once)
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
                if state.opened.insert(from, ()).is_none() {
                    let socket = accepted.socket;
                    let incoming = Incoming { from, socket, header: Vec::new(), body: Vec::new() };
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
                self.mailbox.close(incoming.from, &why);
                state.incoming.remove(&key);
            }
        } else if let Some(peer) = state.outgoing.remove(&key) {
            state.suspects.push(peer);
        } else {
            drop(state);
            if let Some(accepted) = self.acceptor.ready(key) {
                self.accepted(accepted);
            }
        }
    }

    fn tick(&self) {
        self.acceptor.tick();
        if self.acceptor.is_busy() {
            return;
        }
        let mut state = self.lock();
        for peer in std::mem::take(&mut state.suspects) {
            // Its own connection, if there is one, says when all it sent was read.
            if !state.opened.contains_key(&peer) {
                self.mailbox.close(peer, ENDED);
            }
        }
    }

    fn needs_tick(&self) -> bool {
        self.acceptor.is_busy() || !self.lock().suspects.is_empty()
    }
}

impl Incoming {
    /// Reads what is there; an error says why nothing more comes.
    fn read(&mut self, mailbox: &Mailbox) -> std::result::Result<(), String> {
        let mut chunk = [0; 32 << 10];
        // A bounded amount, so that one peer does not keep the thread.
        for _ in 0..32 {
            let want = self.missing()?;
            let room = chunk.len().min(want);
            if room > 0 {
                match socket::recv_now(self.socket.as_fd(), &mut chunk[..room]) {
                    Ok(None) => return Ok(()),
                    Ok(Some(0)) if self.header.is_empty() => return Err(ENDED.into()),
                    Ok(Some(0)) => return Err(format!("{ENDED} in the middle of a message")),
                    Ok(Some(count)) if self.header.len() < HEADER => {
                        self.header.extend_from_slice(&chunk[..count]);
                    }
                    Ok(Some(count)) => self.body.extend_from_slice(&chunk[..count]),
                    Err(error) => return Err(format!("its connection failed: {error}")),
                }
            }
            if self.header.len() == HEADER && self.missing()? == 0 {
                let mut reader = Reader(&self.header[4..]);
                let key = reader.u64().ok().and_then(Key::from_wire);
                let key = key.ok_or("it sent a damaged message")?;
                mailbox.put(self.from, key, std::mem::take(&mut self.body));
                self.header.clear();
            }
        }
        Ok(())
    }

    /// Bytes still to come of the header, or else of the body.
    fn missing(&self) -> std::result::Result<usize, String> {
        if self.header.len() < HEADER {
            return Ok(HEADER - self.header.len());
        }
        let length = Reader(&self.header).u32().unwrap_or(u32::MAX) as usize;
        if length > MAX_MESSAGE {
            return Err(format!("it sent a message of {length} bytes, more than is allowed"));
        }
        Ok(length - self.body.len())
    }
}

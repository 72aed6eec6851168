//! The accepting side of connections, until they are strangers no more.
//!
//! Handshakes run side by side on the watcher's thread, never block, and each has a deadline. Their
//! number is bounded: a new connection pushes out the oldest one that has not proved the secret, so
//! that a flood of strangers delays an honest peer by a retry and never shuts it out.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with, send, sockopt};

use super::address::is_near;
use super::handshake::{Handshake, Line};
use super::secret::{NONCE, Secret, nonce};
use super::socket;
use crate::Result;
use crate::starved::Starved;
use crate::watcher::{Watch, Watched};

/// How long a stranger may take to prove the secret and say what it wants.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How many may be at it at a time.
const PENDING: usize = 256;
/// Keys below are listeners.
const FIRST_KEY: u32 = 64;

/// Listening sockets and the connections that are still strangers.
pub(super) struct Acceptor {
    secret: Secret,
    near_only: bool,
    watch: Watch,
    state: Mutex<State>,
}

struct State {
    listeners: Vec<Watched>,
    /// By key, so oldest first.
    pending: BTreeMap<u32, Pending>,
    next_key: u32,
    refused: u32,
    starved: Starved,
}

/// A connection that proved the secret, with its first message.
pub(super) struct Accepted {
    pub(super) key: u32,
    pub(super) socket: Watched,
    pub(super) first: Vec<u8>,
}

struct Pending {
    socket: Watched,
    deadline: Instant,
    handshake: Handshake,
}

impl Acceptor {
    /// `near_only`: from public addresses nobody is let in.
    pub(super) fn new(
        watch: Watch,
        listeners: Vec<OwnedFd>,
        secret: Secret,
        near_only: bool,
    ) -> Result<Acceptor> {
        let listeners = listeners
            .into_iter()
            .zip(0..)
            .map(|(fd, key)| watch.watch(fd, key))
            .collect::<Result<_>>()?;
        let state = State {
            listeners,
            pending: BTreeMap::new(),
            next_key: FIRST_KEY,
            refused: 0,
            starved: Starved::default(),
        };
        Ok(Acceptor { secret, near_only, watch, state: Mutex::new(state) })
    }

    /// A key for a socket of the same handler that is watched by other means.
    pub(super) fn new_key(&self) -> u32 {
        self.lock().new_key()
    }

    /// Goes on with what `key` is about; gives a connection that is a stranger no more.
    pub(super) fn ready(&self, key: u32) -> Option<Accepted> {
        let mut state = self.lock();
        if (key as usize) < state.listeners.len() {
            self.accept(&mut state, key as usize);
            return None;
        }
        let mut pending = state.pending.remove(&key)?;
        match pending.handshake.advance(&pending.socket, &self.secret) {
            Ok(Some(first)) => Some(Accepted { key, socket: pending.socket, first }),
            Ok(None) => {
                state.pending.insert(key, pending);
                None
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    state.refuse(&pending.socket);
                }
                None
            }
        }
    }

    /// Drops those who took too long.
    pub(super) fn tick(&self) {
        let now = Instant::now();
        self.lock().pending.retain(|_, pending| pending.deadline > now);
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.lock().pending.is_empty()
    }

    /// Whether somebody who proved the secret has not said yet what it wants.
    pub(super) fn has_proved(&self) -> bool {
        self.lock().pending.values().any(|pending| !pending.handshake.is_stranger())
    }

    /// How many came with a wrong secret.
    pub(super) fn refused(&self) -> u32 {
        self.lock().refused
    }

    /// Why this process cannot accept a connection that waits for it.
    pub(super) fn starved(&self) -> Option<Errno> {
        self.lock().starved.now()
    }

    /// Listens no more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.listeners.clear();
        state.pending.clear();
    }

    fn accept(&self, state: &mut State, listener: usize) {
        // A bounded number, so that a flood does not keep the thread here.
        for _ in 0..64 {
            let fd = match accept_with(&state.listeners[listener], SocketFlags::CLOEXEC) {
                Ok(fd) => fd,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) if Starved::is(error) => {
                    state.starved.tell(error);
                    // Make room; if there is none to make, do not spin until others do.
                    if !state.push_out() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    return;
                }
                Err(_) => return,
            };
            state.starved.is_over();
            if self.near_only
                && !socket::peer_address(fd.as_fd()).is_ok_and(|address| is_near(address.ip()))
            {
                continue;
            }
            // Without it small messages are slow, nothing worse.
            let _ = sockopt::set_tcp_nodelay(&fd, true);
            let key = state.new_key();
            let Ok(socket) = self.watch.watch(fd, key) else { continue };
            if state.pending.len() >= PENDING {
                state.push_out();
            }
            let pending = Pending {
                socket,
                deadline: Instant::now() + HANDSHAKE,
                handshake: Handshake::new(),
            };
            state.pending.insert(key, pending);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Drops the oldest that has not proved the secret; those that have end by their deadline.
    fn push_out(&mut self) -> bool {
        let stranger = |(_, pending): &(_, &Pending)| pending.handshake.is_stranger();
        let oldest = self.pending.iter().find(stranger).map(|(&key, _)| key);
        oldest.and_then(|key| self.pending.remove(&key)).is_some()
    }

    /// Counts one who does not know the secret. The first is told at once: whoever waits for it does
    /// so in vain.
    fn refuse(&mut self, socket: &Watched) {
        self.refused += 1;
        if self.refused > 1 {
            return;
        }
        let from = socket::peer_address(socket.as_fd()).map(|address| address.to_string());
        mscclrs_log::warn!(
            BOOTSTRAP,
            "a connection from {} was refused: its secret differs; give every rank the same \
             MSCCLRS_SECRET or unique id",
            from.unwrap_or_else(|_| "a process that is gone".into())
        );
    }

    fn new_key(&mut self) -> u32 {
        let key = self.next_key;
        self.next_key = self.next_key.checked_add(1).unwrap_or(FIRST_KEY);
        key
    }
}

impl Line for Watched {
    fn recv_now(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        socket::recv_now(self.as_fd(), buffer)
    }

    fn reply(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(self, bytes, flags) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn nonce(&self) -> io::Result<[u8; NONCE]> {
        nonce().map_err(io::Error::other)
    }
}

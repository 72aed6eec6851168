//! The accepting side of connections: nothing of a stranger is read beyond a nonce and a proof.
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
use super::secret::{MAGIC, NONCE, Nonces, PROOF, Role, Secret, nonce};
use super::socket;
use crate::Result;
use crate::starved::Starved;
use crate::watcher::{Watch, Watched};

/// How long a stranger may take to prove the secret and say what it wants.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How many may be at it at a time.
const PENDING: usize = 256;
/// The longest first message.
pub(super) const MAX_FIRST: usize = 64 << 10;
/// Keys below are listeners.
const FIRST_KEY: u32 = 64;

/// Answers the proof of one who knows the secret, or of one who does not.
pub(super) const WELCOME: u8 = 1;
pub(super) const REFUSED: u8 = 0;

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
    step: Step,
    buffer: Vec<u8>,
    want: usize,
}

enum Step {
    Hello,
    Proof(Nonces),
    Length,
    First,
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
        match pending.advance(&self.secret) {
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
        self.lock().pending.values().any(|pending| !pending.is_stranger())
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
                step: Step::Hello,
                buffer: Vec::new(),
                want: MAGIC.len() + NONCE,
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
        let oldest = self.pending.iter().find(|(_, p)| p.is_stranger()).map(|(&key, _)| key);
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

impl Pending {
    fn is_stranger(&self) -> bool {
        matches!(self.step, Step::Hello | Step::Proof(_))
    }

    /// Reads what is there, never more than the step at hand needs; gives the first message when
    /// it is complete.
    fn advance(&mut self, secret: &Secret) -> io::Result<Option<Vec<u8>>> {
        loop {
            if !self.fill()? {
                return Ok(None);
            }
            let got = std::mem::take(&mut self.buffer);
            match &self.step {
                Step::Hello => {
                    let (magic, connecting) = got.split_at(MAGIC.len());
                    let Ok(connecting) = connecting.try_into() else { return Err(stranger()) };
                    if magic != MAGIC {
                        return Err(stranger());
                    }
                    let accepting = nonce().map_err(io::Error::other)?;
                    self.reply(&accepting)?;
                    self.next(Step::Proof(Nonces { connecting, accepting }), PROOF);
                }
                Step::Proof(nonces) => {
                    if !secret.verify(Role::Connecting, nonces, &got) {
                        // So that it can tell a wrong secret from a busy host.
                        self.reply(&[REFUSED])?;
                        return Err(io::ErrorKind::PermissionDenied.into());
                    }
                    let proof = secret.prove(Role::Accepting, nonces);
                    self.reply(&[&[WELCOME], &proof[..]].concat())?;
                    self.next(Step::Length, 4);
                }
                Step::Length => {
                    let length = got.try_into().map_err(|_| stranger())?;
                    let length = u32::from_le_bytes(length) as usize;
                    if length == 0 || length > MAX_FIRST {
                        return Err(stranger());
                    }
                    self.next(Step::First, length);
                }
                Step::First => return Ok(Some(got)),
            }
        }
    }

    fn next(&mut self, step: Step, want: usize) {
        self.step = step;
        self.want = want;
    }

    /// Whether all that the step needs is there.
    fn fill(&mut self) -> io::Result<bool> {
        while self.buffer.len() < self.want {
            let mut chunk = [0; 4096];
            let room = chunk.len().min(self.want - self.buffer.len());
            match socket::recv_now(self.socket.as_fd(), &mut chunk[..room])? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(count) => self.buffer.extend_from_slice(&chunk[..count]),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// A few bytes, which an empty socket has room for.
    fn reply(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&self.socket, bytes, flags) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => Err(error.into()),
        }
    }
}

fn stranger() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

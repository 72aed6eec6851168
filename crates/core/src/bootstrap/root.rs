//! The rendezvous: where ranks report, and get the table of all ranks or one error for all.
//!
//! It runs on the watcher's thread and ends by itself: when every rank has its answer, or at the
//! first deadline of a rank that reported. After an error it stays until as many have been answered
//! as there are ranks, so that late ranks hear the same.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};

use super::acceptor::{Accepted, Acceptor};
use super::join::{Join, Peer, Verdict};
use super::secret::Secret;
use super::socket;
use super::verdict::RendezvousError;
use crate::watcher::{self, Handler, Registration, Watched};
use crate::{Error, Result};

/// How long an id waits for its first rank.
const LIFETIME: Duration = Duration::from_secs(600);
/// More ranks than this are a mistake.
pub(super) const MAX_RANKS: u32 = 1 << 16;

pub(super) struct Root {
    acceptor: Acceptor,
    state: Mutex<State>,
    ended: Condvar,
    registration: Mutex<Option<Registration>>,
}

struct State {
    build: Option<String>,
    world_size: Option<u32>,
    started: Instant,
    deadline: Instant,
    /// By rank.
    joined: BTreeMap<u32, Joined>,
    failure: Option<RendezvousError>,
    answered: u32,
    ended: bool,
}

struct Joined {
    key: u32,
    socket: Watched,
    peer: Peer,
}

impl Root {
    /// Serves a unique id at these addresses; gives them with their ports.
    pub(super) fn serve_id(addresses: &[SocketAddr], secret: Secret) -> Result<Vec<SocketAddr>> {
        let mut bound = Vec::new();
        let mut listeners = Vec::new();
        for &address in addresses {
            let (fd, address) = socket::listen_at(address)
                .map_err(|error| Error::io(format!("cannot listen at {}", address.ip()), error))?;
            listeners.push(fd);
            bound.push(address);
        }
        Root::serve(listeners, secret, false, None, LIFETIME)?;
        Ok(bound)
    }

    /// Serves on sockets that listen already, for a known number of ranks or that of the first.
    pub(super) fn serve(
        listeners: Vec<OwnedFd>,
        secret: Secret,
        near_only: bool,
        world_size: Option<u32>,
        limit: Duration,
    ) -> Result<Arc<Root>> {
        let started = Instant::now();
        let state = State {
            build: None,
            world_size,
            started,
            deadline: started + limit,
            joined: BTreeMap::new(),
            failure: None,
            answered: 0,
            ended: false,
        };
        let (root, registration) = watcher::register(|watch| {
            Ok(Arc::new(Root {
                acceptor: Acceptor::new(watch, listeners, secret, near_only)?,
                state: Mutex::new(state),
                ended: Condvar::new(),
                registration: Mutex::new(None),
            }))
        })?;
        let ended = root.lock();
        if !ended.ended {
            *root.registration.lock().unwrap_or_else(PoisonError::into_inner) = Some(registration);
        }
        drop(ended);
        Ok(root)
    }

    /// Waits until every rank was answered, but not for long.
    pub(super) fn wait_until_ended(&self, limit: Duration) {
        let state = self.lock();
        // Whether it ended or not, the caller goes on.
        let _ = self.ended.wait_timeout_while(state, limit, |state| !state.ended);
    }

    /// The ranks that are awaited still, and the number of ranks; nothing once it is decided.
    pub(super) fn missing(&self) -> Option<(Vec<u32>, u32)> {
        let state = self.lock();
        let world_size = state.world_size.filter(|_| state.failure.is_none() && !state.ended)?;
        Some((state.missing(world_size), world_size))
    }

    fn join(&self, state: &mut State, accepted: Accepted) {
        let Ok(join) = Join::decode(&accepted.first) else {
            return;
        };
        let now = Instant::now();
        state.deadline = state.deadline.min(now + Duration::from_millis(join.remaining_ms));
        if state.joined.is_empty() && state.failure.is_none() && state.world_size.is_none() {
            // The first rank of an id: the lifetime of the id is over, its own deadline counts.
            state.started = now;
        }
        let build = state.build.get_or_insert_with(|| join.build.clone()).clone();
        let size = *state.world_size.get_or_insert(join.world_size);
        let found = if let Some(failure) = &state.failure {
            Some(failure.clone())
        } else if build != join.build {
            Some(RendezvousError::BuildMismatch {
                rank: join.rank,
                build: join.build,
                expected: build,
            })
        } else if size != join.world_size {
            Some(RendezvousError::WorldSizeMismatch {
                rank: join.rank,
                world_size: join.world_size,
                expected: size,
            })
        } else if join.rank >= size || size > MAX_RANKS {
            Some(RendezvousError::RankOutOfRange { rank: join.rank, world_size: size })
        } else if state.joined.contains_key(&join.rank) {
            Some(RendezvousError::DuplicateRank { rank: join.rank })
        } else {
            None
        };
        match found {
            Some(failure) => {
                self.fail(state, failure.clone());
                state.answered += 1;
                answer(vec![accepted.socket], &Verdict::Failed(failure));
            }
            None => {
                let peer = join.peer;
                let joined = Joined { key: accepted.key, socket: accepted.socket, peer };
                state.joined.insert(join.rank, joined);
                if state.joined.len() == size as usize {
                    self.succeed(state);
                }
            }
        }
        let expected = state.world_size.unwrap_or(0).max(join.world_size);
        if state.failure.is_some() && state.answered >= expected {
            self.end(state);
        }
    }

    /// Tells all that reported.
    fn fail(&self, state: &mut State, failure: RendezvousError) {
        if state.failure.is_none() {
            let sockets: Vec<_> =
                std::mem::take(&mut state.joined).into_values().map(|j| j.socket).collect();
            state.answered += sockets.len() as u32;
            answer(sockets, &Verdict::Failed(failure.clone()));
            state.failure = Some(failure);
        }
    }

    fn succeed(&self, state: &mut State) {
        // Nobody may meet this listener who looks for the next rendezvous at the same address.
        self.acceptor.close();
        let (sockets, peers) =
            std::mem::take(&mut state.joined).into_values().map(|j| (j.socket, j.peer)).unzip();
        answer(sockets, &Verdict::Table(peers));
        self.end(state);
    }

    fn end(&self, state: &mut State) {
        state.ended = true;
        self.acceptor.close();
        state.joined.clear();
        self.ended.notify_all();
        // Not dropped under the lock that `serve` takes: here it is only taken out.
        drop(self.registration.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn missing(&self, world_size: u32) -> Vec<u32> {
        (0..world_size.min(MAX_RANKS)).filter(|rank| !self.joined.contains_key(rank)).collect()
    }
}

impl Handler for Root {
    fn ready(&self, key: u32) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        if let Some((&rank, joined)) = state.joined.iter().find(|(_, joined)| joined.key == key) {
            // A rank that reported has nothing to say: it is gone, or not one of ours.
            if !matches!(socket::recv_now(joined.socket.as_fd(), &mut [0]), Ok(None)) {
                state.joined.remove(&rank);
                state.answered += 1;
                self.fail(&mut state, RendezvousError::RankLost { rank });
            }
        } else if let Some(accepted) = self.acceptor.ready(key) {
            self.join(&mut state, accepted);
        }
    }

    fn tick(&self) {
        self.acceptor.tick();
        let mut state = self.lock();
        if state.ended || Instant::now() < state.deadline {
            return;
        }
        if let (None, Some(world_size)) = (&state.failure, state.world_size) {
            let missing = RendezvousError::MissingRanks {
                ranks: state.missing(world_size),
                world_size,
                waited_ms: state.started.elapsed().as_millis() as u64,
                refused: self.acceptor.refused(),
            };
            self.fail(&mut state, missing);
        }
        self.end(&mut state);
    }

    fn needs_tick(&self) -> bool {
        true
    }
}

/// Sends the verdict; what does not fit into a socket at once is sent by a thread of its own.
fn answer(sockets: Vec<Watched>, verdict: &Verdict) {
    let message = verdict.encode();
    let mut rest = Vec::new();
    for socket in sockets {
        let sent = send(&socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        let sent = sent.unwrap_or(0);
        if sent < message.len()
            && let Some(fd) = socket.into_fd()
        {
            rest.push((fd, message[sent..].to_vec()));
        }
    }
    if rest.is_empty() {
        return;
    }
    let slow = move || {
        for (fd, bytes) in rest {
            // A rank that does not read its answer finds a closed socket.
            let _ = socket::send_all(fd.as_fd(), &bytes, Instant::now() + Duration::from_secs(5));
        }
    };
    // Without a thread these ranks find a closed socket.
    let _ = std::thread::Builder::new().name("mscclrs-answer".into()).spawn(slow);
}

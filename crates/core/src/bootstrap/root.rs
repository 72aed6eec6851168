//! The rendezvous: where ranks report, and are brought together or get one error for all.
//!
//! First each rank says who it is and where it can be reached. When all have, each is told who its
//! neighbours in the tree of ranks are, connects with them, and says so; when all have, all are told to
//! go. Until then a rank that ends is seen here, by the end of its connection, and named to all; from
//! then on its neighbours see it. So there is no moment at which a rank can be lost unseen.
//!
//! A rank sends and gets two or three messages, whatever the number of ranks; who is where the ranks
//! tell each other over the tree.
//!
//! It runs on the watcher's thread and ends by itself: when every rank has its answer, or at the
//! first deadline of a rank that reported. After an error it stays until as many have been answered
//! as there are ranks, so that late ranks hear the same.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};

use super::acceptor::{Accepted, Acceptor};
use super::join::{self, Join, MAX_REPORT, Peer, Report, Verdict, take_frame};
use super::secret::Secret;
use super::socket;
use super::verdict::RendezvousError;
use super::wire::Damaged;
use crate::tree::neighbours;
use crate::watcher::{self, Handler, Registration, Watched};
use crate::{Error, Result};

/// How long after their deadline ranks may take to report whom they could not be connected with.
const LATE: Duration = Duration::from_millis(500);
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
    /// The rank behind each socket.
    ranks: HashMap<u32, u32>,
    phase: Phase,
    /// How many ranks are where the phase wants all.
    there: u32,
    failure: Option<RendezvousError>,
    answered: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Ranks report.
    Joining,
    /// They connect with their neighbours.
    Connecting,
    Ended,
}

struct Joined {
    socket: Watched,
    inbox: Vec<u8>,
    /// Where it can be reached.
    peer: Option<Peer>,
    connected: bool,
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
            ranks: HashMap::new(),
            phase: Phase::Joining,
            there: 0,
            failure: None,
            answered: 0,
        };
        let (root, registration) = watcher::register(|watch| {
            Ok(Arc::new(Root {
                acceptor: Acceptor::new(watch, listeners, secret, near_only)?,
                state: Mutex::new(state),
                ended: Condvar::new(),
                registration: Mutex::new(None),
            }))
        })?;
        let state = root.lock();
        if state.phase != Phase::Ended {
            *root.registration.lock().unwrap_or_else(PoisonError::into_inner) = Some(registration);
        }
        drop(state);
        Ok(root)
    }

    /// Waits until every rank was answered, but not for long.
    pub(super) fn wait_until_ended(&self, limit: Duration) {
        let state = self.lock();
        // Whether it ended or not, the caller goes on.
        let _ = self.ended.wait_timeout_while(state, limit, |state| state.phase != Phase::Ended);
    }

    /// The ranks that are awaited still, and the number of ranks; nothing once it is decided.
    pub(super) fn missing(&self) -> Option<(Vec<u32>, u32)> {
        let state = self.lock();
        let decided = state.failure.is_some() || state.phase == Phase::Ended;
        let world_size = state.world_size.filter(|_| !decided)?;
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
                state.ranks.insert(accepted.key, join.rank);
                let (inbox, peer) = (Vec::new(), None);
                let joined = Joined { socket: accepted.socket, inbox, peer, connected: false };
                state.joined.insert(join.rank, joined);
                mscclrs_log::debug!(
                    BOOTSTRAP,
                    peer = join.rank,
                    come = state.joined.len(),
                    world_size = size,
                    milliseconds = state.started.elapsed().as_millis() as u64,
                    "a rank has come to the rendezvous"
                );
            }
        }
        let expected = state.world_size.unwrap_or(0).max(join.world_size);
        if state.failure.is_some() && state.answered >= expected {
            self.end(state);
        }
    }

    /// What a rank that joined says.
    fn hear(&self, state: &mut State, rank: u32, report: Report) {
        let Some(joined) = state.joined.get_mut(&rank) else { return };
        match (state.phase, report) {
            (Phase::Joining, Report::Reachable(peer)) if joined.peer.is_none() => {
                joined.peer = Some(peer);
                state.there += 1;
                if state.world_size == Some(state.there) {
                    self.introduce(state);
                }
            }
            (Phase::Connecting, Report::Connected) if !joined.connected => {
                joined.connected = true;
                state.there += 1;
                if state.world_size == Some(state.there) {
                    self.succeed(state);
                }
            }
            (Phase::Connecting, Report::Failed { peer, why }) => {
                self.fail(state, RendezvousError::Unconnected { rank, peer, why });
                self.end(state);
            }
            _ => self.lose(state, rank),
        }
    }

    /// A rank ended, or says what no rank says at that time.
    fn lose(&self, state: &mut State, rank: u32) {
        if state.joined.remove(&rank).is_some() {
            state.answered += 1;
            self.fail(state, RendezvousError::RankLost { rank });
            if state.phase == Phase::Connecting {
                // All were here, so nobody comes late.
                self.end(state);
            }
        }
    }

    /// Tells all that reported.
    fn fail(&self, state: &mut State, failure: RendezvousError) {
        if state.failure.is_none() {
            mscclrs_log::info!(
                BOOTSTRAP,
                why = %Error::from(failure.clone()),
                "the rendezvous failed, which all ranks are told"
            );
            let sockets: Vec<_> =
                std::mem::take(&mut state.joined).into_values().map(|j| j.socket).collect();
            state.answered += sockets.len() as u32;
            answer(sockets, &Verdict::Failed(failure.clone()));
            state.failure = Some(failure);
        }
    }

    /// All have reported: each learns who its neighbours are.
    fn introduce(&self, state: &mut State) {
        // Nobody may meet this listener who looks for the next rendezvous at the same address.
        self.acceptor.close();
        state.phase = Phase::Connecting;
        state.there = 0;
        let size = state.joined.len() as u32;
        for (&rank, joined) in &state.joined {
            let peer = |peer| Some((peer, state.joined.get(&peer)?.peer.clone()?));
            let neighbours = neighbours(rank, size).into_iter().filter_map(peer).collect();
            let message = Verdict::Neighbours(neighbours).encode();
            // There is room for it in a socket that was not written to; a failure shows as its end.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = send(&joined.socket, &message, flags);
        }
    }

    fn succeed(&self, state: &mut State) {
        let sockets = std::mem::take(&mut state.joined).into_values().map(|j| j.socket).collect();
        answer(sockets, &Verdict::Go);
        self.end(state);
    }

    fn end(&self, state: &mut State) {
        state.phase = Phase::Ended;
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
    /// Ranks that are not where the phase wants all.
    fn missing(&self, world_size: u32) -> Vec<u32> {
        let there = |joined: &Joined| match self.phase {
            Phase::Joining => joined.peer.is_some(),
            _ => joined.connected,
        };
        let missing = |rank: &u32| !self.joined.get(rank).is_some_and(there);
        (0..world_size.min(MAX_RANKS)).filter(missing).collect()
    }
}

impl Handler for Root {
    fn ready(&self, key: u32) {
        let mut state = self.lock();
        if state.phase == Phase::Ended {
            return;
        }
        let Some(&rank) = state.ranks.get(&key) else {
            if let Some(accepted) = self.acceptor.ready(key) {
                self.join(&mut state, accepted);
            }
            return;
        };
        let Some(joined) = state.joined.get_mut(&rank) else { return };
        // What it said before its end counts.
        let open = joined.fill();
        let mut reports = Vec::new();
        let whole = loop {
            match take_frame(&mut joined.inbox, MAX_REPORT).map(|f| f.map(|f| Report::decode(&f))) {
                Ok(Some(Ok(report))) => reports.push(report),
                Ok(None) => break true,
                Ok(Some(Err(Damaged))) | Err(Damaged) => break false,
            }
        };
        for report in reports {
            self.hear(&mut state, rank, report);
        }
        if !(open && whole) {
            self.lose(&mut state, rank);
        }
    }

    fn tick(&self) {
        self.acceptor.tick();
        let mut state = self.lock();
        let late = if state.phase == Phase::Connecting { LATE } else { Duration::ZERO };
        if state.phase == Phase::Ended || Instant::now() < state.deadline + late {
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

impl Joined {
    /// Takes in what has come; false at the end.
    fn fill(&mut self) -> bool {
        let recv_now = |buffer: &mut [u8]| socket::recv_now(self.socket.as_fd(), buffer);
        join::fill(&mut self.inbox, MAX_REPORT, recv_now).unwrap_or(false)
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

//! Ranks that are processes on any hosts, over TCP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::acceptor::Acceptor;
use super::admission::Heard;
use super::collective::{self, Call, Post, Turn};
use super::config::{Config, Trust};
use super::dial::{self, Failed};
use super::interfaces::{self, InterfaceFilter};
use super::join::{Join, MAIL, MAX_ADDRESSES, Peer, Report, STREAM, Verdict, framed};
use super::letter;
use super::mailbox::{Key, Missed};
use super::notice::{Notice, Times};
use super::office::{Ear, First, Office};
use super::root::Root;
use super::secret::Secret;
use super::verdict::{self, RendezvousError};
use super::wire::{Reader, Writer};
use super::{Bootstrap, identity, socket};
use crate::liveness::{Branch, Liveness, Loss, LossCause};
use crate::tree::neighbours;
use crate::watcher::{self, Registration, Watched};
use crate::{Error, Result};

/// The label of the connections that the tree of ranks is made of.
const TREE: u32 = 0xffff_0002;

/// How long this rank waits to hear what became of a peer that it could not reach.
const WORD: Duration = Duration::from_millis(500);

/// How much later than at the deadline the rendezvous may be heard.
const SLACK: Duration = Duration::from_secs(2);

/// One rank of a group over TCP.
///
/// Creating it waits until all ranks have come together. From then on the ranks watch over each other:
/// when one is lost, all calls of all ranks end with an error that names it. Connections for messages
/// are made when they are first needed, and both sides prove the secret on each.
pub struct TcpBootstrap {
    // First, so that nothing is received any more when the rest goes.
    _registration: Registration,
    /// The tree of ranks, from when this rank is connected with its neighbours.
    liveness: Option<Liveness>,
    office: Arc<Office>,
    rank: u32,
    timeout: Duration,
    secret: Secret,
    /// By rank; before all have come together only the neighbours.
    peers: Vec<Peer>,
    /// The number of the interface that link-local addresses are reached by.
    scope: u32,
    /// The connections this rank sends on, by rank.
    outgoing: Vec<Mutex<Outgoing>>,
    turn: Turn,
}

enum Outgoing {
    Broken(String),
    None,
    Open(Watched),
}

impl TcpBootstrap {
    /// Takes part in the rendezvous; with an address, rank 0 serves it. Blocks until all ranks have
    /// come, or until the time limit. What is wrong with the ranks is the same error on each.
    pub fn new(config: Config) -> Result<TcpBootstrap> {
        crate::logging::begin()?;
        let _span = mscclrs_log::during!("bootstrap", rank = config.rank);
        let started = Instant::now();
        let timeout = config.timeout()?;
        let deadline = started + timeout;
        if config.world_size == 0 {
            return Err(Error::NoSuchRank {
                operation: "creating a bootstrap".into(),
                rank: config.rank,
                world_size: 0,
            });
        }
        let filter = config.interfaces()?;
        let trust = config.trust()?;
        let meeting = config.meeting(&filter, &trust, deadline)?;
        mscclrs_log::info!(
            BOOTSTRAP,
            rendezvous = meeting.text,
            world_size = config.world_size,
            limit_seconds = timeout.as_secs_f64(),
            "meeting the other ranks"
        );
        let root = config.serve(&meeting, &trust, deadline)?;
        let times = Times { started, deadline };
        let outcome = TcpBootstrap::join(&config, &filter, &meeting, trust, times, root.as_deref());
        if let (Some(root), Err(_)) = (&root, &outcome) {
            // The others are to hear the same before this process may end.
            let left = deadline.saturating_duration_since(Instant::now());
            root.wait_until_ended(left.min(Duration::from_secs(1)));
        }
        outcome
    }

    fn join(
        config: &Config,
        filter: &InterfaceFilter,
        meeting: &Meeting,
        trust: Trust,
        times: Times,
        root: Option<&Root>,
    ) -> Result<TcpBootstrap> {
        let Trust { secret, near_only } = trust;
        let Times { started, deadline } = times;
        let mut notice = Notice::new(times);
        let no_rendezvous = |last: String| Error::NoRendezvous {
            rank: config.rank,
            address: meeting.text.clone(),
            waited: started.elapsed(),
            last,
        };
        let failing = |last: &Failed| {
            mscclrs_log::trace!(BOOTSTRAP, why = last.text(), "a try to connect failed");
            notice.tell(|waited| {
                let (rank, at, last) = (config.rank, &meeting.text, last.text());
                format!("rank {rank} {waited} for rank 0 at {at} (last try: {last})")
            });
        };
        let to_root = dial::until_deadline(&meeting.to, &meeting.from, &secret, deadline, failing);
        let to_root = to_root.map_err(|failed| match failed {
            Failed::Secret => Error::SecretRefused { address: meeting.text.clone() },
            failed => no_rendezvous(failed.text()),
        })?;
        // Whoever serves the rendezvous is gone: of an address it is rank 0.
        let hung_up = |why: String| match meeting.served_by {
            Some(rank) => RendezvousError::RankLost { rank }.into(),
            None => no_rendezvous(why),
        };
        let gone = |error: std::io::Error| hung_up(error.to_string());
        // At once: from here on all are told if this rank ends.
        let join = Join {
            build: config.build.clone(),
            rank: config.rank,
            world_size: config.world_size,
            remaining_ms: deadline.saturating_duration_since(Instant::now()).as_millis() as u64,
        };
        socket::send_all(to_root.as_fd(), &framed(Writer(join.encode())), deadline)
            .map_err(gone)?;
        let local = socket::local_address(to_root.as_fd()).map_err(gone)?;
        let listeners = listen(local, meeting, filter)?;
        let addresses: Vec<_> = listeners.iter().map(|(_, address)| *address).collect();
        let listeners = listeners.into_iter().map(|(fd, _)| fd).collect();
        mscclrs_log::info!(
            BOOTSTRAP,
            ?addresses,
            why = why_there(local, meeting, filter),
            milliseconds = started.elapsed().as_millis() as u64,
            "the rendezvous is reached; peers find this rank at these addresses"
        );
        let (office, registration) = watcher::register(|watch| {
            let acceptor = Acceptor::new(watch.clone(), listeners, secret.clone(), near_only)?;
            Ok(Arc::new(Office::new(config.rank, config.world_size, acceptor, watch)))
        })?;
        let me = Peer {
            addresses,
            host_id: config.host_id.unwrap_or_else(identity::host_id),
            process_id: identity::process_id(),
        };
        office.await_admission(to_root)?;
        // A rendezvous that ended meanwhile has said why, or will not.
        let report = |report: Report| drop(office.admission.report(&report, deadline));
        report(Report::Reachable(me.clone()));
        let mut missing = || {
            let Some((missing, world_size)) = root.and_then(Root::missing) else { return };
            notice.tell(|waited| {
                let (at, count, ranks) = (&meeting.text, missing.len(), verdict::listed(&missing));
                format!("rank 0 at {at} {waited} for {count} of {world_size} ranks ({ranks})")
            });
        };
        let mut hear = || match office.admission.hear(deadline + SLACK, &mut missing) {
            Heard::Verdict(Verdict::Failed(error)) => Err(error.into()),
            Heard::Verdict(verdict) => Ok(verdict),
            Heard::Ended(why) => Err(hung_up(why)),
            Heard::Deadline => Err(no_rendezvous("it was reached, but did not answer".into())),
        };
        let nonsense = || Err(no_rendezvous("it answered nonsense".into()));
        let Verdict::Neighbours(introduced) = hear()? else { return nonsense() };
        let mut group = TcpBootstrap {
            _registration: registration,
            liveness: None,
            office: office.clone(),
            rank: config.rank,
            timeout: config.timeout()?,
            secret,
            peers: vec![Peer::default(); config.world_size as usize],
            scope: match local {
                SocketAddr::V6(v6) => v6.scope_id(),
                SocketAddr::V4(_) => 0,
            },
            outgoing: (0..config.world_size).map(|_| Mutex::new(Outgoing::None)).collect(),
            turn: Turn::default(),
        };
        let expected = neighbours(config.rank, config.world_size);
        if !introduced.iter().map(|(rank, _)| rank).eq(&expected) {
            return nonsense();
        }
        for (rank, peer) in introduced {
            group.peers[rank as usize] = peer;
        }
        group.peers[config.rank as usize] = me.clone();
        let connected = group.connect_tree(&expected, deadline);
        report(match connected {
            Ok(()) => Report::Connected,
            Err((peer, why)) => Report::Failed { peer, why },
        });
        match hear() {
            Ok(Verdict::Go) => office.admission.close(),
            Ok(_) => return nonsense(),
            Err(error) => return Err(group.told_why(error)),
        }
        group.meet(&me)?;
        let hosts: BTreeSet<u64> = group.peers.iter().map(|peer| peer.host_id).collect();
        mscclrs_log::info!(
            BOOTSTRAP,
            world_size = config.world_size,
            hosts = hosts.len(),
            milliseconds = started.elapsed().as_millis() as u64,
            "all ranks have come"
        );
        Ok(group)
    }

    /// Connects with the neighbours, and hears of all ranks from then on. An error says which neighbour
    /// it cannot be connected with.
    fn connect_tree(
        &mut self,
        neighbours: &[u32],
        deadline: Instant,
    ) -> std::result::Result<(), (u32, String)> {
        let connect = |peer: u32| {
            let operation = format!("connecting with rank {peer}");
            let call = Call { operation, started: Instant::now(), deadline };
            let stream = self.stream_in(peer, TREE, &call).map_err(|e| (peer, e.to_string()))?;
            let elsewhere = self.host_id(peer) != self.host_id(self.rank);
            Ok(Branch { peer, elsewhere, stream })
        };
        // A child that does not answer must not keep this rank from the other, or the one that is there
        // would be told of this rank.
        let branches = match *neighbours {
            [ref before @ .., first, second] if first > self.rank => std::thread::scope(|scope| {
                let beside = std::thread::Builder::new().spawn_scoped(scope, || connect(first));
                let second = connect(second);
                let first = match beside {
                    Ok(beside) => beside.join().unwrap_or_else(|_| {
                        Err((first, "the thread that connects with it panicked".into()))
                    }),
                    Err(_) => connect(first),
                };
                let before = before.iter().map(|&peer| connect(peer));
                before.chain([first, second]).collect::<std::result::Result<Vec<_>, _>>()
            }),
            _ => neighbours.iter().map(|&peer| connect(peer)).collect(),
        }?;
        let ear = Box::new(Ear(self.office.clone()));
        let liveness = Liveness::of_bootstrap(self.rank, ear, branches);
        self.liveness = Some(liveness.map_err(|error| (self.rank, error.to_string()))?);
        Ok(())
    }

    /// The error of a rank whose rendezvous came to nothing although its neighbours were there.
    fn told_why(&self, error: Error) -> Error {
        // The others only see that this rank does not answer, unless it has told them.
        if let Some(starved) = self.office.starved()
            && !error.to_string().contains(&starved.to_string())
        {
            let what = format!("{error}; rank {} cannot accept connections", self.rank);
            return Error::io(what, starved);
        }
        let Some(liveness) = &self.liveness else { return error };
        match &error {
            // The others may be on their way already, and have to hear it from here.
            Error::Rendezvous(RendezvousError::RankLost { rank }) => {
                liveness.report(Loss { rank: *rank, cause: LossCause::HungUp });
            }
            // Whoever served it may have been a rank, whose neighbours know.
            Error::NoRendezvous { .. } => {
                if let Some(rank) = self.office.mailbox.hear_of_loss(WORD)
                    && rank != self.rank
                {
                    return RendezvousError::RankLost { rank }.into();
                }
            }
            _ => {}
        }
        error
    }

    /// The ranks tell each other where each is.
    fn meet(&mut self, me: &Peer) -> Result<()> {
        let all = collective::all_gather(self, &self.turn, &me.encode(Writer::default()).0)?;
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            let mut reader = Reader(&bytes);
            let peer = Peer::decode(&mut reader).and_then(|peer| reader.end().map(|()| peer));
            peer.map_err(|_| Error::Protocol {
                operation: "meeting all ranks".into(),
                rank: self.rank,
                peer: rank as u32,
                why: "sent a damaged message".into(),
            })
        };
        let peers = all.into_iter().enumerate().map(read).collect::<Result<Vec<Peer>>>()?;
        self.peers = peers;
        Ok(())
    }

    /// The error of a call to a peer that this rank found gone by itself. The tree of ranks may know
    /// better: the peer went because another was lost.
    fn gone(&self, peer: u32, why: String, call: &Call) -> Error {
        let limit = WORD.min(call.deadline.saturating_duration_since(Instant::now()));
        let heard = self.office.mailbox.hear_why_gone(peer, limit);
        call.error(self.rank, peer, heard.unwrap_or(Missed::Gone(why)))
    }

    /// Ends as a killed process does: its sockets close, and nothing is said.
    #[cfg(test)]
    pub(super) fn die(self) {
        if let Some(liveness) = &self.liveness {
            liveness.fall_silent();
        }
    }

    /// How many connections for messages this rank has opened.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        let open = |slot: &&Mutex<Outgoing>| matches!(*slot.lock().unwrap(), Outgoing::Open(_));
        self.outgoing.iter().filter(open).count()
    }

    fn call(&self, operation: String, peer: u32) -> Result<Call> {
        let call = Call::new(operation, self.timeout);
        call.check_rank(peer, self.world_size())?;
        Ok(call)
    }

    /// Why nothing came from a peer, which may be this rank's own fault.
    fn missed(&self, peer: u32, missed: Missed, call: &Call) -> Error {
        match (&missed, self.office.starved()) {
            // A peer that cannot get through goes away.
            (Missed::Deadline | Missed::Gone(_), Some(starved)) => {
                let (rank, waited) = (self.rank, call.started.elapsed().as_secs_f64());
                let call = &call.operation;
                let what = format!(
                    "rank {rank} waited {waited:.1} s in {call} for rank {peer}, whose connection it \
                     cannot accept"
                );
                Error::io(what, starved)
            }
            _ => call.error(self.rank, peer, missed),
        }
    }

    /// A new connection to a peer.
    fn dial(&self, peer: u32, purpose: u8, label: u32, call: &Call) -> Result<OwnedFd> {
        let same_host = self.host_id(peer) == self.host_id(self.rank);
        let offered = &self.peers[peer as usize].addresses;
        // Another host's loopback is not this one's; but hosts may be told apart on one machine.
        let only_loopback = offered.iter().all(|address| address.ip().is_loopback());
        let addresses: Vec<SocketAddr> = offered
            .iter()
            .filter(|address| same_host || only_loopback || !address.ip().is_loopback())
            .map(|address| self.with_scope(*address))
            .collect();
        let connected = loop {
            if let Some(missed) = self.office.mailbox.why_gone(peer) {
                return Err(call.error(self.rank, peer, missed));
            }
            let mut nobody = true;
            let mut last = String::new();
            let mut connected = None;
            for &address in &addresses {
                match dial::try_once(address, None, &self.secret, call.deadline) {
                    Ok(fd) => {
                        connected = Some(fd);
                        break;
                    }
                    Err(failed) => {
                        nobody &= matches!(failed, Failed::NobodyThere);
                        last = format!("{address}: {}", failed.text());
                    }
                }
            }
            match connected {
                Some(fd) => break fd,
                // It listened before the table was made, so it does no more.
                None if nobody => return Err(self.gone(peer, last, call)),
                None if Instant::now() >= call.deadline => {
                    return Err(call.error(self.rank, peer, Missed::Deadline));
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let first = First { purpose, from: self.rank, to: peer, label };
        socket::send_all(connected.as_fd(), &first.encode(), call.deadline)
            .map_err(|error| self.gone(peer, error.to_string(), call))?;
        mscclrs_log::debug!(
            BOOTSTRAP,
            rank = self.rank,
            peer,
            purpose = if purpose == STREAM { "stream" } else { "messages" },
            same_host,
            "connected to a peer"
        );
        Ok(connected)
    }

    /// A socket to a peer, which makes the same call.
    fn stream_in(&self, peer: u32, label: u32, call: &Call) -> Result<OwnedFd> {
        let stream = if self.rank < peer {
            self.dial(peer, STREAM, label, call)?
        } else {
            self.office
                .mailbox
                .take_stream(peer, label, call.deadline)
                .map_err(|missed| self.missed(peer, missed, call))?
        };
        rustix::io::ioctl_fionbio(&stream, false)
            .map_err(|error| Error::io("cannot make a socket block", error))?;
        Ok(stream)
    }

    /// A scope has a meaning on one host only: ours is that of the way to the rendezvous.
    fn with_scope(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V6(mut v6) if v6.scope_id() != 0 => {
                v6.set_scope_id(self.scope);
                v6.into()
            }
            other => other,
        }
    }
}

impl Bootstrap for TcpBootstrap {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.peers.len() as u32
    }

    fn send(&self, peer: u32, tag: u32, data: &[u8]) -> Result<()> {
        let call = self.call(format!("send to rank {peer} with tag {tag}"), peer)?;
        call.check_length(self.rank, peer, data.len())?;
        self.post(peer, Key::User(tag), data, &call)
    }

    fn recv(&self, peer: u32, tag: u32) -> Result<Vec<u8>> {
        let call = self.call(format!("recv from rank {peer} with tag {tag}"), peer)?;
        self.take(peer, Key::User(tag), &call)
    }

    fn all_gather(&self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        collective::all_gather(self, &self.turn, data)
    }

    fn barrier(&self) -> Result<()> {
        collective::barrier(self, &self.turn)
    }

    fn host_id(&self, rank: u32) -> u64 {
        self.peers[rank as usize].host_id
    }

    fn process_id(&self, rank: u32) -> u64 {
        self.peers[rank as usize].process_id
    }

    fn stream(&self, peer: u32, label: u32) -> Result<OwnedFd> {
        let call = self.call(format!("stream to rank {peer}"), peer)?;
        if peer == self.rank {
            return Err(call.protocol(self.rank, peer, "is this rank itself".into()));
        }
        self.stream_in(peer, label, &call)
    }

    fn lost(&self) -> Option<Loss> {
        self.liveness.as_ref().and_then(Liveness::lost)
    }

    fn report_loss(&self, loss: &Loss) {
        if let Some(liveness) = &self.liveness {
            liveness.report(loss.clone());
        }
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl Post for TcpBootstrap {
    fn post(&self, to: u32, key: Key, data: &[u8], call: &Call) -> Result<()> {
        if to == self.rank {
            self.office.mailbox.put(to, key, data.to_vec());
            return Ok(());
        }
        if let Some(missed) = self.office.mailbox.why_gone(to) {
            return Err(call.error(self.rank, to, missed));
        }
        let mut slot = self.outgoing[to as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if let Outgoing::None = *slot {
            let connected = self.dial(to, MAIL, 0, call)?;
            *slot = Outgoing::Open(self.office.watch_outgoing(to, connected)?);
        }
        let open = match &*slot {
            Outgoing::Open(open) => open,
            Outgoing::Broken(why) => return Err(self.gone(to, why.clone(), call)),
            Outgoing::None => return Err(self.gone(to, "there is no connection".into(), call)),
        };
        let mut head = letter::header(key, data.len());
        // Small ones in one piece: two would be two packets.
        let rest = if data.len() <= 16 << 10 {
            head.extend_from_slice(data);
            &[][..]
        } else {
            data
        };
        let sent = socket::send_all(open.as_fd(), &head, call.deadline)
            .and_then(|()| socket::send_all(open.as_fd(), rest, call.deadline));
        if let Err(error) = sent {
            // What was sent of the message cannot be taken back.
            let why = format!("the connection to it failed: {error}");
            *slot = Outgoing::Broken(why.clone());
            drop(slot);
            return Err(match error.kind() {
                std::io::ErrorKind::TimedOut => call.error(self.rank, to, Missed::Deadline),
                _ => self.gone(to, why, call),
            });
        }
        Ok(())
    }

    fn take(&self, from: u32, key: Key, call: &Call) -> Result<Vec<u8>> {
        self.office
            .mailbox
            .take(from, key, call.deadline)
            .map_err(|missed| self.missed(from, missed, call))
    }
}

/// Where ranks meet, in numbers.
pub(super) struct Meeting {
    pub(super) text: String,
    pub(super) to: Vec<SocketAddr>,
    /// Addresses to connect from; any if there are none.
    pub(super) from: Vec<SocketAddr>,
    /// Where rank 0 listens.
    pub(super) listen: Vec<SocketAddr>,
    /// The rank that serves it; of a unique id nobody knows.
    pub(super) served_by: Option<u32>,
    /// All ranks are on this host.
    pub(super) loopback: bool,
}

/// Listens for peers: on the address that the rendezvous is reached by, where others can use it too.
fn listen(
    local: SocketAddr,
    meeting: &Meeting,
    filter: &InterfaceFilter,
) -> Result<Vec<(OwnedFd, SocketAddr)>> {
    let mut chosen = if !meeting.from.is_empty() {
        meeting.from.clone()
    } else if !filter.is_any() && !meeting.loopback {
        filter.choose(&interfaces::list()?)?
    } else if meeting.loopback || !local.ip().is_loopback() {
        vec![local]
    } else {
        // A host's own name often leads to its loopback, which other hosts cannot use.
        let mut all = filter.choose(&interfaces::list()?)?;
        all.push(local);
        all
    };
    chosen.truncate(MAX_ADDRESSES.into());
    chosen.dedup();
    let one = |mut address: SocketAddr| {
        address.set_port(0);
        socket::listen_at(address)
            .map_err(|error| Error::io(format!("cannot listen at {}", address.ip()), error))
    };
    chosen.into_iter().map(one).collect()
}

/// What [`listen`] goes by.
fn why_there(local: SocketAddr, meeting: &Meeting, filter: &InterfaceFilter) -> &'static str {
    if !meeting.from.is_empty() {
        "the address of the rendezvous names their interface"
    } else if meeting.loopback {
        "the rendezvous is on this host's loopback"
    } else if !filter.is_any() {
        "MSCCLRS_SOCKET_IFNAME chose their interfaces"
    } else if local.ip().is_loopback() {
        "the rendezvous is reached by loopback, which other hosts cannot use"
    } else {
        "the way to the rendezvous begins there"
    }
}

impl Config {
    /// Rank 0 serves the rendezvous of an address; whoever made a unique id does already.
    fn serve(
        &self,
        meeting: &Meeting,
        trust: &Trust,
        deadline: Instant,
    ) -> Result<Option<Arc<Root>>> {
        if meeting.listen.is_empty() || self.rank != 0 {
            return Ok(None);
        }
        // The rendezvous before may still be there.
        let patience = deadline.min(Instant::now() + Duration::from_secs(5));
        let mut listeners = Vec::new();
        for &address in &meeting.listen {
            let listener = loop {
                match socket::listen_at(address) {
                    Ok((listener, _)) => break listener,
                    Err(error)
                        if error.kind() == std::io::ErrorKind::AddrInUse
                            && Instant::now() < patience =>
                    {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    Err(error) => {
                        let what = format!("rank 0 cannot serve the rendezvous at {address}");
                        return Err(Error::io(what, error));
                    }
                }
            };
            listeners.push(listener);
            mscclrs_log::info!(BOOTSTRAP, %address, "serving the rendezvous");
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let size = Some(self.world_size);
        Root::serve(listeners, trust.secret.clone(), trust.near_only, size, left).map(Some)
    }
}

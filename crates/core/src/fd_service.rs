//! Passing file descriptors between processes of one host.
//!
//! A process offers a descriptor under a ticket; whoever brings the ticket gets a duplicate. Only
//! processes of the same user are served, by what the kernel says of the other end, and both sides
//! look. The ticket's token is random and compared in constant time. The socket has an abstract
//! name, so that even a killed process leaves no file behind. Requests are served on the watcher's
//! thread, without waiting for anyone. One descriptor is kept for them, so that others are served even
//! where this process has no other left.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recv, recvmsg, send, sendmsg, socket_with, sockopt,
};
use serde::{Deserialize, Serialize};

use crate::bootstrap::random;
use crate::starved::Starved;
use crate::watcher::{self, Handler, Registration, Watch, Watched};
use crate::{Error, Result};

const TOKEN: usize = 32;
/// An id, then the token.
const REQUEST: usize = 8 + TOKEN;
const GRANTED: u8 = 1;
const UNKNOWN: u8 = 2;
/// How long a request may take to be read.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long a connection is not pushed out for want of descriptors: its request is on the way.
const FRESH: Duration = Duration::from_millis(200);
/// How many connections may be at it at a time; a new one pushes out the oldest.
const PENDING: usize = 256;
/// Keys below are not connections.
const FIRST_KEY: u32 = 1;

/// What a process needs to fetch a descriptor. Secret: whoever of the same user has it gets the
/// descriptor.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdTicket {
    name: String,
    id: u64,
    token: [u8; TOKEN],
}

/// A descriptor on offer; dropping it takes the offer back.
pub struct FdOffer {
    service: Arc<FdService>,
    ticket: FdTicket,
}

/// This process's offers. There is one service a process, as long as anything is on offer.
pub struct FdService {
    // First, so that nothing is served any more when the rest goes.
    _registration: Registration,
    server: Arc<Server>,
}

impl FdService {
    /// The service of this process, started if it does not run.
    pub fn current() -> Result<Arc<FdService>> {
        static CURRENT: Mutex<(u32, Weak<FdService>)> = Mutex::new((0, Weak::new()));
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = std::process::id();
        // The child of a fork does not serve what its parent offered.
        if current.0 == pid
            && let Some(service) = current.1.upgrade()
        {
            return Ok(service);
        }
        let service = Arc::new(FdService::start()?);
        *current = (pid, Arc::downgrade(&service));
        Ok(service)
    }

    /// Offers a descriptor to whoever has the ticket.
    pub fn offer(self: &Arc<Self>, fd: OwnedFd) -> Result<FdOffer> {
        let token = random()?;
        let mut state = self.server.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.offers.insert(id, (token, Arc::new(fd)));
        let ticket = FdTicket { name: self.server.name.clone(), id, token };
        Ok(FdOffer { service: Arc::clone(self), ticket })
    }

    fn start() -> Result<FdService> {
        let unique: [u8; 16] = random()?;
        let name = unique.iter().fold(String::from("mscclrs-"), |name, b| format!("{name}{b:02x}"));
        let fail = |error| Error::io("cannot serve file descriptors", error);
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(fail)?;
        let fd = unix_socket().map_err(fail)?;
        bind(&fd, &address).map_err(fail)?;
        listen(&fd, 1024).map_err(fail)?;
        let (server, registration) = watcher::register(|watch| {
            let state = State {
                listener: watch.watch(fd, 0)?,
                offers: HashMap::new(),
                next_id: 1,
                pending: BTreeMap::new(),
                next_key: FIRST_KEY,
                starved: Starved::default(),
                spare: spare(),
            };
            Ok(Arc::new(Server { name, watch, state: Mutex::new(state) }))
        })?;
        Ok(FdService { _registration: registration, server })
    }
}

impl FdOffer {
    /// What the other process needs.
    pub fn ticket(&self) -> &FdTicket {
        &self.ticket
    }
}

impl Drop for FdOffer {
    fn drop(&mut self) {
        self.service.server.lock().offers.remove(&self.ticket.id);
    }
}

impl FdTicket {
    /// A duplicate of the descriptor, close-on-exec. Blocks until it has come or the deadline has
    /// passed.
    pub fn fetch(&self, deadline: Instant) -> Result<OwnedFd> {
        let fail = |why: String| Error::Fetch { why };
        let system = |errno: Errno| match errno {
            Errno::CONNREFUSED | Errno::NOENT => {
                fail("the process that offered it is gone, or on another host".into())
            }
            Errno::CONNRESET | Errno::PIPE => fail("the process that offered it hung up".into()),
            Errno::TIMEDOUT => fail("the process that offered it did not answer in time".into()),
            other => fail(format!("{other}{}", mscclrs_gpu::limit_hint(&other.into()))),
        };
        let address = SocketAddrUnix::new_abstract_name(self.name.as_bytes()).map_err(system)?;
        let fd = unix_socket().map_err(system)?;
        loop {
            match connect(&fd, &address) {
                Ok(()) => break,
                // More connections wait than it was said to take; there is nothing to poll for.
                Err(Errno::AGAIN) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::AGAIN) => return Err(system(Errno::TIMEDOUT)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(system(error)),
            }
        }
        if !is_same_user(fd.as_fd()) {
            return Err(fail("the socket belongs to another user".into()));
        }
        let request = [&self.id.to_le_bytes()[..], &self.token].concat();
        // An empty socket has room for it.
        match send(&fd, &request, SendFlags::NOSIGNAL) {
            Ok(REQUEST) => {}
            Ok(_) => return Err(fail("the request was cut short".into())),
            Err(error) => return Err(system(error)),
        }
        let (answer, received) = receive(fd.as_fd(), deadline).map_err(system)?;
        match (answer, received) {
            (Some(GRANTED), Some(received)) => Ok(received),
            (Some(UNKNOWN), _) => Err(fail("it is not on offer any more".into())),
            (None, _) => Err(fail("the process that offered it hung up".into())),
            _ => Err(fail("the answer is damaged".into())),
        }
    }
}

/// Without the token.
impl fmt::Debug for FdTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FdTicket")
            .field("name", &self.name)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

struct Server {
    name: String,
    watch: Watch,
    state: Mutex<State>,
}

struct State {
    listener: Watched,
    offers: HashMap<u64, ([u8; TOKEN], Arc<OwnedFd>)>,
    next_id: u64,
    /// By key, so oldest first.
    pending: BTreeMap<u32, Pending>,
    next_key: u32,
    starved: Starved,
    /// Closed to accept a connection with its number, and opened when that has been served.
    spare: Option<OwnedFd>,
}

struct Pending {
    socket: Watched,
    deadline: Instant,
    request: Vec<u8>,
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&self, state: &mut State) {
        for _ in 0..64 {
            let fd = match accept_with(&state.listener, SocketFlags::CLOEXEC) {
                Ok(fd) => fd,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) if Starved::is(error) => {
                    state.starved.tell(error);
                    if state.spare.take().is_some() {
                        continue;
                    }
                    let oldest = state.pending.first_entry();
                    let fresh = Instant::now() + PATIENCE - FRESH;
                    match oldest.filter(|oldest| oldest.get().deadline < fresh) {
                        Some(oldest) => drop(oldest.remove()),
                        None => std::thread::sleep(Duration::from_millis(1)),
                    }
                    return;
                }
                Err(_) => return,
            };
            if !is_same_user(fd.as_fd()) {
                continue;
            }
            let key = state.next_key;
            state.next_key = key.checked_add(1).unwrap_or(FIRST_KEY);
            let Ok(socket) = self.watch.watch(fd, key) else { continue };
            if state.pending.len() >= PENDING {
                state.pending.pop_first();
            }
            let deadline = Instant::now() + PATIENCE;
            state.pending.insert(key, Pending { socket, deadline, request: Vec::new() });
        }
    }
}

impl Handler for Server {
    fn ready(&self, key: u32) {
        let mut state = self.lock();
        if key < FIRST_KEY {
            self.accept(&mut state);
            return;
        }
        let Some(mut pending) = state.pending.remove(&key) else { return };
        match pending.fill() {
            Ok(true) => state.answer(&pending),
            Ok(false) => {
                state.pending.insert(key, pending);
                return;
            }
            Err(_) => {}
        }
        drop(pending);
        state.keep_spare();
    }

    fn tick(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        state.pending.retain(|_, pending| pending.deadline > now);
        state.keep_spare();
    }

    fn needs_tick(&self) -> bool {
        !self.lock().pending.is_empty()
    }
}

impl State {
    fn keep_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = spare();
        }
    }

    /// One answer a connection. The other side may be gone, which is its own affair.
    fn answer(&self, to: &Pending) {
        let (id, token) = to.request.split_at(8);
        let id = id.try_into().map_or(0, u64::from_le_bytes);
        // The same work whether the id is known or not.
        let (expected, fd) = match self.offers.get(&id) {
            Some((expected, fd)) => (*expected, Some(fd)),
            None => ([0; TOKEN], None),
        };
        let equal = is_equal(&expected, token);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match fd {
            Some(fd) if equal => {
                let fds = [fd.as_fd()];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                ancillary.push(SendAncillaryMessage::ScmRights(&fds));
                let _ = sendmsg(&to.socket, &[IoSlice::new(&[GRANTED])], &mut ancillary, flags);
            }
            _ => {
                let _ = send(&to.socket, &[UNKNOWN], flags);
            }
        }
    }
}

impl Pending {
    /// Whether the request is whole; never reads beyond it.
    fn fill(&mut self) -> rustix::io::Result<bool> {
        while self.request.len() < REQUEST {
            let mut chunk = [0; REQUEST];
            let room = REQUEST - self.request.len();
            match recv(&self.socket, &mut chunk[..room], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Errno::CONNRESET),
                Ok((count, _)) => self.request.extend_from_slice(&chunk[..count]),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// The answer and the descriptor that came with it, if any; surplus descriptors are closed.
fn receive(
    fd: BorrowedFd<'_>,
    deadline: Instant,
) -> rustix::io::Result<(Option<u8>, Option<OwnedFd>)> {
    loop {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(fd, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
            Ok(message) => {
                // The descriptor has come, and this process has no room for it.
                if message.flags.contains(ReturnFlags::CTRUNC) {
                    return Err(Errno::MFILE);
                }
                let mut received = None;
                for part in ancillary.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = part {
                        received = received.or(fds.last());
                    }
                }
                return Ok(((message.bytes == 1).then_some(byte[0]), received));
            }
            Err(Errno::AGAIN) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Errno::TIMEDOUT);
                }
                let left = left.min(Duration::from_secs(3600));
                let limit =
                    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// A descriptor of no use; without it the service starves with its process.
fn spare() -> Option<OwnedFd> {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    rustix::event::eventfd(0, flags).ok()
}

fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn is_same_user(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_peercred(fd).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

fn is_equal(a: &[u8; TOKEN], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b));
    std::hint::black_box(differing) == 0 && b.len() == TOKEN
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(3)
    }

    /// Something to recognise: the reading end of a pipe with a byte in it.
    fn marked(mark: u8) -> OwnedFd {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        File::from(writer).write_all(&[mark]).unwrap();
        reader
    }

    fn mark(fd: OwnedFd) -> u8 {
        let mut byte = [0];
        File::from(fd).read_exact(&mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn tickets_fetch_their_own_descriptor_and_survive_serialization() {
        let service = FdService::current().unwrap();
        let offers: Vec<_> = (0..20).map(|i| service.offer(marked(i)).unwrap()).collect();
        for (i, offer) in offers.iter().enumerate().rev() {
            let text = serde_json::to_string(offer.ticket()).unwrap();
            let ticket: FdTicket = serde_json::from_str(&text).unwrap();
            let fetched = ticket.fetch(soon()).unwrap();
            let flags = rustix::io::fcntl_getfd(&fetched).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            assert_eq!(usize::from(mark(fetched)), i);
        }
    }

    #[test]
    fn what_is_not_on_offer_is_refused() {
        let service = FdService::current().unwrap();
        let offer = service.offer(marked(1)).unwrap();
        let good = offer.ticket().clone();
        let mut wrong_token = good.clone();
        wrong_token.token[31] ^= 1;
        for ticket in [wrong_token, FdTicket { id: u64::MAX, ..good.clone() }] {
            let error = ticket.fetch(soon()).unwrap_err().to_string();
            assert!(error.contains("not on offer"), "{error}");
        }
        drop(offer);
        assert!(good.fetch(soon()).unwrap_err().to_string().contains("not on offer"));
        let nobody = FdTicket { name: "mscclrs-nobody".into(), ..good.clone() };
        assert!(nobody.fetch(soon()).unwrap_err().to_string().contains("gone"));
        let long = FdTicket { name: "x".repeat(500), ..good };
        assert!(long.fetch(soon()).is_err());
    }

    #[test]
    fn strangers_who_say_nothing_or_too_much_do_not_disturb() {
        let service = FdService::current().unwrap();
        let offer = service.offer(marked(7)).unwrap();
        let address = SocketAddrUnix::new_abstract_name(offer.ticket.name.as_bytes()).unwrap();
        let mut held = Vec::new();
        for i in 0..300usize {
            let fd = unix_socket().unwrap();
            while connect(&fd, &address) == Err(Errno::AGAIN) {
                std::thread::yield_now();
            }
            let _ = send(&fd, &[255; 100][..i % 100], SendFlags::NOSIGNAL);
            held.push(fd);
        }
        assert_eq!(mark(offer.ticket().fetch(soon()).unwrap()), 7);
    }
}

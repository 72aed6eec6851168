//! Who is still there.
//!
//! The ranks of a communicator form a binary tree; each keeps a connection to its neighbours. A
//! connection that ends without a goodbye is the loss of the rank behind it. Whoever learns of a
//! loss tells its other neighbours before anything else happens to it, so every rank learns which
//! rank was lost: each part of a tree that falls apart borders on a rank that is gone. The first
//! cause stays. Leaving says goodbye and is no loss; a process that exits without leaving says it
//! on the way out, one that is killed cannot.
//!
//! Limit: a loss does not cross a rank that has left. Ranks that still work together then wait for
//! the rank that left as well.

mod exit;
mod frame;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::watcher::{self, Handler, Interest, Registration, Watch, Watched};
use crate::{Bootstrap, Result};
use frame::Frame;

/// The label of our streams.
const LABEL: u32 = 0xffff_0001;

/// Why a rank is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// It says so itself.
    Failed(String),
    /// Its process ended, or the way to it, without a goodbye.
    HungUp,
    /// It is on another host and nothing was heard of it for some seconds.
    Silent,
}

/// A rank that is lost, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The rank.
    pub rank: u32,
    /// Why.
    pub cause: LossCause,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ", self.rank)?;
        match &self.cause {
            LossCause::Failed(text) => write!(f, "failed: {text}"),
            LossCause::HungUp => write!(f, "was lost: its process ended without leaving"),
            LossCause::Silent => write!(f, "was lost: nothing was heard of it any more"),
        }
    }
}

/// One rank's part in watching over a communicator. Dropping it is leaving, unless the thread that
/// drops it panics: then this rank has failed.
pub struct Liveness {
    // Before the tree, so that nothing is noticed any more when the tree goes.
    registration: Option<Registration>,
    tree: Arc<Tree>,
}

impl Liveness {
    /// Connects to the neighbours; all ranks call it. `on_loss` is called once, at the first loss,
    /// on the watcher's thread, or on the thread that reports this rank's own failure. It must not
    /// block. It is not called any more after `leave` or drop.
    pub fn start(
        bootstrap: &dyn Bootstrap,
        on_loss: impl Fn(&Loss) + Send + Sync + 'static,
    ) -> Result<Liveness> {
        Liveness::start_with(bootstrap, Pace::default(), Box::new(on_loss))
    }

    fn start_with(bootstrap: &dyn Bootstrap, pace: Pace, on_loss: Notice) -> Result<Liveness> {
        let rank = bootstrap.rank();
        let mut streams = Vec::new();
        for peer in neighbours(rank, bootstrap.world_size()) {
            let elsewhere = bootstrap.host_id(peer) != bootstrap.host_id(rank);
            streams.push((peer, elsewhere, bootstrap.stream(peer, LABEL)?));
        }
        exit::prepare();
        let (tree, registration) =
            watcher::register(|watch| Tree::new(rank, pace, on_loss, streams, watch))?;
        Ok(Liveness { registration: Some(registration), tree })
    }

    /// The first loss that this rank learned of.
    pub fn lost(&self) -> Option<Loss> {
        self.tree.lock().loss.clone()
    }

    /// Ranks that said goodbye, in the order in which this rank heard of it.
    pub fn left(&self) -> Vec<u32> {
        self.tree.lock().left.clone()
    }

    /// This rank cannot go on: all ranks learn it as the loss of this one.
    pub fn report_failure(&self, text: &str) {
        let loss = Loss { rank: self.tree.rank, cause: LossCause::Failed(text.to_owned()) };
        let first = self.tree.lock().spread(loss, None);
        // For what a full socket did not take.
        self.tree.watch.wake();
        self.tree.notify(first);
    }

    /// Says goodbye. Idempotent; drop does it too.
    pub fn leave(&mut self) {
        if !exit::is_our_process() {
            // The child of a fork must not speak for its parent.
            return;
        }
        {
            let mut state = self.tree.lock();
            for link in &mut state.links {
                link.say(&Frame::Goodbye);
            }
            state.links.clear();
        }
        self.registration = None;
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        if std::thread::panicking() && exit::is_our_process() {
            let cause = LossCause::Failed("a thread of it panicked".into());
            let mut state = self.tree.lock();
            state.spread(Loss { rank: self.tree.rank, cause }, None);
        }
        self.leave();
    }
}

/// How often other hosts hear of us, and when silence is loss.
#[derive(Clone, Copy)]
struct Pace {
    heartbeat: Duration,
    silence: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { heartbeat: Duration::from_secs(1), silence: Duration::from_secs(5) }
    }
}

type Notice = Box<dyn Fn(&Loss) + Send + Sync>;

struct Tree {
    rank: u32,
    pace: Pace,
    on_loss: Notice,
    watch: Watch,
    state: Mutex<State>,
}

struct State {
    links: Vec<Link>,
    loss: Option<Loss>,
    left: Vec<u32>,
    ticked: Instant,
}

struct Link {
    key: u32,
    peer: u32,
    elsewhere: bool,
    // Before the socket: at exit only sockets that are still open may be written to.
    _slot: exit::Slot,
    socket: Watched,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    heard: Instant,
    spoke: Instant,
}

/// Parent and children in a binary heap.
fn neighbours(rank: u32, world_size: u32) -> Vec<u32> {
    let parent = (rank > 0).then(|| (rank - 1) / 2);
    let children = [2 * u64::from(rank) + 1, 2 * u64::from(rank) + 2];
    let children = children.into_iter().filter(|&c| c < u64::from(world_size)).map(|c| c as u32);
    parent.into_iter().chain(children).collect()
}

impl Tree {
    fn new(
        rank: u32,
        pace: Pace,
        on_loss: Notice,
        streams: Vec<(u32, bool, OwnedFd)>,
        watch: Watch,
    ) -> Result<Arc<Tree>> {
        let now = Instant::now();
        let mut links = Vec::new();
        for (key, (peer, elsewhere, stream)) in (0..).zip(streams) {
            let slot = exit::Slot::new(&stream);
            let socket = watch.watch(stream, key, Interest::Always)?;
            let (inbox, outbox) = (Vec::new(), Vec::new());
            let (heard, spoke) = (now, now);
            links.push(Link {
                key,
                peer,
                elsewhere,
                _slot: slot,
                socket,
                inbox,
                outbox,
                heard,
                spoke,
            });
        }
        let state = State { links, loss: None, left: Vec::new(), ticked: now };
        Ok(Arc::new(Tree { rank, pace, on_loss, watch, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Not under the lock: the callee may ask who is lost.
    fn notify(&self, first: Option<Loss>) {
        if let Some(loss) = first {
            (self.on_loss)(&loss);
        }
    }
}

impl Handler for Tree {
    fn ready(&self, key: u32) {
        let first = self.lock().read(key);
        self.notify(first);
    }

    fn tick(&self) {
        let first = self.lock().tick(self.pace);
        self.notify(first);
    }

    fn needs_tick(&self) -> bool {
        self.lock().links.iter().any(|link| link.elsewhere || !link.outbox.is_empty())
    }
}

impl State {
    /// Reads what a neighbour says; gives the loss, if it is the first.
    fn read(&mut self, key: u32) -> Option<Loss> {
        let at = self.links.iter().position(|link| link.key == key)?;
        let peer = self.links[at].peer;
        let open = self.links[at].fill();
        let mut first = None;
        loop {
            // What was said before the end counts more than the end.
            match Frame::take(&mut self.links[at].inbox) {
                Ok(None) => break,
                Ok(Some(Frame::Heartbeat)) => {}
                Ok(Some(Frame::Goodbye)) => {
                    self.links.remove(at);
                    self.tell_left(peer, key);
                    return first;
                }
                Ok(Some(Frame::Left(rank))) => self.tell_left(rank, key),
                Ok(Some(Frame::Lost(loss))) => {
                    let loss = self.spread(loss, Some(key));
                    first = first.or(loss);
                }
                Err(_) => {
                    self.links.remove(at);
                    let cause = LossCause::Failed("it sent a damaged message".into());
                    return first.or(self.spread(Loss { rank: peer, cause }, None));
                }
            }
        }
        if !open {
            self.links.remove(at);
            first = first.or(self.spread(Loss { rank: peer, cause: LossCause::HungUp }, None));
        }
        first
    }

    /// Tells all neighbours but the one it comes from; gives the loss, if it is the first.
    fn spread(&mut self, loss: Loss, except: Option<u32>) -> Option<Loss> {
        if self.loss.is_some() {
            return None;
        }
        self.loss = Some(loss.clone());
        let frame = Frame::Lost(loss.clone());
        for link in self.links.iter_mut().filter(|link| Some(link.key) != except) {
            link.say(&frame);
        }
        Some(loss)
    }

    fn tell_left(&mut self, rank: u32, except: u32) {
        if !self.left.contains(&rank) {
            self.left.push(rank);
            for link in self.links.iter_mut().filter(|link| link.key != except) {
                link.say(&Frame::Left(rank));
            }
        }
    }

    fn tick(&mut self, pace: Pace) -> Option<Loss> {
        let now = Instant::now();
        let asleep = now.duration_since(self.ticked);
        self.ticked = now;
        if asleep > pace.heartbeat {
            // This process was stopped, or needed no ticks: what it did not hear is no silence.
            self.links.iter_mut().for_each(|link| link.heard = now);
        }
        let mut silent = None;
        for link in &mut self.links {
            link.flush();
            if link.elsewhere && now.duration_since(link.spoke) >= pace.heartbeat {
                link.say(&Frame::Heartbeat);
            }
            if link.elsewhere && now.duration_since(link.heard) > pace.silence {
                silent = Some((link.key, link.peer));
            }
        }
        let (key, rank) = silent?;
        self.links.retain(|link| link.key != key);
        self.spread(Loss { rank, cause: LossCause::Silent }, None)
    }
}

impl Link {
    /// Takes in what has come; false at the end.
    fn fill(&mut self) -> bool {
        let mut chunk = [0; 4096];
        loop {
            match recv(self.socket.as_fd(), &mut chunk, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok((count, _)) => {
                    self.heard = Instant::now();
                    self.inbox.extend_from_slice(&chunk[..count]);
                    // Frames are short and few; more is no neighbour of ours.
                    if self.inbox.len() > 1 << 20 {
                        return false;
                    }
                }
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn say(&mut self, frame: &Frame) {
        self.spoke = Instant::now();
        // A neighbour that reads nothing gets no more than this.
        if self.outbox.len() < 64 << 10 {
            frame.put(&mut self.outbox);
        }
        self.flush();
    }

    /// A failure is not looked at: the end of the connection shows when it is read.
    fn flush(&mut self) {
        while !self.outbox.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, &self.outbox, flags) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.outbox.clear(),
            }
        }
    }
}

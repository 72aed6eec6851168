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
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::tree::neighbours;
use crate::watcher::{self, Handler, Registration, Watch, Watched};
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
        let lost = if matches!(self.cause, LossCause::Failed(_)) { "" } else { "was lost: " };
        write!(f, "rank {} {lost}{}", self.rank, self.cause)
    }
}

/// As a predicate of the rank.
impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossCause::Failed(text) => write!(f, "failed: {text}"),
            LossCause::HungUp => write!(f, "its process ended without leaving"),
            LossCause::Silent => write!(f, "nothing was heard of it any more"),
        }
    }
}

/// Who hears of the others, on the watcher's thread; a failure that this rank reports itself is heard
/// on the thread that reports it. Nothing here blocks, and nothing is heard any more once the
/// [`Liveness`] has left.
///
/// What one rank hears of another comes in order: who leaves because of a loss is heard of after that
/// loss.
pub(crate) trait Listener: Send + Sync {
    /// The first loss; called once.
    fn lost(&self, loss: &Loss);
    /// A rank said goodbye.
    fn left(&self, rank: u32);
}

impl<F: Fn(&Loss) + Send + Sync> Listener for F {
    fn lost(&self, loss: &Loss) {
        self(loss);
    }

    fn left(&self, _: u32) {}
}

/// A connection to a neighbour in the tree.
pub(crate) struct Branch {
    pub(crate) peer: u32,
    /// The peer is on another host, where a loss need not show as the end of a connection.
    pub(crate) elsewhere: bool,
    pub(crate) stream: OwnedFd,
}

/// Whose ranks a tree watches over. A process notices the same end in the bootstrap's tree and in that of
/// each communicator: the log tells it once for a communicator, and of the bootstrap to who looks closer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Bootstrap,
    Communicator,
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
        Liveness::listen(bootstrap, Box::new(on_loss))
    }

    /// As [`Liveness::start`], for who wants to hear of leaving too.
    pub(crate) fn listen(
        bootstrap: &dyn Bootstrap,
        listener: Box<dyn Listener>,
    ) -> Result<Liveness> {
        Liveness::start_with(bootstrap, Pace::default(), listener)
    }

    fn start_with(
        bootstrap: &dyn Bootstrap,
        pace: Pace,
        listener: Box<dyn Listener>,
    ) -> Result<Liveness> {
        let rank = bootstrap.rank();
        let mut branches = Vec::new();
        for peer in neighbours(rank, bootstrap.world_size()) {
            let elsewhere = bootstrap.host_id(peer) != bootstrap.host_id(rank);
            branches.push(Branch { peer, elsewhere, stream: bootstrap.stream(peer, LABEL)? });
        }
        Liveness::watch(rank, Group::Communicator, pace, listener, branches)
    }

    /// Watches over the ranks of a bootstrap, by connections that are there already.
    pub(crate) fn of_bootstrap(
        rank: u32,
        listener: Box<dyn Listener>,
        branches: Vec<Branch>,
    ) -> Result<Liveness> {
        Liveness::watch(rank, Group::Bootstrap, Pace::default(), listener, branches)
    }

    fn watch(
        rank: u32,
        group: Group,
        pace: Pace,
        listener: Box<dyn Listener>,
        branches: Vec<Branch>,
    ) -> Result<Liveness> {
        let watched: Vec<u32> = branches.iter().map(|branch| branch.peer).collect();
        mscclrs_log::debug!(LIVENESS, rank, neighbours = ?watched, "watching over neighbours");
        exit::prepare();
        let (tree, registration) =
            watcher::register(|watch| Tree::new(rank, group, pace, listener, branches, watch))?;
        Ok(Liveness { registration: Some(registration), tree })
    }

    /// The first loss that this rank learned of.
    pub fn lost(&self) -> Option<Loss> {
        self.tree.lock().loss.clone()
    }

    /// Ranks that said goodbye, in the order in which this rank heard of it.
    pub fn left(&self) -> Vec<u32> {
        self.tree.lock().left.0.clone()
    }

    /// This rank cannot go on: all ranks learn it as the loss of this one.
    pub fn report_failure(&self, text: &str) {
        self.report(Loss { rank: self.tree.rank, cause: LossCause::Failed(text.to_owned()) });
    }

    /// This rank learned of a loss by other means: all ranks hear of it.
    pub(crate) fn report(&self, loss: Loss) {
        let mut news = News::default();
        self.tree.lock().spread(loss, None, &mut news);
        // For what a full socket did not take.
        self.tree.watch.wake();
        self.tree.tell(news);
    }

    /// Closes its connections without a word, as the end of the process does.
    #[cfg(test)]
    pub(crate) fn fall_silent(&self) {
        self.tree.lock().links.clear();
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
            let loss = Loss { rank: self.tree.rank, cause };
            // Its own rank need not be told.
            self.tree.lock().spread(loss, None, &mut News::default());
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

/// What came up while the state was locked, for the listener.
#[derive(Default)]
struct News {
    left: Vec<u32>,
    lost: Option<Loss>,
}

struct Tree {
    rank: u32,
    pace: Pace,
    listener: Box<dyn Listener>,
    watch: Watch,
    state: Mutex<State>,
}

struct State {
    rank: u32,
    group: Group,
    links: Vec<Link>,
    loss: Option<Loss>,
    /// In the order in which they were heard of, and for looking up.
    left: (Vec<u32>, HashSet<u32>),
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

impl Tree {
    fn new(
        rank: u32,
        group: Group,
        pace: Pace,
        listener: Box<dyn Listener>,
        branches: Vec<Branch>,
        watch: Watch,
    ) -> Result<Arc<Tree>> {
        let now = Instant::now();
        let mut links = Vec::new();
        for (key, Branch { peer, elsewhere, stream }) in (0..).zip(branches) {
            let slot = exit::Slot::new(&stream);
            let socket = watch.watch(stream, key)?;
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
        let left = Default::default();
        let state = State { rank, group, links, loss: None, left, ticked: now };
        Ok(Arc::new(Tree { rank, pace, listener, watch, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Not under the lock: the callee may ask who is lost.
    fn tell(&self, news: News) {
        if let Some(loss) = news.lost {
            self.listener.lost(&loss);
        }
        for rank in news.left {
            self.listener.left(rank);
        }
    }
}

impl Handler for Tree {
    fn ready(&self, key: u32) {
        let mut news = News::default();
        self.lock().read(key, &mut news);
        self.tell(news);
    }

    fn tick(&self) {
        let mut news = News::default();
        self.lock().tick(self.pace, &mut news);
        self.tell(news);
    }

    fn needs_tick(&self) -> bool {
        self.lock().links.iter().any(|link| link.elsewhere || !link.outbox.is_empty())
    }
}

impl State {
    /// Reads what a neighbour says, and passes on what the others have to hear.
    fn read(&mut self, key: u32, news: &mut News) {
        self.take(key, news);
        // Once for all frames: when a large group ends, each rank hears of every other.
        self.links.iter_mut().for_each(Link::flush);
    }

    fn take(&mut self, key: u32, news: &mut News) {
        let Some(at) = self.links.iter().position(|link| link.key == key) else { return };
        let peer = self.links[at].peer;
        let open = self.links[at].fill();
        loop {
            // What was said before the end counts more than the end.
            match Frame::take(&mut self.links[at].inbox) {
                Ok(None) => break,
                Ok(Some(Frame::Heartbeat)) => {}
                Ok(Some(Frame::Goodbye)) => {
                    self.links.remove(at);
                    self.tell_left(peer, key, news);
                    return;
                }
                Ok(Some(Frame::Left(rank))) => self.tell_left(rank, key, news),
                Ok(Some(Frame::Lost(loss))) => self.spread(loss, Some(key), news),
                Err(_) => {
                    self.links.remove(at);
                    let cause = LossCause::Failed("it sent a damaged message".into());
                    self.spread(Loss { rank: peer, cause }, None, news);
                    return;
                }
            }
        }
        if !open {
            self.links.remove(at);
            self.spread(Loss { rank: peer, cause: LossCause::HungUp }, None, news);
        }
    }

    /// Tells all neighbours but the one it comes from, if it is the first.
    fn spread(&mut self, loss: Loss, except: Option<u32>, news: &mut News) {
        if self.loss.is_some() {
            return;
        }
        let from = self.links.iter().find(|link| Some(link.key) == except);
        let (rank, lost, told_by) = (self.rank, loss.rank, from.map(|link| link.peer));
        match self.group {
            Group::Bootstrap => mscclrs_log::debug!(
                LIVENESS, rank, lost, told_by, why = %loss, "a rank is lost to the bootstrap"
            ),
            Group::Communicator => {
                mscclrs_log::info!(LIVENESS, rank, lost, told_by, why = %loss, "a rank is lost");
            }
        }
        self.loss = Some(loss.clone());
        let frame = Frame::Lost(loss.clone());
        for link in self.links.iter_mut().filter(|link| Some(link.key) != except) {
            link.say(&frame);
        }
        news.lost = Some(loss);
    }

    fn tell_left(&mut self, rank: u32, except: u32, news: &mut News) {
        if self.left.1.insert(rank) {
            self.left.0.push(rank);
            let (me, peer) = (self.rank, rank);
            match self.group {
                Group::Bootstrap => {
                    mscclrs_log::debug!(LIVENESS, rank = me, peer, "a rank has left the bootstrap");
                }
                Group::Communicator => {
                    mscclrs_log::info!(LIVENESS, rank = me, peer, "a rank has left");
                }
            }
            for link in self.links.iter_mut().filter(|link| link.key != except) {
                link.put(&Frame::Left(rank));
            }
            news.left.push(rank);
        }
    }

    fn tick(&mut self, pace: Pace, news: &mut News) {
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
        if let Some((key, rank)) = silent {
            self.links.retain(|link| link.key != key);
            self.spread(Loss { rank, cause: LossCause::Silent }, None, news);
        }
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
        self.put(frame);
        self.flush();
    }

    fn put(&mut self, frame: &Frame) {
        self.spoke = Instant::now();
        // A neighbour that reads nothing gets no more than this.
        if self.outbox.len() < 64 << 10 {
            frame.put(&mut self.outbox);
        }
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

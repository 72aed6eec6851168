//! What a peer sends, received when it is asked for.
//!
//! Invariant: the i-th receive from a rank with a tag gets the i-th message that the rank sent with
//! it, in whatever order the futures are asked: a future first resolves the earlier ones of its
//! queue. Messages carry their number, so that a receive that failed can never shift the pairing;
//! it breaks the queue instead.
//!
//! What a message brings is made with the communicator's turn. While another thread has it, the
//! message stays at the head of its queue: nothing has happened to it, and the future can be asked
//! again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::wire::{Reader, Writer};
use crate::{Bootstrap, Error, Result};

/// Tags of this crate's own messages lie above the users' ones.
const FUTURE_TAGS: u32 = 0x4000_0000;

/// The first tag that a user cannot give.
const TAG_LIMIT: u32 = 1 << 24;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Memory = 1,
    Endpoint = 2,
    Semaphore = 3,
}

impl Kind {
    fn name(code: u8) -> String {
        match code {
            1 => "memory (send_memory)".into(),
            2 => "an endpoint (connect)".into(),
            3 => "a semaphore (build_semaphore)".into(),
            other => format!("something unknown ({other})"),
        }
    }
}

/// The communicator that receives are for.
pub(crate) trait Owner: Send + Sync {
    /// Does the work with the communicator's turn; an error, and nothing done, if another thread has
    /// it.
    fn in_turn(&self, work: &mut dyn FnMut()) -> Result<()>;
    /// What an error of the bootstrap comes from, as far as the communicator knows better.
    fn blame(&self, error: Error) -> Error;
}

/// A communicator's ordered queues of receives.
pub(crate) struct Receives {
    bootstrap: Arc<dyn Bootstrap>,
    channels: Mutex<HashMap<(u32, u32), Channel>>,
}

/// Both directions of one rank and tag.
#[derive(Default)]
struct Channel {
    sent: u64,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    /// The number of the message that comes next.
    next: u64,
    pending: VecDeque<Job>,
    /// The message of the first job, if it has come and could not be used yet.
    arrived: Option<Vec<u8>>,
    /// A receive failed: what comes next is not known any more.
    broken: Option<String>,
}

struct Job {
    kind: Kind,
    finish: Box<Finish>,
}

/// Makes a future's value from its message.
type Finish = dyn FnOnce(Result<&[u8]>) + Send;

/// Something that a peer sent, or will send.
#[must_use = "a future does nothing until it is asked"]
pub struct Future<T> {
    slot: Arc<Mutex<Slot<T>>>,
    queue: Arc<Mutex<Queue>>,
    bootstrap: Arc<dyn Bootstrap>,
    owner: Arc<dyn Owner>,
    peer: u32,
    tag: u32,
}

enum Slot<T> {
    Empty,
    Full(Result<T>),
    Taken,
}

impl Receives {
    pub(crate) fn new(bootstrap: &Arc<dyn Bootstrap>) -> Self {
        Receives { bootstrap: bootstrap.clone(), channels: Mutex::default() }
    }

    fn channel<T>(&self, peer: u32, tag: u32, work: impl FnOnce(&mut Channel) -> T) -> Result<T> {
        let ranks = self.bootstrap.world_size();
        if peer >= ranks || peer == self.bootstrap.rank() {
            return Err(Error::Invalid {
                what: "peer",
                value: peer.to_string(),
                allowed: format!("another rank, below {ranks}"),
            });
        }
        if tag >= TAG_LIMIT {
            return Err(Error::Invalid {
                what: "tag",
                value: tag.to_string(),
                allowed: format!("tags are below {TAG_LIMIT}"),
            });
        }
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(work(channels.entry((peer, tag)).or_default()))
    }

    /// Sends at once; does not wait for the receiver.
    pub(crate) fn send(&self, peer: u32, tag: u32, kind: Kind, message: &[u8]) -> Result<()> {
        let number = self.channel(peer, tag, |channel| channel.sent)?;
        let message = write_message(message, kind, number);
        self.bootstrap.send(peer, FUTURE_TAGS | tag, &message)?;
        self.channel(peer, tag, |channel| channel.sent += 1)
    }

    /// The next receive of the queue; `parse` makes the value from the message, in the owner's turn.
    pub(crate) fn receive<T: Send + 'static>(
        &self,
        owner: Arc<dyn Owner>,
        peer: u32,
        tag: u32,
        kind: Kind,
        parse: impl FnOnce(&[u8]) -> Result<T> + Send + 'static,
    ) -> Result<Future<T>> {
        let queue = self.channel(peer, tag, |channel| channel.queue.clone())?;
        let slot = Arc::new(Mutex::new(Slot::Empty));
        let finish = {
            let slot = slot.clone();
            move |message: Result<&[u8]>| {
                let value = message.and_then(parse);
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Slot::Full(value);
            }
        };
        let job = Job { kind, finish: Box::new(finish) };
        queue.lock().unwrap_or_else(PoisonError::into_inner).pending.push_back(job);
        let bootstrap = self.bootstrap.clone();
        Ok(Future { slot, queue, bootstrap, owner, peer, tag })
    }
}

impl<T> Future<T> {
    /// Waits for the message, at most as long as the bootstrap waits, and for the earlier ones of
    /// the same rank and tag, which it resolves first.
    ///
    /// [`Error::Busy`] while another thread uses the communicator: nothing is lost then, ask again. With
    /// any other outcome the future has done its work; asked again it is an error.
    pub fn get(&self) -> Result<T> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            {
                let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
                match std::mem::replace(&mut *slot, Slot::Taken) {
                    Slot::Full(value) => return value,
                    Slot::Empty => *slot = Slot::Empty,
                    Slot::Taken => {
                        return Err(Error::Order {
                            what: format!("{self:?} was asked before, and gave what it had"),
                        });
                    }
                }
            }
            let Some(job) = queue.pending.pop_front() else {
                // Not reached: the job that fills the slot is in the queue until it has done so.
                return Err(gone());
            };
            queue.run(job, self)?;
        }
    }
}

impl Queue {
    /// Fills the slot of a job, or puts it back with its message.
    fn run<T>(&mut self, job: Job, from: &Future<T>) -> Result<()> {
        let Future { bootstrap, owner, peer, tag, .. } = from;
        if let Some(why) = &self.broken {
            (job.finish)(Err(Error::Order {
                what: format!(
                    "nothing more can be received from rank {peer} with tag {tag}: an earlier receive \
                     failed ({why})"
                ),
            }));
            return Ok(());
        }
        let message = match self.arrived.take() {
            Some(message) => message,
            None => match bootstrap.recv(*peer, FUTURE_TAGS | tag) {
                Ok(message) => message,
                Err(error) => {
                    let error = owner.blame(error);
                    self.broken = Some(error.to_string());
                    self.next += 1;
                    (job.finish)(Err(error));
                    return Ok(());
                }
            },
        };
        let mut work = Some(job);
        let finished = owner.in_turn(&mut || {
            let Some(job) = work.take() else { return };
            let body = parse_message(&message, job.kind, self.next);
            if let Err(Error::Malformed { field: "header", why, .. }) = &body {
                self.broken = Some(why.clone());
            }
            self.next += 1;
            (job.finish)(body);
        });
        if let Some(job) = work {
            self.pending.push_front(job);
            self.arrived = Some(message);
        }
        finished
    }
}

pub(crate) fn write_message(body: &[u8], kind: Kind, number: u64) -> Vec<u8> {
    Writer::new().u8(kind as u8).u64(number).bytes(body).finish()
}

pub(crate) fn parse_message(message: &[u8], kind: Kind, number: u64) -> Result<&[u8]> {
    let mut reader = Reader::new("message of a peer", message);
    let (code, sent) = (reader.u8("kind")?, reader.u64("number")?);
    if sent != number {
        return Err(reader.fail("header", format!("number {sent} came instead of {number}")));
    }
    let body = reader.bytes("body", message.len() as u64)?;
    reader.end()?;
    if code != kind as u8 {
        let (got, wanted) = (Kind::name(code), Kind::name(kind as u8));
        return Err(reader.fail("kind", format!("{got} came, {wanted} was to be received")));
    }
    Ok(body)
}

/// The communicator of a future is gone.
pub(crate) fn gone() -> Error {
    Error::Order { what: "the communicator was dropped before its future was asked".into() }
}

impl<T> std::fmt::Debug for Future<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Future(from rank {} with tag {})", self.peer, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::LocalBootstrap;

    /// A communicator whose turn another thread may have.
    #[derive(Default)]
    struct Other {
        has_turn: AtomicBool,
    }

    impl Owner for Other {
        fn in_turn(&self, work: &mut dyn FnMut()) -> Result<()> {
            if self.has_turn.load(Ordering::Relaxed) {
                return Err(Error::Busy { rank: 1 });
            }
            work();
            Ok(())
        }

        fn blame(&self, error: Error) -> Error {
            error
        }
    }

    fn pair() -> [Receives; 2] {
        let mut ranks = LocalBootstrap::create(2, Duration::from_millis(50)).into_iter();
        [(); 2].map(|()| {
            let bootstrap: Arc<dyn Bootstrap> = Arc::new(ranks.next().unwrap());
            Receives::new(&bootstrap)
        })
    }

    fn text(receives: &Receives, tag: u32) -> Future<String> {
        text_of(receives, tag, &Arc::default())
    }

    fn text_of(receives: &Receives, tag: u32, owner: &Arc<Other>) -> Future<String> {
        let parse = |bytes: &[u8]| Ok(String::from_utf8(bytes.to_vec()).unwrap());
        receives.receive(owner.clone(), 0, tag, Kind::Memory, parse).unwrap()
    }

    #[test]
    fn the_ith_receive_gets_the_ith_message_in_any_order_of_asking() {
        let [a, b] = pair();
        for word in ["one", "two", "three", "four"] {
            a.send(1, 7, Kind::Memory, word.as_bytes()).unwrap();
        }
        let mut futures: Vec<_> = (0..4).map(|_| text(&b, 7)).collect();
        assert_eq!(futures.remove(2).get().unwrap(), "three");
        assert_eq!(futures.remove(2).get().unwrap(), "four");
        drop(futures.remove(0));
        assert_eq!(futures.remove(0).get().unwrap(), "two");
    }

    #[test]
    fn a_receive_that_failed_never_shifts_the_later_ones() {
        let [a, b] = pair();
        let (first, second) = (text(&b, 7), text(&b, 7));
        assert!(matches!(first.get(), Err(Error::Deadline { peer: 0, .. })));
        a.send(1, 7, Kind::Memory, b"late").unwrap();
        let error = second.get().unwrap_err();
        assert!(error.to_string().contains("earlier receive failed"), "{error}");
        // Another tag is another queue.
        a.send(1, 8, Kind::Memory, b"here").unwrap();
        assert_eq!(text(&b, 8).get().unwrap(), "here");
    }

    #[test]
    fn while_another_thread_has_the_turn_no_message_is_lost() {
        let [a, b] = pair();
        let other = Arc::new(Other::default());
        for word in ["one", "two", "three"] {
            a.send(1, 7, Kind::Memory, word.as_bytes()).unwrap();
        }
        let [first, second, third] = [(); 3].map(|()| text_of(&b, 7, &other));
        other.has_turn.store(true, Ordering::Relaxed);
        // Of its own message and of earlier ones that it resolves on the way.
        for _ in 0..2 {
            assert!(matches!(second.get(), Err(Error::Busy { rank: 1 })));
            assert!(matches!(first.get(), Err(Error::Busy { .. })));
        }
        other.has_turn.store(false, Ordering::Relaxed);
        assert_eq!(second.get().unwrap(), "two");
        other.has_turn.store(true, Ordering::Relaxed);
        assert_eq!(first.get().unwrap(), "one", "it was there already");
        assert!(matches!(third.get(), Err(Error::Busy { .. })));
        other.has_turn.store(false, Ordering::Relaxed);
        assert_eq!(third.get().unwrap(), "three");
        let error = third.get().unwrap_err().to_string();
        assert!(error.contains("asked before"), "{error}");
    }

    #[test]
    fn tags_and_peers_outside_their_range_are_refused() {
        let [receives, _b] = pair();
        for (peer, tag) in [(1, TAG_LIMIT), (2, 0), (0, 0), (1, u32::MAX)] {
            let sent = receives.send(peer, tag, Kind::Memory, b"");
            assert!(matches!(sent, Err(Error::Invalid { .. })), "{peer} {tag}");
        }
    }
}

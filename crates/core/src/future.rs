//! What a peer sends, received when it is asked for.
//!
//! Invariant: the i-th receive from a rank with a tag gets the i-th message that the rank sent with
//! it, in whatever order the futures are asked: a future first resolves the earlier ones of its
//! queue. Messages carry their number, so that a receive that failed can never shift the pairing;
//! it breaks the queue instead.

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
    slot: Arc<Mutex<Option<Result<T>>>>,
    queue: Arc<Mutex<Queue>>,
    bootstrap: Arc<dyn Bootstrap>,
    peer: u32,
    tag: u32,
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
        let message = Writer::new().u8(kind as u8).u64(number).bytes(message).finish();
        self.bootstrap.send(peer, FUTURE_TAGS | tag, &message)?;
        self.channel(peer, tag, |channel| channel.sent += 1)
    }

    /// The next receive of the queue; `parse` makes the value from the message.
    pub(crate) fn receive<T: Send + 'static>(
        &self,
        peer: u32,
        tag: u32,
        kind: Kind,
        parse: impl FnOnce(&[u8]) -> Result<T> + Send + 'static,
    ) -> Result<Future<T>> {
        let queue = self.channel(peer, tag, |channel| channel.queue.clone())?;
        let slot = Arc::new(Mutex::new(None));
        let finish = {
            let slot = slot.clone();
            move |message: Result<&[u8]>| {
                let value = message.and_then(parse);
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            }
        };
        let job = Job { kind, finish: Box::new(finish) };
        queue.lock().unwrap_or_else(PoisonError::into_inner).pending.push_back(job);
        Ok(Future { slot, queue, bootstrap: self.bootstrap.clone(), peer, tag })
    }
}

impl<T> Future<T> {
    /// Waits for the message, at most as long as the bootstrap waits, and for the earlier ones of
    /// the same rank and tag, which it resolves first.
    pub fn get(self) -> Result<T> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let value = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(value) = value {
                return value;
            }
            let Some(job) = queue.pending.pop_front() else {
                // Not reached: the job that fills the slot is in the queue until it has done so.
                return Err(gone());
            };
            queue.run(job, &*self.bootstrap, self.peer, self.tag);
        }
    }
}

impl Queue {
    fn run(&mut self, job: Job, bootstrap: &dyn Bootstrap, peer: u32, tag: u32) {
        if let Some(why) = &self.broken {
            (job.finish)(Err(Error::Order {
                what: format!(
                    "nothing more can be received from rank {peer} with tag {tag}: an earlier receive \
                     failed ({why})"
                ),
            }));
            return;
        }
        let number = self.next;
        let message = bootstrap.recv(peer, FUTURE_TAGS | tag);
        let body = match &message {
            Ok(message) => parse_message(message, job.kind, number),
            Err(error) => {
                self.broken = Some(error.to_string());
                Ok(&[][..])
            }
        };
        if let Err(Error::Malformed { field: "header", why, .. }) = &body {
            self.broken = Some(why.clone());
        }
        self.next += 1;
        match message.as_ref().err() {
            None => (job.finish)(body),
            Some(_) => (job.finish)(message.map(|_| &[][..])),
        }
    }
}

fn parse_message(message: &[u8], kind: Kind, number: u64) -> Result<&[u8]> {
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
    use std::time::Duration;

    use super::*;
    use crate::LocalBootstrap;

    fn pair() -> [Arc<dyn Bootstrap>; 2] {
        let mut ranks = LocalBootstrap::create(2, Duration::from_millis(50)).into_iter();
        [(); 2].map(|()| Arc::new(ranks.next().unwrap()) as Arc<dyn Bootstrap>)
    }

    fn text(receives: &Receives, tag: u32) -> Future<String> {
        let parse = |bytes: &[u8]| Ok(String::from_utf8(bytes.to_vec()).unwrap());
        receives.receive(0, tag, Kind::Memory, parse).unwrap()
    }

    #[test]
    fn the_ith_receive_gets_the_ith_message_in_any_order_of_asking() {
        let [a, b] = pair();
        let (a, b) = (Receives::new(&a), Receives::new(&b));
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
        let (a, b) = (Receives::new(&a), Receives::new(&b));
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
    fn tags_and_peers_outside_their_range_are_refused() {
        let [a, _b] = pair();
        let receives = Receives::new(&a);
        for (peer, tag) in [(1, TAG_LIMIT), (2, 0), (0, 0), (1, u32::MAX)] {
            let sent = receives.send(peer, tag, Kind::Memory, b"");
            assert!(matches!(sent, Err(Error::Invalid { .. })), "{peer} {tag}");
        }
    }
}

//! all_gather and barrier over the tree of the ranks: at most three messages a rank, whatever the
//! number of ranks, and three peers that it has to be connected with.
//!
//! What the ranks give goes up the tree, and what all gave comes down. A rank that finds something
//! wrong sends that instead, upwards and downwards, so that all ranks of the call end with one error,
//! which names who is to blame. For that a rank waits a little longer the further a message has to go
//! that it waits for: the one next to a rank that does not come finds it first.
//!
//! Messages of a pair keep their order; call number and kind travel along to tell ranks that are in
//! different calls, and what is left of a call that failed is skipped by the next.

pub(super) mod message;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::message::{BLOCK_HEAD, Blocks, Failure, HEAD, Kind, by_rank};
use super::Bootstrap;
use super::mailbox::{Key, Missed};
use super::wire::{Damaged, Reader};
use crate::tree::{children, depth, height, parent};
use crate::{Error, Result};

/// How much longer a rank waits for each step of the tree that is before it.
const STEP: Duration = Duration::from_millis(100);

/// How long a rank that found something wrong waits to hear what all are told.
const HEAR: Duration = Duration::from_secs(1);

/// What the collectives are built from.
pub(super) trait Post: Bootstrap {
    fn post(&self, to: u32, key: Key, data: &[u8], call: &Call) -> Result<()>;
    fn take(&self, from: u32, key: Key, call: &Call) -> Result<Vec<u8>>;
}

/// A call with its deadline, for errors that name it.
pub(super) struct Call {
    pub(super) operation: String,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
}

impl Call {
    pub(super) fn new(operation: impl Into<String>, limit: Duration) -> Call {
        let started = Instant::now();
        Call { operation: operation.into(), started, deadline: started + limit }
    }

    pub(super) fn error(&self, rank: u32, peer: u32, missed: Missed) -> Error {
        let operation = self.operation.clone();
        match missed {
            Missed::Deadline => {
                Error::Deadline { operation, rank, peer, waited: self.started.elapsed() }
            }
            Missed::Gone(why) => Error::PeerGone { operation, rank, peer, why },
            Missed::Lost { rank: peer, why } => Error::PeerGone { operation, rank, peer, why },
        }
    }

    pub(super) fn check_rank(&self, rank: u32, world_size: u32) -> Result<()> {
        if rank < world_size {
            return Ok(());
        }
        Err(Error::NoSuchRank { operation: self.operation.clone(), rank, world_size })
    }

    pub(super) fn check_length(&self, rank: u32, peer: u32, bytes: usize) -> Result<()> {
        if bytes <= super::MAX_MESSAGE {
            return Ok(());
        }
        Err(self.protocol(
            rank,
            peer,
            format!("cannot be sent {bytes} bytes: at most {} are allowed", super::MAX_MESSAGE),
        ))
    }

    pub(super) fn protocol(&self, rank: u32, peer: u32, why: String) -> Error {
        Error::Protocol { operation: self.operation.clone(), rank, peer, why }
    }
}

/// Number of collective calls made; held during a call, so that two threads take turns.
#[derive(Default)]
pub(super) struct Turn(Mutex<u64>);

pub(super) fn all_gather(post: &impl Post, turn: &Turn, data: &[u8]) -> Result<Vec<Vec<u8>>> {
    let call = Call::new(Kind::Gather.name(), post.timeout());
    call.check_length(post.rank(), post.rank(), data.len())?;
    let step = Step::new(post, &call, turn, Kind::Gather);
    let table = step.run(vec![(post.rank(), data.to_vec())])?;
    by_rank(table, post.world_size()).map_err(|Damaged| {
        let from = parent(post.rank()).unwrap_or(0);
        call.protocol(post.rank(), from, "sent a damaged all_gather message".into())
    })
}

pub(super) fn barrier(post: &impl Post, turn: &Turn) -> Result<()> {
    let call = Call::new(Kind::Barrier.name(), post.timeout());
    Step::new(post, &call, turn, Kind::Barrier).run(Vec::new()).map(|_| ())
}

/// One call of all ranks, on this one.
struct Step<'a, P: Post> {
    post: &'a P,
    call: &'a Call,
    kind: Kind,
    number: u64,
    /// Two threads take turns.
    _turn: MutexGuard<'a, u64>,
}

impl<'a, P: Post> Step<'a, P> {
    fn new(post: &'a P, call: &'a Call, turn: &'a Turn, kind: Kind) -> Self {
        let mut turn = turn.0.lock().unwrap_or_else(PoisonError::into_inner);
        *turn += 1;
        Step { post, call, kind, number: *turn, _turn: turn }
    }

    fn run(&self, mine: Blocks) -> Result<Blocks> {
        let (rank, n) = (self.post.rank(), self.post.world_size());
        let collected = self.collect(mine);
        let outcome = match parent(rank) {
            None => collected,
            Some(parent) => self.report(parent, collected),
        };
        let message = message::write(self.kind, self.number, &outcome);
        let mut told = Ok(());
        for child in children(rank, n) {
            // Both are told, whatever becomes of the first. A child that has given its part and is
            // gone is missed by the next call, on all ranks alike; this one ends as on the others.
            let sent = match self.post.post(child, Key::Collective, &message, self.call) {
                Err(Error::PeerGone { .. }) => Ok(()),
                sent => sent,
            };
            told = told.and(sent);
        }
        let blocks = outcome.map_err(|failure| failure.into_error(self.call))?;
        told.map(|()| blocks)
    }

    /// What this rank and all below it gave.
    fn collect(&self, mine: Blocks) -> std::result::Result<Blocks, Failure> {
        let (rank, n) = (self.post.rank(), self.post.world_size());
        let limit = self.call.deadline + STEP * height(rank, n);
        let mut blocks = mine;
        for child in children(rank, n) {
            blocks.append(&mut self.take(child, limit)?);
        }
        let bytes: usize = blocks.iter().map(|(_, block)| block.len() + BLOCK_HEAD).sum();
        if bytes > super::MAX_MESSAGE - HEAD {
            let most = super::MAX_MESSAGE;
            let why = format!(
                "would pass on {bytes} bytes, its own and those of ranks below it in the tree; at most \
                 {most} are allowed"
            );
            return Err(Failure::Protocol { rank, peer: rank, why });
        }
        Ok(blocks)
    }

    /// Sends upwards, and waits for what comes down.
    fn report(
        &self,
        parent: u32,
        collected: std::result::Result<Blocks, Failure>,
    ) -> std::result::Result<Blocks, Failure> {
        let (rank, n) = (self.post.rank(), self.post.world_size());
        let message = message::write(self.kind, self.number, &collected);
        if let Err(error) = self.post.post(parent, Key::Collective, &message, self.call) {
            let mine = collected.err().unwrap_or_else(|| Failure::of(error, rank));
            // A parent that ended this call before this rank came to it has said why, and left.
            return match self.take(parent, Instant::now()) {
                Err(heard) if heard.found_by() != rank => Err(heard),
                _ => Err(mine),
            };
        }
        match collected {
            Ok(_) => self.take(parent, self.call.deadline + STEP * (height(0, n) + depth(rank))),
            Err(mine) => {
                let heard = self.take(parent, Instant::now() + HEAR);
                match heard {
                    Err(Failure::Deadline { rank: waiting, .. }) if waiting == rank => Err(mine),
                    // It cannot be: the parent was told that it failed.
                    Ok(_) => Err(mine),
                    Err(heard) => Err(heard),
                }
            }
        }
    }

    /// What a neighbour sent in this call.
    fn take(&self, from: u32, limit: Instant) -> std::result::Result<Blocks, Failure> {
        let rank = self.post.rank();
        let (operation, started) = (self.call.operation.clone(), self.call.started);
        let call = Call { operation, started, deadline: limit };
        loop {
            let message = self
                .post
                .take(from, Key::Collective, &call)
                .map_err(|error| Failure::of(error, rank))?;
            let protocol = |why| Failure::Protocol { rank, peer: from, why };
            let damaged = |Damaged| protocol("sent a damaged collective message".into());
            let mut reader = Reader(&message);
            let (kind, number) = message::read_head(&mut reader).map_err(damaged)?;
            if number < self.number {
                // Left over from a call that failed here.
                continue;
            }
            if kind != Some(self.kind) || number != self.number {
                return Err(protocol(self.differs(kind, number)));
            }
            return message::read_outcome(reader, self.kind, self.post.world_size())
                .map_err(damaged)?;
        }
    }

    fn differs(&self, kind: Option<Kind>, number: u64) -> String {
        format!(
            "is in {} (its collective call number {number}, this rank's is {}); all ranks must make \
             the same calls in the same order",
            kind.map_or("something unknown", Kind::name),
            self.number
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::LocalBootstrap;

    /// Counts what a rank sends.
    struct Counting {
        inner: LocalBootstrap,
        turn: Turn,
        posts: AtomicU32,
    }

    impl Bootstrap for Counting {
        fn rank(&self) -> u32 {
            self.inner.rank()
        }
        fn world_size(&self) -> u32 {
            self.inner.world_size()
        }
        fn send(&self, peer: u32, tag: u32, data: &[u8]) -> Result<()> {
            self.inner.send(peer, tag, data)
        }
        fn recv(&self, peer: u32, tag: u32) -> Result<Vec<u8>> {
            self.inner.recv(peer, tag)
        }
        fn all_gather(&self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
            all_gather(self, &self.turn, data)
        }
        fn barrier(&self) -> Result<()> {
            barrier(self, &self.turn)
        }
        fn host_id(&self, rank: u32) -> u64 {
            self.inner.host_id(rank)
        }
        fn process_id(&self, rank: u32) -> u64 {
            self.inner.process_id(rank)
        }
        fn stream(&self, peer: u32, label: u32) -> Result<OwnedFd> {
            self.inner.stream(peer, label)
        }
        fn timeout(&self) -> Duration {
            self.inner.timeout()
        }
    }

    impl Post for Counting {
        fn post(&self, to: u32, key: Key, data: &[u8], call: &Call) -> Result<()> {
            self.posts.fetch_add(1, Ordering::Relaxed);
            self.inner.post(to, key, data, call)
        }
        fn take(&self, from: u32, key: Key, call: &Call) -> Result<Vec<u8>> {
            self.inner.take(from, key, call)
        }
    }

    /// Runs `body` on a thread a rank; nobody leaves before all are done.
    fn on_ranks<T: Send>(
        n: u32,
        timeout: Duration,
        body: impl Fn(&Counting) -> T + Sync,
    ) -> Vec<T> {
        let make = |inner| Counting { inner, turn: Turn::default(), posts: AtomicU32::new(0) };
        let ranks: Vec<_> = LocalBootstrap::create(n, timeout).into_iter().map(make).collect();
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> =
                ranks.iter().map(|rank| scope.spawn(move || body(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn a_rank_sends_three_messages_at_most_whatever_the_number_of_ranks() {
        for n in [1, 2, 3, 8, 33, 120] {
            for sent in on_ranks(n, LONG, |rank| {
                let all = rank.all_gather(&vec![rank.rank() as u8; rank.rank() as usize]).unwrap();
                assert!(all.iter().enumerate().all(|(r, block)| *block == vec![r as u8; r]));
                rank.posts.load(Ordering::Relaxed)
            }) {
                assert!(sent <= 3, "{sent} of {n}");
            }
        }
    }

    #[test]
    fn a_rank_in_another_call_is_the_same_error_on_all_and_the_next_call_works() {
        for odd in 0..9 {
            let errors = on_ranks(9, LONG, |rank| {
                rank.barrier().unwrap();
                let failed = match rank.rank() == odd {
                    true => rank.barrier(),
                    false => rank.all_gather(b"x").map(|_| ()),
                };
                for round in 0..3u8 {
                    let all = rank.all_gather(&[round, rank.rank() as u8]).unwrap();
                    assert!((0..9).zip(&all).all(|(r, block)| *block == [round, r]));
                    rank.barrier().unwrap();
                }
                failed.unwrap_err()
            });
            for (rank, error) in (0..).zip(&errors) {
                let text = error.to_string();
                let (who, what) = match rank == odd {
                    true => (rank, "is in all_gather"),
                    false => (odd, "is in barrier"),
                };
                assert!(text.contains(what), "{odd}: {text}");
                assert!(
                    rank == odd || text.contains(&format!("rank {who} is in")),
                    "{odd}: {text}"
                );
            }
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_by_all() {
        let named_by_all = |late| {
            let errors = on_ranks(9, Duration::from_millis(300), |rank| {
                (rank.rank() != late).then(|| rank.barrier().unwrap_err())
            });
            errors.into_iter().flatten().all(|error| match error {
                Error::Deadline { peer, .. } => peer == late,
                other => panic!("{other}"),
            })
        };
        for late in [0, 3, 8] {
            // Ranks that begin at different times name the one next to them, and a machine that is
            // busy makes them.
            assert!((0..5).any(|_| named_by_all(late)), "{late}");
        }
    }
}

//! Semaphores between two ranks, and the tokens they count in.
//!
//! A token is an 8-byte count in this rank's device memory that one peer adds to. Tokens are reused,
//! so two things have to be shown.
//!
//! *A new semaphore begins at 0.* Its token is zeroed and the zeroing waited for before the token is
//! sent to the peer, and the peer signals only what it was sent: the zero comes before every signal
//! of the new semaphore.
//!
//! *No signal of the old semaphore comes after that zero.* A token is free only when both sides have
//! let go of it. This side has when its kernels that could wait for it have ended (it lies in the
//! [`Retired`] list until then). The peer has when its kernels that could signal it have ended, by
//! the same list; it says so in the next message that gives this rank a semaphore, and signals that
//! an ended kernel made have arrived. A peer that never builds another semaphore never says so, and
//! its tokens are not used again: eight bytes each, bounded by what it once held.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use mscclrs_device::Global;
use mscclrs_gpu::{Buffer, MemoryKind};

use crate::communicator::Shared;
use crate::future::Kind;
use crate::memory::{Export, Held, Import, Offered, Retired};
use crate::wire::{Reader, Writer};
use crate::{Communicator, Connection, Error, Future, Result};

/// Tokens an allocation.
const TOKENS: u64 = 4096;

/// Bytes a token.
const TOKEN_BYTES: u64 = 8;

/// A rank's tokens.
pub(crate) struct TokenPool {
    retired: Arc<Retired>,
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    slabs: Vec<Arc<Slab>>,
    /// By token number.
    tokens: Vec<Token>,
    free: Vec<u64>,
    /// Tokens of peers that this rank has let go of and not said so yet.
    to_tell: HashMap<u32, Vec<u64>>,
}

/// Who still uses a token.
#[derive(Clone, Copy, Default)]
struct Token {
    here: bool,
    /// The peer that was given it and did not say that it let go.
    there: Option<u32>,
}

/// One allocation of tokens that peers add to, and one beside it of what this rank expects.
struct Slab {
    inbound: Held<Buffer>,
    expected: Held<Buffer>,
    export: Export,
}

impl TokenPool {
    pub(crate) fn new(retired: &Arc<Retired>) -> Arc<Self> {
        Arc::new(TokenPool { retired: retired.clone(), pool: Mutex::default() })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Pool) -> T) -> T {
        work(&mut self.pool.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A zeroed token for signals of `peer`.
    fn lease(self: &Arc<Self>, shared: &Shared, peer: u32) -> Result<Lease> {
        let number = match self.with(|pool| pool.free.pop()) {
            Some(number) => number,
            None => {
                self.grow(shared)?;
                self.with(|pool| pool.free.pop()).ok_or(Error::Order {
                    what: "another thread took the last token of the communicator".into(),
                })?
            }
        };
        let slab = self.with(|pool| {
            pool.tokens[number as usize] = Token { here: true, there: None };
            pool.slabs[(number / TOKENS) as usize].clone()
        });
        let lease = Lease { pool: self.clone(), slab, number, remote: None };
        let (stream, zero) = (&shared.setup_stream, [0; TOKEN_BYTES as usize]);
        lease.slab.inbound.write(stream, lease.offset(), &zero)?;
        lease.slab.expected.write(stream, lease.offset(), &zero)?;
        shared.wait_idle(stream)?;
        // From here on the peer may hear of it.
        self.with(|pool| pool.tokens[number as usize].there = Some(peer));
        Ok(lease)
    }

    fn grow(&self, shared: &Shared) -> Result<()> {
        let bytes = TOKENS * TOKEN_BYTES;
        let inbound = shared.allocate(bytes)?;
        let expected = shared.device.alloc(bytes, MemoryKind::Plain)?;
        let expected = Held::new(&self.retired, expected);
        let export = shared.export(&inbound)?;
        self.with(|pool| {
            let first = pool.tokens.len() as u64;
            pool.slabs.push(Arc::new(Slab { inbound, expected, export }));
            pool.tokens.resize((first + TOKENS) as usize, Token::default());
            pool.free.extend((first..first + TOKENS).rev());
        });
        Ok(())
    }

    /// This rank's kernels that could wait for the token have ended.
    fn let_go(&self, number: u64) {
        self.with(|pool| {
            pool.tokens[number as usize].here = false;
            pool.free_if_unused(number);
        });
    }

    /// The peer's kernels that could signal the token have ended.
    fn peer_let_go(&self, peer: u32, number: u64) -> Result<()> {
        self.with(|pool| {
            let token = usize::try_from(number).ok().and_then(|i| pool.tokens.get_mut(i));
            let Some(token) = token.filter(|token| token.there == Some(peer)) else {
                return Err(Error::Malformed {
                    what: "semaphore of a peer",
                    field: "released",
                    why: format!("rank {peer} let go of token {number}, which it does not hold"),
                });
            };
            token.there = None;
            pool.free_if_unused(number);
            Ok(())
        })
    }

    /// Tokens that exist, and those of them that are free.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        self.with(|pool| (pool.tokens.len(), pool.free.len()))
    }
}

impl Pool {
    fn free_if_unused(&mut self, number: u64) {
        let token = self.tokens[number as usize];
        if !token.here && token.there.is_none() {
            self.free.push(number);
        }
    }
}

/// A token of this rank and, once it is known, the peer's.
struct Lease {
    pool: Arc<TokenPool>,
    slab: Arc<Slab>,
    number: u64,
    remote: Option<Remote>,
}

struct Remote {
    peer: u32,
    number: u64,
    slab: Import,
    offset: u64,
}

impl Lease {
    fn offset(&self) -> u64 {
        self.number % TOKENS * TOKEN_BYTES
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.let_go(self.number);
        if let Some(remote) = &self.remote {
            let told = |pool: &mut Pool| {
                pool.to_tell.entry(remote.peer).or_default().push(remote.number);
            };
            self.pool.with(told);
        }
    }
}

/// One side of a semaphore between this rank and a peer: the peer's signals are counted in this
/// rank's memory, this rank's in the peer's. Clones are the same side.
#[derive(Clone)]
pub struct Semaphore {
    lease: Arc<Held<Lease>>,
    connection: Connection,
}

impl Semaphore {
    /// The rank on the other side.
    pub fn peer(&self) -> u32 {
        self.connection.peer()
    }

    /// The path that signals take.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// What kernels use. It holds addresses: the semaphore has to outlive its kernels' launches; it
    /// is freed only after kernels that were launched by then have ended.
    pub fn device_handle(&self) -> mscclrs_device::Semaphore {
        let (slab, offset) = (&self.lease.slab, self.lease.offset());
        let remote = self.lease.remote.as_ref();
        mscclrs_device::Semaphore {
            remote: remote
                .map_or(Global::null(), |r| Global::from_address(r.slab.address() + r.offset)),
            inbound: Global::from_address(slab.inbound.address() + offset),
            expected: Global::from_address(slab.expected.address() + offset),
            peer: self.peer() as u64,
        }
    }
}

impl std::fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Semaphore(token {} with rank {})", self.lease.number, self.peer())
    }
}

impl Communicator {
    /// Builds a semaphore over a connection; the peer does the same with the same tag. Sends this
    /// side's token at once; the future waits for the other's.
    ///
    /// Waits for what was enqueued before. No side may launch a kernel that uses the semaphore
    /// before its future gave it; the other side need not have got there.
    pub fn build_semaphore(&self, connection: &Connection, tag: u32) -> Result<Future<Semaphore>> {
        let shared = &self.shared;
        let turn = self.enter()?;
        turn.quiesce()?;
        let peer = connection.peer();
        let lease = shared.tokens.lease(shared, peer)?;
        let mut message = Writer::new();
        message.u64(lease.number).u64(lease.offset());
        lease.slab.export.write(&mut message);
        let released = shared.tokens.with(|pool| pool.to_tell.remove(&peer)).unwrap_or_default();
        message.list(&released);
        if let Err(error) = shared.receives.send(peer, tag, Kind::Semaphore, &message.finish()) {
            shared.tokens.with(|pool| {
                pool.to_tell.entry(peer).or_default().extend(released);
                // The peer never heard of it.
                pool.tokens[lease.number as usize].there = None;
            });
            return Err(error);
        }
        let weak = Arc::downgrade(shared);
        let connection = connection.clone();
        shared.receives.receive(self.as_owner(), peer, tag, Kind::Semaphore, move |message| {
            let shared = weak.upgrade().ok_or_else(crate::future::gone)?;
            let mut lease = lease;
            lease.remote = Some(Remote::read(&shared, peer, message)?);
            mscclrs_log::debug!(CONN, rank = shared.rank, peer, "a semaphore is built");
            let lease = Arc::new(Held::new(&shared.retired, lease));
            Ok(Semaphore { lease, connection })
        })
    }
}

/// What a peer gives: the token that this rank signals, and which of this rank's it has let go of.
#[derive(Debug, PartialEq)]
pub(crate) struct Given {
    number: u64,
    offset: u64,
    pub(crate) offered: Offered,
    released: Vec<u64>,
}

impl Given {
    pub(crate) fn read(message: &[u8]) -> Result<Given> {
        let mut reader = Reader::new("semaphore of a peer", message);
        let (number, offset) = (reader.u64("number")?, reader.u64("offset")?);
        let offered = Offered::read(&mut reader)?;
        let released = reader.list("released", message.len() as u64 / TOKEN_BYTES)?;
        reader.end()?;
        let bytes = offered.handle.bytes;
        let end = offset.checked_add(TOKEN_BYTES);
        if offset % TOKEN_BYTES != 0 || end.is_none_or(|end| end > bytes) {
            return Err(reader.fail("offset", format!("no token lies at {offset} of {bytes}")));
        }
        Ok(Given { number, offset, offered, released })
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn write(&self, offered: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut message = Writer::new();
        message.u64(self.number).u64(self.offset);
        offered(&mut message);
        message.list(&self.released).finish()
    }
}

impl Remote {
    fn read(shared: &Shared, peer: u32, message: &[u8]) -> Result<Remote> {
        // Nothing is done before all of it was understood.
        let Given { number, offset, offered, released } = Given::read(message)?;
        for released in released {
            shared.tokens.peer_let_go(peer, released)?;
        }
        let slab = shared.import(peer, &offered)?;
        Ok(Remote { peer, number, slab, offset })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mscclrs_gpu::{BackendKind, Device};

    use super::*;
    use crate::LocalBootstrap;

    fn on_ranks(body: impl Fn(Communicator) + Sync) {
        let ranks = LocalBootstrap::create(2, Duration::from_secs(10));
        std::thread::scope(|scope| {
            for rank in ranks {
                scope.spawn(|| {
                    let device = Device::open(BackendKind::Cpu, 300).unwrap();
                    body(Communicator::new(Arc::new(rank), device).unwrap());
                });
            }
        });
    }

    #[test]
    fn tokens_are_used_again_once_both_sides_let_go() {
        on_ranks(|comm| {
            let peer = 1 - comm.rank();
            let connection = comm.connect(&Default::default(), peer, 1).unwrap().get().unwrap();
            let build = || comm.build_semaphore(&connection, 1).unwrap().get().unwrap();
            for _ in 0..100 {
                build();
            }
            // The last one dropped, and the one before, of which the peer speaks with its next.
            let (tokens, free) = comm.shared.tokens.count();
            assert_eq!(tokens, TOKENS as usize);
            assert!(free >= tokens - 3, "{free} of {tokens}");
            comm.bootstrap().barrier().unwrap();
        });
    }

    #[test]
    fn a_token_is_not_free_while_the_peer_may_signal_it() {
        on_ranks(|comm| {
            let peer = 1 - comm.rank();
            let connection = comm.connect(&Default::default(), peer, 1).unwrap().get().unwrap();
            let build = || comm.build_semaphore(&connection, 1).unwrap().get().unwrap();
            // Rank 0 keeps what rank 1 drops.
            let mut kept = Vec::new();
            for _ in 0..10 {
                let semaphore = build();
                if comm.rank() == 0 {
                    kept.push(semaphore);
                }
            }
            comm.reclaim().unwrap();
            let (tokens, free) = comm.shared.tokens.count();
            assert_eq!(free, tokens - 10);
            comm.bootstrap().barrier().unwrap();
        });
    }

    #[test]
    fn a_token_is_not_free_while_a_graph_may_use_it() {
        on_ranks(|comm| {
            let peer = 1 - comm.rank();
            let connection = comm.connect(&Default::default(), peer, 1).unwrap().get().unwrap();
            let build = || comm.build_semaphore(&connection, 1).unwrap().get().unwrap();
            let used = || {
                // What one side lets go of the other hears with the next but one.
                for _ in 0..3 {
                    build();
                    comm.reclaim().unwrap();
                }
                let (tokens, free) = comm.shared.tokens.count();
                tokens - free
            };
            let before = used();
            let semaphore = build();
            let stream = comm.device().create_stream().unwrap();
            let graph = stream.capture::<Error>(|stream| {
                comm.order(stream)?;
                // A kernel that uses it would be captured here.
                drop(semaphore);
                Ok(())
            });
            comm.bootstrap().barrier().unwrap();
            assert_eq!(used(), before + 1);
            drop(graph.unwrap());
            let since = std::time::Instant::now();
            // A graph lets go on a thread of its own; both ranks go round equally often.
            loop {
                let mine = [u8::from(used() == before)];
                let all = comm.bootstrap().all_gather(&mine).unwrap();
                if all.iter().all(|done| done[0] == 1) {
                    break;
                }
                assert!(since.elapsed() < Duration::from_secs(10));
            }
        });
    }

    #[test]
    fn letting_go_of_a_token_that_one_does_not_hold_is_an_error() {
        on_ranks(|comm| {
            let tokens = &comm.shared.tokens;
            let lease = tokens.lease(&comm.shared, 1 - comm.rank()).unwrap();
            for (peer, number) in [(comm.rank(), lease.number), (1 - comm.rank(), u64::MAX)] {
                assert!(matches!(tokens.peer_let_go(peer, number), Err(Error::Malformed { .. })));
            }
            tokens.peer_let_go(1 - comm.rank(), lease.number).unwrap();
            comm.bootstrap().barrier().unwrap();
        });
    }

    #[test]
    fn a_message_with_anything_wrong_is_refused_before_it_lets_go_of_tokens() {
        let handle = mscclrs_gpu::ExportedHandle {
            kind: mscclrs_gpu::HandleKind::Fabric,
            device_uuid: [0; 16],
            allocation: 1,
            allocation_bytes: 64,
            offset: 0,
            bytes: 64,
            payload: vec![0; 84],
        };
        let offered = Offered { handle, ticket: None };
        let message = |offset, released: &[u64]| {
            let mut message = Writer::new();
            message.u64(3).u64(offset);
            offered.write(&mut message);
            message.list(released).finish()
        };
        let whole = message(56, &[1, 2]);
        assert_eq!(Given::read(&whole).unwrap().released, [1, 2]);
        for length in 0..whole.len() {
            assert!(Given::read(&whole[..length]).is_err(), "{length}");
        }
        assert!(Given::read(&[&whole[..], &[0]].concat()).is_err());
        for offset in [1, 57, 64, u64::MAX] {
            let error = Given::read(&message(offset, &[1])).unwrap_err().to_string();
            assert!(error.contains("no token lies at"), "{error}");
        }
    }
}

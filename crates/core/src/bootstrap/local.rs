//! Ranks that are threads of one process, over queues in memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::Bootstrap;
use super::collective::{self, Call, Post, Turn};
use super::identity;
use super::mailbox::{Key, LEFT, Mailbox};
use crate::{Error, Loss, Result};

/// One rank of a group whose ranks are threads of this process.
///
/// Behaves as a group over sockets does; a rank that is dropped is gone for the others.
pub struct LocalBootstrap {
    rank: u32,
    timeout: Duration,
    process_id: u64,
    host_id: u64,
    mailboxes: Arc<Vec<Mailbox>>,
    turn: Turn,
}

impl LocalBootstrap {
    /// `n` ranks, in order, each to be used by a thread of its own; every call of theirs waits for
    /// at most `timeout`.
    pub fn create(n: u32, timeout: Duration) -> Vec<LocalBootstrap> {
        let process_id = identity::process_id();
        let host_id = identity::host_id();
        let mailboxes: Arc<Vec<Mailbox>> = Arc::new((0..n).map(|_| Mailbox::default()).collect());
        let rank = |rank| LocalBootstrap {
            rank,
            timeout,
            process_id,
            host_id,
            mailboxes: Arc::clone(&mailboxes),
            turn: Turn::default(),
        };
        (0..n).map(rank).collect()
    }

    fn mine(&self) -> &Mailbox {
        &self.mailboxes[self.rank as usize]
    }

    fn call(&self, operation: String, peer: u32) -> Result<Call> {
        let call = Call::new(operation, self.timeout);
        call.check_rank(peer, self.world_size())?;
        Ok(call)
    }
}

impl Bootstrap for LocalBootstrap {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.mailboxes.len() as u32
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

    fn host_id(&self, _rank: u32) -> u64 {
        self.host_id
    }

    fn process_id(&self, _rank: u32) -> u64 {
        self.process_id
    }

    fn stream(&self, peer: u32, label: u32) -> Result<OwnedFd> {
        let call = self.call(format!("stream to rank {peer}"), peer)?;
        if peer == self.rank {
            return Err(call.protocol(self.rank, peer, "is this rank itself".into()));
        }
        if self.rank > peer {
            return self
                .mine()
                .take_stream(peer, label, call.deadline)
                .map_err(|missed| call.error(self.rank, peer, missed));
        }
        let (mine, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|error| Error::io("cannot make a socket pair", error))?;
        self.mailboxes[peer as usize].put_stream(self.rank, label, theirs);
        Ok(mine)
    }

    fn report_loss(&self, loss: &Loss) {
        for mailbox in self.mailboxes.iter() {
            mailbox.lose(loss.rank, &loss.cause.to_string());
        }
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl Post for LocalBootstrap {
    fn post(&self, to: u32, key: Key, data: &[u8], call: &Call) -> Result<()> {
        if let Some(missed) = self.mine().why_gone(to) {
            return Err(call.error(self.rank, to, missed));
        }
        self.mailboxes[to as usize].put(self.rank, key, data.to_vec());
        Ok(())
    }

    fn take(&self, from: u32, key: Key, call: &Call) -> Result<Vec<u8>> {
        self.mine()
            .take(from, key, call.deadline)
            .map_err(|missed| call.error(self.rank, from, missed))
    }
}

impl Drop for LocalBootstrap {
    fn drop(&mut self) {
        for mailbox in self.mailboxes.iter() {
            if std::thread::panicking() {
                mailbox.lose(self.rank, "its thread panicked");
            } else {
                mailbox.close(self.rank, LEFT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `body` on a thread a rank and gives what each returned.
    fn on_ranks<T: Send>(n: u32, body: impl Fn(LocalBootstrap) -> T + Sync) -> Vec<T> {
        let ranks = LocalBootstrap::create(n, Duration::from_secs(5));
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> =
                ranks.into_iter().map(|rank| scope.spawn(move || body(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_gather_gives_every_rank_everything_in_rank_order() {
        for n in [1, 2, 3, 5, 8, 16, 33] {
            let expected: Vec<Vec<u8>> = (0..n).map(|r| vec![r as u8; r as usize % 7]).collect();
            for gathered in on_ranks(n, |rank| {
                rank.barrier().unwrap();
                rank.all_gather(&vec![rank.rank as u8; rank.rank as usize % 7]).unwrap()
            }) {
                assert_eq!(gathered, expected);
            }
        }
    }

    #[test]
    fn messages_are_ordered_by_tag_and_kept_until_asked_for() {
        on_ranks(2, |rank| {
            if rank.rank == 0 {
                for i in 0..10u8 {
                    rank.send(1, u32::from(i % 2), &[i]).unwrap();
                }
                rank.send(0, 7, b"self").unwrap();
                assert_eq!(rank.recv(0, 7).unwrap(), b"self");
            } else {
                for i in [1, 3, 5, 7, 9, 0, 2, 4, 6, 8] {
                    assert_eq!(rank.recv(0, u32::from(i % 2u8)).unwrap(), [i]);
                }
            }
        });
    }

    #[test]
    fn a_rank_that_left_is_named_and_its_messages_can_still_be_read() {
        on_ranks(2, |rank| {
            if rank.rank == 0 {
                rank.send(1, 3, b"last").unwrap();
            } else {
                assert_eq!(rank.recv(0, 3).unwrap(), b"last");
                let error = rank.recv(0, 3).unwrap_err();
                assert!(matches!(error, Error::PeerGone { peer: 0, rank: 1, .. }), "{error}");
                assert!(error.to_string().contains("recv from rank 0 with tag 3"), "{error}");
            }
        });
    }

    #[test]
    fn waiting_ends_at_the_deadline_and_names_the_rank() {
        let ranks = LocalBootstrap::create(3, Duration::from_millis(30));
        let error = ranks[0].recv(2, 1).unwrap_err();
        assert!(matches!(error, Error::Deadline { peer: 2, rank: 0, .. }), "{error}");
        assert!(matches!(ranks[0].recv(3, 1), Err(Error::NoSuchRank { rank: 3, .. })));
    }

    #[test]
    fn ranks_in_different_collectives_are_told() {
        let errors = on_ranks(2, |rank| {
            if rank.rank == 0 { rank.barrier() } else { rank.all_gather(b"x").map(|_| ()) }
        });
        for error in errors {
            let text = error.unwrap_err().to_string();
            assert!(text.contains("is in barrier") || text.contains("is in all_gather"), "{text}");
        }
    }

    #[test]
    fn streams_pair_by_label() {
        on_ranks(2, |rank| {
            let labels = if rank.rank == 0 { [5, 6] } else { [6, 5] };
            for label in labels {
                let stream = rank.stream(1 - rank.rank, label).unwrap();
                let mut stream = std::os::unix::net::UnixStream::from(stream);
                use std::io::{Read, Write};
                let mut byte = [0];
                if rank.rank == 0 {
                    stream.write_all(&[label as u8]).unwrap();
                    std::mem::forget(stream);
                } else {
                    stream.read_exact(&mut byte).unwrap();
                    assert_eq!(u32::from(byte[0]), label);
                }
            }
        });
    }
}

//! all_gather and barrier in log2(n) messages a rank.
//!
//! Dissemination (Bruck et al. 1997): after the step of distance d a rank holds what d·2 ranks from
//! itself upward gave. Each step has another partner, and messages of a pair keep their order, so
//! steps of consecutive calls cannot be confused; call number and kind travel along to tell ranks
//! that are in different calls.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Bootstrap;
use super::mailbox::{Key, Missed};
use crate::{Error, Result};

const GATHER: u8 = 1;
const BARRIER: u8 = 2;
/// Kind, then the call's number.
const HEADER: usize = 9;

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
    let call = Call::new("all_gather", post.timeout());
    call.check_length(post.rank(), post.rank(), data.len())?;
    let mut turn = turn.0.lock().unwrap_or_else(PoisonError::into_inner);
    *turn += 1;
    let (rank, n) = (post.rank(), post.world_size());
    let mut held = Vec::with_capacity(n as usize);
    held.push(data.to_vec());
    let mut distance = 1;
    while distance < n {
        let count = distance.min(n - distance);
        let mut message = header(GATHER, *turn);
        for block in held.iter().take(count as usize) {
            message.extend_from_slice(&(block.len() as u64).to_le_bytes());
            message.extend_from_slice(block);
        }
        let (to, from) = partners(rank, n, distance);
        call.check_length(rank, to, message.len())?;
        post.post(to, Key::Collective, &message, &call)?;
        let answer = post.take(from, Key::Collective, &call)?;
        let mut rest =
            body(&answer, GATHER, *turn).map_err(|why| call.protocol(rank, from, why))?;
        for _ in 0..count {
            let block = next_block(&mut rest).ok_or_else(|| {
                call.protocol(rank, from, "sent a damaged all_gather message".into())
            })?;
            held.push(block.to_vec());
        }
        distance *= 2;
    }
    // Held are the ranks from this one upward, around the end.
    held.rotate_right(rank as usize);
    Ok(held)
}

pub(super) fn barrier(post: &impl Post, turn: &Turn) -> Result<()> {
    let call = Call::new("barrier", post.timeout());
    let mut turn = turn.0.lock().unwrap_or_else(PoisonError::into_inner);
    *turn += 1;
    let (rank, n) = (post.rank(), post.world_size());
    let mut distance = 1;
    while distance < n {
        let (to, from) = partners(rank, n, distance);
        post.post(to, Key::Collective, &header(BARRIER, *turn), &call)?;
        let answer = post.take(from, Key::Collective, &call)?;
        body(&answer, BARRIER, *turn).map_err(|why| call.protocol(rank, from, why))?;
        distance *= 2;
    }
    Ok(())
}

fn partners(rank: u32, n: u32, distance: u32) -> (u32, u32) {
    let (rank, n, distance) = (u64::from(rank), u64::from(n), u64::from(distance));
    (((rank + n - distance) % n) as u32, ((rank + distance) % n) as u32)
}

fn header(kind: u8, turn: u64) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend_from_slice(&turn.to_le_bytes());
    message
}

fn body(message: &[u8], kind: u8, turn: u64) -> std::result::Result<&[u8], String> {
    let Some((head, rest)) = message.split_first_chunk::<HEADER>() else {
        return Err("sent a collective message without a header".into());
    };
    if head[..] == header(kind, turn)[..] {
        return Ok(rest);
    }
    let name = match head[0] {
        GATHER => "all_gather",
        BARRIER => "barrier",
        _ => "something unknown",
    };
    let mut number = [0; 8];
    number.copy_from_slice(&head[1..]);
    let number = u64::from_le_bytes(number);
    Err(format!(
        "is in {name} (its collective call number {number}, this rank's is {turn}); all ranks must \
         make the same calls in the same order"
    ))
}

fn next_block<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<8>()?;
    let (block, after) =
        after.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    *rest = after;
    Some(block)
}

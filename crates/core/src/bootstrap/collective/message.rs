//! What neighbours in the tree send each other in a collective call: which call it is, then what ranks
//! gave, or what ends the call on all of them.
//!
//! Invariant: the head is read alone, and what is behind it only in the call that it belongs to.

use std::time::Duration;

use super::Call;
use crate::Error;
use crate::bootstrap::join::MAX_WHY;
use crate::bootstrap::wire::{Damaged, Reader, Writer};

/// Bytes in front of each block, and of all of them.
pub(super) const BLOCK_HEAD: usize = 12;
pub(super) const HEAD: usize = 14;

/// What all ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum Kind {
    Gather = 1,
    Barrier = 2,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Gather => "all_gather",
            Kind::Barrier => "barrier",
        }
    }

    /// Most blocks of a message: one a rank, and none where ranks give nothing.
    fn most_blocks(self, world_size: u32) -> u32 {
        match self {
            Kind::Gather => world_size,
            Kind::Barrier => 0,
        }
    }
}

/// What ranks gave, each with its number.
pub(in crate::bootstrap) type Blocks = Vec<(u32, Vec<u8>)>;

/// The blocks of all ranks in their order, if each is there once.
pub(in crate::bootstrap) fn by_rank(
    mut blocks: Blocks,
    world_size: u32,
) -> Result<Vec<Vec<u8>>, Damaged> {
    blocks.sort_unstable_by_key(|(rank, _)| *rank);
    let whole = blocks.iter().map(|(rank, _)| *rank).eq(0..world_size);
    if whole { Ok(blocks.into_iter().map(|(_, block)| block).collect()) } else { Err(Damaged) }
}

/// A message of the call with this number.
pub(in crate::bootstrap) fn write(
    kind: Kind,
    number: u64,
    outcome: &Result<Blocks, Failure>,
) -> Vec<u8> {
    let head = Writer::default().u8(kind as u8).u64(number);
    match outcome {
        Err(failure) => failure.write(head).0,
        Ok(blocks) => {
            let mut writer = head.u8(0).u32(blocks.len() as u32);
            for (rank, block) in blocks {
                writer = writer.u32(*rank).u64(block.len() as u64);
                writer.0.extend_from_slice(block);
            }
            writer.0
        }
    }
}

/// Which call a message belongs to: none of a kind that this version knows, perhaps.
pub(in crate::bootstrap) fn read_head(
    reader: &mut Reader<'_>,
) -> Result<(Option<Kind>, u64), Damaged> {
    let kind = match reader.u8()? {
        1 => Some(Kind::Gather),
        2 => Some(Kind::Barrier),
        _ => None,
    };
    Ok((kind, reader.u64()?))
}

/// What is behind the head of a message of such a call.
pub(in crate::bootstrap) fn read_outcome(
    mut reader: Reader<'_>,
    kind: Kind,
    world_size: u32,
) -> Result<Result<Blocks, Failure>, Damaged> {
    let outcome = match Failure::read(&mut reader)? {
        Some(failure) => Err(failure),
        None => Ok(read_blocks(&mut reader, kind.most_blocks(world_size))?),
    };
    reader.end()?;
    Ok(outcome)
}

fn read_blocks(reader: &mut Reader<'_>, most: u32) -> Result<Blocks, Damaged> {
    let count = reader.u32()?;
    if count > most {
        return Err(Damaged);
    }
    let block = |_| {
        let (rank, length) = (reader.u32()?, reader.u64()?);
        let length = usize::try_from(length).map_err(|_| Damaged)?;
        Ok((rank, reader.bytes(length)?.to_vec()))
    };
    (0..count).map(block).collect()
}

/// What ends a call on all ranks.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum Failure {
    /// `rank` waited for `peer`, which did not come.
    Deadline { rank: u32, peer: u32, waited: Duration },
    /// `rank` saw that `peer` is gone.
    Gone { rank: u32, peer: u32, why: String },
    /// `rank` got from `peer` what it cannot use.
    Protocol { rank: u32, peer: u32, why: String },
}

impl Failure {
    /// `here` is this rank, whose own trouble the error is if it names nobody.
    pub(super) fn of(error: Error, here: u32) -> Failure {
        match error {
            Error::Deadline { rank, peer, waited, .. } => Failure::Deadline { rank, peer, waited },
            Error::PeerGone { rank, peer, why, .. } => Failure::Gone { rank, peer, why },
            Error::Protocol { rank, peer, why, .. } => Failure::Protocol { rank, peer, why },
            other => Failure::Protocol { rank: here, peer: here, why: format!("failed: {other}") },
        }
    }

    /// The rank whose finding it is.
    pub(super) fn found_by(&self) -> u32 {
        match self {
            Failure::Deadline { rank, .. }
            | Failure::Gone { rank, .. }
            | Failure::Protocol { rank, .. } => *rank,
        }
    }

    pub(super) fn into_error(self, call: &Call) -> Error {
        let operation = call.operation.clone();
        match self {
            Failure::Deadline { rank, peer, waited } => {
                Error::Deadline { operation, rank, peer, waited }
            }
            Failure::Gone { rank, peer, why } => Error::PeerGone { operation, rank, peer, why },
            Failure::Protocol { rank, peer, why } => Error::Protocol { operation, rank, peer, why },
        }
    }

    fn write(&self, writer: Writer) -> Writer {
        match self {
            Failure::Deadline { rank, peer, waited } => {
                let ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                writer.u8(1).u32(*rank).u32(*peer).u64(ms)
            }
            Failure::Gone { rank, peer, why } => {
                writer.u8(2).u32(*rank).u32(*peer).text(why, MAX_WHY)
            }
            Failure::Protocol { rank, peer, why } => {
                writer.u8(3).u32(*rank).u32(*peer).text(why, MAX_WHY)
            }
        }
    }

    /// None where the message brings blocks.
    fn read(reader: &mut Reader<'_>) -> Result<Option<Failure>, Damaged> {
        let code = reader.u8()?;
        if code == 0 {
            return Ok(None);
        }
        let (rank, peer) = (reader.u32()?, reader.u32()?);
        Ok(Some(match code {
            1 => Failure::Deadline { rank, peer, waited: Duration::from_millis(reader.u64()?) },
            2 => Failure::Gone { rank, peer, why: reader.text(MAX_WHY)? },
            3 => Failure::Protocol { rank, peer, why: reader.text(MAX_WHY)? },
            _ => return Err(Damaged),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: u32 = 3;

    fn read(bytes: &[u8]) -> Result<Result<Blocks, Failure>, Damaged> {
        let mut reader = Reader(bytes);
        let (kind, _) = read_head(&mut reader)?;
        read_outcome(reader, kind.ok_or(Damaged)?, N)
    }

    #[test]
    fn every_damaged_message_is_an_error() {
        let outcomes = [
            Ok(vec![(0, vec![1, 2, 3]), (1, Vec::new()), (2, vec![4])]),
            Err(Failure::Deadline { rank: 0, peer: 1, waited: Duration::from_millis(7) }),
            Err(Failure::Gone { rank: 1, peer: 2, why: "x".into() }),
            Err(Failure::Protocol { rank: 2, peer: 2, why: "y".into() }),
        ];
        for outcome in outcomes {
            let message = write(Kind::Gather, 5, &outcome);
            assert_eq!(read(&message).as_ref(), Ok(&outcome));
            assert!((0..message.len()).all(|cut| read(&message[..cut]).is_err()));
            assert!(read(&[&message[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn there_is_one_block_a_rank_and_none_in_a_barrier() {
        let blocks = |ranks: &[u32]| ranks.iter().map(|&rank| (rank, vec![7])).collect::<Blocks>();
        let message = |kind, ranks: &[u32]| write(kind, 1, &Ok(blocks(ranks)));
        assert_eq!(read(&message(Kind::Gather, &[0, 1, 2, 0])), Err(Damaged));
        assert_eq!(read(&message(Kind::Barrier, &[])), Ok(Ok(Vec::new())));
        assert_eq!(read(&message(Kind::Barrier, &[0])), Err(Damaged));
        for ranks in [&[0, 0, 2][..], &[0, 1], &[0, 1, 3]] {
            assert_eq!(by_rank(blocks(ranks), N), Err(Damaged));
        }
        assert_eq!(by_rank(blocks(&[2, 0, 1]), N), Ok(vec![vec![7]; 3]));
    }

    #[test]
    fn a_reason_of_any_length_arrives_cut() {
        let why = "é".repeat(usize::from(MAX_WHY));
        let message = write(Kind::Barrier, 1, &Err(Failure::Gone { rank: 1, peer: 2, why }));
        let Ok(Err(Failure::Gone { why, .. })) = read(&message) else { panic!("{message:?}") };
        assert_eq!(why, "é".repeat(usize::from(MAX_WHY) / 2));
    }
}

//! What ranks and the rendezvous say to each other once the secret is proved.

use std::net::SocketAddr;

use super::verdict::RendezvousError;
use super::wire::{Damaged, Reader, Writer};

/// First byte of the first message of a connection.
pub(super) const JOIN: u8 = 1;
pub(super) const MAIL: u8 = 2;
pub(super) const STREAM: u8 = 3;

/// The longest verdict: a table of the most ranks.
pub(super) const MAX_VERDICT: usize = 32 << 20;

/// What all ranks learn of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) host_id: u64,
    pub(super) process_id: u64,
}

/// What a rank reports. The build comes first in every version, so that builds can be told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) build: String,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// Until the deadline of this rank.
    pub(super) remaining_ms: u64,
    pub(super) peer: Peer,
}

impl Join {
    pub(super) fn encode(&self) -> Vec<u8> {
        let head = Writer::default().u8(JOIN).text(&self.build).u32(self.rank);
        self.peer.encode(head.u32(self.world_size).u64(self.remaining_ms)).0
    }

    /// Of another build only build and rank numbers are read.
    pub(super) fn decode(bytes: &[u8]) -> Result<Join, Damaged> {
        let mut reader = Reader(bytes);
        if reader.u8()? != JOIN {
            return Err(Damaged);
        }
        let build = reader.text()?;
        let (rank, world_size, remaining_ms) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let peer = match Peer::decode(&mut reader) {
            Ok(peer) => peer,
            Err(_) if build != super::build() => {
                Peer { addresses: Vec::new(), host_id: 0, process_id: 0 }
            }
            Err(damaged) => return Err(damaged),
        };
        // A day is as good as for ever, and cannot overflow a clock.
        Ok(Join { build, rank, world_size, remaining_ms: remaining_ms.min(86_400_000), peer })
    }
}

impl Peer {
    fn encode(&self, writer: Writer) -> Writer {
        writer.addresses(&self.addresses).u64(self.host_id).u64(self.process_id)
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Peer, Damaged> {
        Ok(Peer {
            addresses: reader.addresses()?,
            host_id: reader.u64()?,
            process_id: reader.u64()?,
        })
    }
}

/// What the rendezvous answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Failed(RendezvousError),
    Table(Vec<Peer>),
}

impl Verdict {
    /// With its length in front.
    pub(super) fn encode(&self) -> Vec<u8> {
        let body = match self {
            Verdict::Failed(error) => error.encode(Writer::default().u8(1)),
            Verdict::Table(peers) => {
                let head = Writer::default().u8(0).u32(peers.len() as u32);
                peers.iter().fold(head, |writer, peer| peer.encode(writer))
            }
        };
        let mut message = (body.0.len() as u32).to_le_bytes().to_vec();
        message.extend_from_slice(&body.0);
        message
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Verdict, Damaged> {
        let mut reader = Reader(bytes);
        let verdict = match reader.u8()? {
            0 => {
                let count = reader.u32()?;
                Verdict::Table(
                    (0..count).map(|_| Peer::decode(&mut reader)).collect::<Result<_, _>>()?,
                )
            }
            1 => Verdict::Failed(RendezvousError::decode(&mut reader)?),
            _ => return Err(Damaged),
        };
        reader.end()?;
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_seen() {
        let peer = |n: u64| Peer {
            addresses: vec!["127.0.0.1:9".parse().unwrap(); n as usize],
            host_id: n,
            process_id: n + 1,
        };
        let join = Join {
            build: super::super::build(),
            rank: 3,
            world_size: 4,
            remaining_ms: 5,
            peer: peer(2),
        };
        let bytes = join.encode();
        assert_eq!(Join::decode(&bytes).unwrap(), join);
        let table = Verdict::Table(vec![peer(0), peer(1)]);
        let encoded = table.encode();
        assert_eq!(Verdict::decode(&encoded[4..]).unwrap(), table);
        for cut in 0..bytes.len() {
            assert!(Join::decode(&bytes[..cut]).is_err());
        }
        for cut in 4..encoded.len() {
            assert!(Verdict::decode(&encoded[4..cut]).is_err());
        }
        // A count that is not there allocates nothing.
        assert!(Verdict::decode(&[0, 255, 255, 255, 255]).is_err());
    }

    #[test]
    fn every_failure_survives_the_wire() {
        for failure in [
            RendezvousError::BuildMismatch { rank: 1, build: "a".into(), expected: "b".into() },
            RendezvousError::DuplicateRank { rank: 2 },
            RendezvousError::MissingRanks {
                ranks: vec![1, 5],
                world_size: 6,
                waited_ms: 7,
                refused: 8,
            },
            RendezvousError::RankLost { rank: 3 },
            RendezvousError::RankOutOfRange { rank: 9, world_size: 4 },
            RendezvousError::WorldSizeMismatch { rank: 1, world_size: 2, expected: 3 },
        ] {
            let verdict = Verdict::Failed(failure);
            assert_eq!(Verdict::decode(&verdict.encode()[4..]).unwrap(), verdict);
        }
    }
}

//! What ranks and the rendezvous say to each other once the secret is proved.

use std::io;
use std::net::SocketAddr;

use super::verdict::RendezvousError;
use super::wire::{Damaged, Reader, Writer};

/// First byte of the first message of a connection.
pub(super) const JOIN: u8 = 1;
pub(super) const MAIL: u8 = 2;
pub(super) const STREAM: u8 = 3;

/// The longest verdict: the names of the most ranks.
pub(super) const MAX_VERDICT: usize = 1 << 20;
/// The longest report.
pub(super) const MAX_REPORT: usize = 64 << 10;

/// Most addresses that a rank listens at.
pub(super) const MAX_ADDRESSES: u8 = 8;
/// Names of builds are cut to this many bytes, and what says why ranks did not meet to so many.
pub(super) const MAX_BUILD: u16 = 256;
pub(super) const MAX_WHY: u16 = 4096;
/// A parent and two children.
const MAX_NEIGHBOURS: u32 = 3;

/// What all ranks learn of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) host_id: u64,
    pub(super) process_id: u64,
}

/// The first that a rank says, as soon as it can: from then on its end has its name. The build comes
/// first in every version, so that builds can be told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) build: String,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// Until the deadline of this rank.
    pub(super) remaining_ms: u64,
}

impl Join {
    pub(super) fn encode(&self) -> Vec<u8> {
        let head = Writer::default().u8(JOIN).text(&self.build, MAX_BUILD).u32(self.rank);
        head.u32(self.world_size).u64(self.remaining_ms).0
    }

    /// What another build says behind these is not read.
    pub(super) fn decode(bytes: &[u8]) -> Result<Join, Damaged> {
        let mut reader = Reader(bytes);
        if reader.u8()? != JOIN {
            return Err(Damaged);
        }
        let build = reader.text(MAX_BUILD)?;
        let (rank, world_size, remaining_ms) = (reader.u32()?, reader.u32()?, reader.u64()?);
        if build == super::build() {
            reader.end()?;
        }
        // A day is as good as for ever, and cannot overflow a clock.
        Ok(Join { build, rank, world_size, remaining_ms: remaining_ms.min(86_400_000) })
    }
}

impl Peer {
    pub(super) fn encode(&self, writer: Writer) -> Writer {
        writer.addresses(&self.addresses, MAX_ADDRESSES).u64(self.host_id).u64(self.process_id)
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Peer, Damaged> {
        Ok(Peer {
            addresses: reader.addresses(MAX_ADDRESSES)?,
            host_id: reader.u64()?,
            process_id: reader.u64()?,
        })
    }
}

/// What a rank says after it joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// Where it can be reached.
    Reachable(Peer),
    /// It is connected with its neighbours.
    Connected,
    /// It cannot be connected with one.
    Failed { peer: u32, why: String },
}

impl Report {
    /// With its length in front.
    pub(super) fn encode(&self) -> Vec<u8> {
        let writer = Writer::default();
        framed(match self {
            Report::Reachable(peer) => peer.encode(writer.u8(1)),
            Report::Connected => writer.u8(2),
            Report::Failed { peer, why } => writer.u8(3).u32(*peer).text(why, MAX_WHY),
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Report, Damaged> {
        let mut reader = Reader(bytes);
        let report = match reader.u8()? {
            1 => Report::Reachable(Peer::decode(&mut reader)?),
            2 => Report::Connected,
            3 => Report::Failed { peer: reader.u32()?, why: reader.text(MAX_WHY)? },
            _ => return Err(Damaged),
        };
        reader.end()?;
        Ok(report)
    }
}

/// What the rendezvous answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It came to nothing, for every rank.
    Failed(RendezvousError),
    /// All have come; the rank is to connect with these.
    Neighbours(Vec<(u32, Peer)>),
    /// All are connected.
    Go,
}

impl Verdict {
    /// With its length in front.
    pub(super) fn encode(&self) -> Vec<u8> {
        let writer = Writer::default();
        framed(match self {
            Verdict::Failed(error) => error.encode(writer.u8(1)),
            Verdict::Neighbours(peers) => {
                let head = writer.u8(2).u32(peers.len() as u32);
                peers.iter().fold(head, |writer, (rank, peer)| peer.encode(writer.u32(*rank)))
            }
            Verdict::Go => writer.u8(3),
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Verdict, Damaged> {
        let mut reader = Reader(bytes);
        let verdict = match reader.u8()? {
            1 => Verdict::Failed(RendezvousError::decode(&mut reader)?),
            2 => {
                let count = reader.u32()?;
                if count > MAX_NEIGHBOURS {
                    return Err(Damaged);
                }
                let peer = |_| Ok((reader.u32()?, Peer::decode(&mut reader)?));
                Verdict::Neighbours((0..count).map(peer).collect::<Result<_, Damaged>>()?)
            }
            3 => Verdict::Go,
            _ => return Err(Damaged),
        };
        reader.end()?;
        Ok(verdict)
    }
}

/// With its length in front, as all messages between a rank and the rendezvous are.
pub(super) fn framed(message: Writer) -> Vec<u8> {
    [&(message.0.len() as u32).to_le_bytes()[..], &message.0].concat()
}

/// Takes in what has come, but no more than the longest message and its length, so that a full inbox
/// always has a message to take; the rest stays in the socket. False at the end of the connection.
pub(super) fn fill(
    inbox: &mut Vec<u8>,
    most: usize,
    mut recv_now: impl FnMut(&mut [u8]) -> io::Result<Option<usize>>,
) -> io::Result<bool> {
    let mut chunk = [0; 4096];
    loop {
        let room = chunk.len().min((4 + most).saturating_sub(inbox.len()));
        if room == 0 {
            return Ok(true);
        }
        match recv_now(&mut chunk[..room])? {
            None => return Ok(true),
            Some(0) => return Ok(false),
            Some(count) => inbox.extend_from_slice(&chunk[..count]),
        }
    }
}

/// Takes the first whole message out of what came.
pub(super) fn take_frame(inbox: &mut Vec<u8>, most: usize) -> Result<Option<Vec<u8>>, Damaged> {
    let Some((length, rest)) = inbox.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > most {
        return Err(Damaged);
    }
    let Some(message) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
    inbox.drain(..4 + length);
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u64) -> Peer {
        Peer {
            addresses: vec!["127.0.0.1:9".parse().unwrap(); n as usize],
            host_id: n,
            process_id: n + 1,
        }
    }

    #[test]
    fn a_join_is_read_and_one_of_another_build_too() {
        let join = Join { build: super::super::build(), rank: 3, world_size: 4, remaining_ms: 5 };
        let bytes = join.encode();
        assert_eq!(Join::decode(&bytes).unwrap(), join);
        for cut in 0..bytes.len() {
            assert_eq!(Join::decode(&bytes[..cut]), Err(Damaged));
        }
        let other = Join { build: "9.9.9".into(), ..join };
        let longer = [&other.encode()[..], b"what only that build knows"].concat();
        assert_eq!(Join::decode(&longer).unwrap(), other);
    }

    #[test]
    fn the_longest_message_gets_in_however_it_is_cut_and_nothing_longer() {
        const MOST: usize = 5000;
        let message = |length: usize| framed(Writer(vec![7; length]));
        let sent = [message(MOST), message(3), message(MOST), message(0)].concat();
        for cut in (1..10).chain(4090..4100).chain(MOST - 8..MOST + 12) {
            let (mut inbox, mut lengths) = (Vec::new(), Vec::new());
            let mut waiting = sent.chunks(cut).map(<[u8]>::to_vec);
            let mut socket = Vec::new();
            let mut open = true;
            while open {
                socket.extend(waiting.next().unwrap_or_default());
                let has_ended = waiting.len() == 0;
                let recv_now = |buffer: &mut [u8]| {
                    let count = buffer.len().min(socket.len());
                    buffer[..count].copy_from_slice(&socket[..count]);
                    socket.drain(..count);
                    Ok((count > 0 || has_ended).then_some(count))
                };
                open = fill(&mut inbox, MOST, recv_now).unwrap();
                assert!(inbox.len() <= 4 + MOST);
                let before = lengths.len();
                while let Some(message) = take_frame(&mut inbox, MOST).unwrap() {
                    lengths.push(message.len());
                }
                assert!(inbox.len() < 4 + MOST || lengths.len() > before, "it reads no more");
            }
            assert_eq!(lengths, [MOST, 3, MOST, 0], "{cut}");
            assert!(inbox.is_empty());
        }
        assert_eq!(take_frame(&mut message(MOST + 1), MOST), Err(Damaged));
    }

    #[test]
    fn frames_survive_any_cut_and_damage_is_seen() {
        let reports = [
            Report::Reachable(peer(2)),
            Report::Connected,
            Report::Failed { peer: 7, why: "no route".into() },
        ];
        let verdicts = [
            Verdict::Neighbours(vec![(0, peer(0)), (9, peer(1))]),
            Verdict::Go,
            Verdict::Failed(RendezvousError::RankLost { rank: 3 }),
            Verdict::Failed(RendezvousError::Unconnected { rank: 1, peer: 2, why: "x".into() }),
        ];
        let mut inbox = Vec::new();
        let mut frames = Vec::new();
        let sent = reports.iter().map(Report::encode).chain(verdicts.iter().map(Verdict::encode));
        for byte in sent.flatten() {
            inbox.push(byte);
            frames.extend(take_frame(&mut inbox, MAX_REPORT).unwrap());
        }
        assert!(inbox.is_empty());
        let (first, second) = frames.split_at(reports.len());
        for (frame, report) in first.iter().zip(&reports) {
            assert_eq!(Report::decode(frame).unwrap(), *report);
            assert!((0..frame.len()).all(|cut| Report::decode(&frame[..cut]).is_err()));
        }
        for (frame, verdict) in second.iter().zip(&verdicts) {
            assert_eq!(Verdict::decode(frame).unwrap(), *verdict);
            assert!((0..frame.len()).all(|cut| Verdict::decode(&frame[..cut]).is_err()));
        }
        assert_eq!(take_frame(&mut vec![255; 8], MAX_REPORT), Err(Damaged));
    }
}

//! What neighbours say to each other: a kind, a length, a body.

use crate::bootstrap::{Damaged, Reader, Writer};

use super::{Loss, LossCause};

/// A goodbye, as the exit hook writes it too.
pub(super) const GOODBYE: [u8; 3] = [1, 0, 0];
/// Texts of failures are cut to this.
const MAX_TEXT: u16 = 4096;
const MAX_BODY: usize = MAX_TEXT as usize + 16;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Goodbye,
    Heartbeat,
    Left(u32),
    Lost(Loss),
}

impl Frame {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let body = Writer::default();
        let (kind, body) = match self {
            Frame::Goodbye => (GOODBYE[0], body),
            Frame::Heartbeat => (2, body),
            Frame::Left(rank) => (3, body.u32(*rank)),
            Frame::Lost(Loss { rank, cause }) => {
                let body = body.u32(*rank);
                let body = match cause {
                    LossCause::Failed(text) => body.u8(1).text(text, MAX_TEXT),
                    LossCause::HungUp => body.u8(2),
                    LossCause::Silent => body.u8(3),
                };
                (4, body)
            }
        };
        out.push(kind);
        out.extend_from_slice(&(body.0.len() as u16).to_le_bytes());
        out.extend_from_slice(&body.0);
    }

    /// Takes the first whole frame, if there is one.
    pub(super) fn take(inbox: &mut Vec<u8>) -> Result<Option<Frame>, Damaged> {
        let Some((&[kind, low, high], rest)) = inbox.split_first_chunk::<3>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_le_bytes([low, high]));
        if length > MAX_BODY {
            return Err(Damaged);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let mut reader = Reader(body);
        let frame = match kind {
            1 => Frame::Goodbye,
            2 => Frame::Heartbeat,
            3 => Frame::Left(reader.u32()?),
            4 => {
                let rank = reader.u32()?;
                let cause = match reader.u8()? {
                    1 => LossCause::Failed(reader.text(MAX_TEXT)?),
                    2 => LossCause::HungUp,
                    3 => LossCause::Silent,
                    _ => return Err(Damaged),
                };
                Frame::Lost(Loss { rank, cause })
            }
            _ => return Err(Damaged),
        };
        reader.end()?;
        inbox.drain(..3 + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut_and_damage_is_seen() {
        let lost = |cause| Frame::Lost(Loss { rank: 7, cause });
        let frames = || {
            [
                Frame::Heartbeat,
                Frame::Left(3),
                lost(LossCause::Failed("é".repeat(3))),
                lost(LossCause::HungUp),
                lost(LossCause::Silent),
                Frame::Goodbye,
            ]
        };
        let mut bytes = Vec::new();
        frames().iter().for_each(|frame| frame.put(&mut bytes));
        assert!(bytes.ends_with(&GOODBYE));
        let mut inbox = Vec::new();
        let mut read = Vec::new();
        for byte in bytes {
            inbox.push(byte);
            read.extend(Frame::take(&mut inbox).unwrap());
        }
        assert_eq!(read, frames());
        for bad in
            [&[0, 0, 0][..], &[9, 0, 0], &[1, 1, 0, 5], &[2, 255, 255], &[4, 5, 0, 0, 0, 0, 0, 9]]
        {
            assert_eq!(Frame::take(&mut bad.to_vec()), Err(Damaged), "{bad:?}");
        }
    }

    #[test]
    fn long_texts_are_cut_to_what_the_other_side_takes() {
        let cause = LossCause::Failed("é".repeat(100_000));
        let mut bytes = Vec::new();
        Frame::Lost(Loss { rank: 0, cause }).put(&mut bytes);
        assert!(matches!(Frame::take(&mut bytes), Ok(Some(Frame::Lost(_)))));
    }
}

//! The accepting side of one handshake: nothing of a stranger is read beyond a nonce and a proof.
//!
//! Invariant: never is more asked for than the step at hand needs, so what follows the first message
//! stays in the socket for who takes the connection over; and a length is looked at before anything
//! of that length is read.

use std::io;

use super::secret::{MAGIC, NONCE, Nonces, PROOF, Role, Secret};

/// The longest first message.
pub(super) const MAX_FIRST: usize = 64 << 10;

/// Answers the proof of one who knows the secret, or of one who does not.
pub(super) const WELCOME: u8 = 1;
pub(super) const REFUSED: u8 = 0;

/// What a handshake talks to.
pub(super) trait Line {
    /// What can be read at once: none if nothing can, 0 at the end.
    fn recv_now(&self, buffer: &mut [u8]) -> io::Result<Option<usize>>;
    /// Sends a few bytes, which an empty socket has room for.
    fn reply(&self, bytes: &[u8]) -> io::Result<()>;
    /// Bytes that nobody can guess.
    fn nonce(&self) -> io::Result<[u8; NONCE]>;
}

pub(super) struct Handshake {
    step: Step,
    buffer: Vec<u8>,
    want: usize,
}

enum Step {
    Hello,
    Proof(Nonces),
    Length,
    First,
}

impl Handshake {
    pub(super) fn new() -> Handshake {
        Handshake { step: Step::Hello, buffer: Vec::new(), want: MAGIC.len() + NONCE }
    }

    /// Whether the secret is not proved yet.
    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.step, Step::Hello | Step::Proof(_))
    }

    /// Reads what is there; gives the first message when it is complete. `PermissionDenied` is one
    /// who does not know the secret.
    pub(super) fn advance(
        &mut self,
        line: &impl Line,
        secret: &Secret,
    ) -> io::Result<Option<Vec<u8>>> {
        loop {
            if !self.fill(line)? {
                return Ok(None);
            }
            let got = std::mem::take(&mut self.buffer);
            match &self.step {
                Step::Hello => {
                    let (magic, connecting) = got.split_at(MAGIC.len());
                    let Ok(connecting) = connecting.try_into() else { return Err(stranger()) };
                    if magic != MAGIC {
                        return Err(stranger());
                    }
                    let accepting = line.nonce()?;
                    line.reply(&accepting)?;
                    self.next(Step::Proof(Nonces { connecting, accepting }), PROOF);
                }
                Step::Proof(nonces) => {
                    if !secret.verify(Role::Connecting, nonces, &got) {
                        // So that it can tell a wrong secret from a busy host.
                        line.reply(&[REFUSED])?;
                        return Err(io::ErrorKind::PermissionDenied.into());
                    }
                    let proof = secret.prove(Role::Accepting, nonces);
                    line.reply(&[&[WELCOME], &proof[..]].concat())?;
                    self.next(Step::Length, 4);
                }
                Step::Length => {
                    let length = got.try_into().map_err(|_| stranger())?;
                    let length = u32::from_le_bytes(length) as usize;
                    if length == 0 || length > MAX_FIRST {
                        return Err(stranger());
                    }
                    self.next(Step::First, length);
                }
                Step::First => return Ok(Some(got)),
            }
        }
    }

    fn next(&mut self, step: Step, want: usize) {
        self.step = step;
        self.want = want;
    }

    /// Whether all that the step needs is there.
    fn fill(&mut self, line: &impl Line) -> io::Result<bool> {
        while self.buffer.len() < self.want {
            let mut chunk = [0; 4096];
            let room = chunk.len().min(self.want - self.buffer.len());
            match line.recv_now(&mut chunk[..room])? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(count) => self.buffer.extend_from_slice(&chunk[..count]),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

fn stranger() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

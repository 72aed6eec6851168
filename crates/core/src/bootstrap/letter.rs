//! Messages between ranks as they stand on a connection: length, key, body.
//!
//! Invariant: what is asked for never passes the end of the message at hand, and a body grows as it
//! comes: a length alone takes no memory.

use super::MAX_MESSAGE;
use super::mailbox::Key;
use super::wire::{Reader, Writer};

/// Length and key.
pub(super) const HEADER: usize = 12;

/// What stands before a body of `bytes`, which are at most [`MAX_MESSAGE`].
pub(super) fn header(key: Key, bytes: usize) -> Vec<u8> {
    Writer::default().u32(bytes as u32).u64(key.to_wire()).0
}

/// A message that is coming in.
#[derive(Default)]
pub(super) struct Letter {
    header: Vec<u8>,
    body: Vec<u8>,
}

impl Letter {
    /// Whether nothing has come of it.
    pub(super) fn is_empty(&self) -> bool {
        self.header.is_empty()
    }

    /// Bytes still to come of the header, or else of the body; at least 1. An error says why nothing
    /// more can be read.
    pub(super) fn missing(&self) -> Result<usize, String> {
        Ok(match self.length()? {
            None => HEADER - self.header.len(),
            Some(length) => length - self.body.len(),
        })
    }

    /// Takes in at most what is missing; gives the message when it is whole.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<Option<(Key, Vec<u8>)>, String> {
        if self.header.len() < HEADER {
            self.header.extend_from_slice(bytes);
        } else {
            self.body.extend_from_slice(bytes);
        }
        if self.length()? != Some(self.body.len()) {
            return Ok(None);
        }
        let key = Reader(&self.header[4..]).u64().ok().and_then(Key::from_wire);
        let key = key.ok_or("it sent a damaged message")?;
        self.header.clear();
        Ok(Some((key, std::mem::take(&mut self.body))))
    }

    /// Bytes of the body, once the header has come.
    fn length(&self) -> Result<Option<usize>, String> {
        if self.header.len() < HEADER {
            return Ok(None);
        }
        match Reader(&self.header).u32().unwrap_or(u32::MAX) as usize {
            length if length > MAX_MESSAGE => {
                Err(format!("it sent a message of {length} bytes, more than is allowed"))
            }
            length => Ok(Some(length)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_survive_any_cut() {
        let sent =
            [(Key::User(7), vec![1, 2, 3]), (Key::Collective, vec![]), (Key::User(0), vec![4])];
        let stream: Vec<u8> = sent
            .iter()
            .flat_map(|(key, body)| [header(*key, body.len()), body.clone()].concat())
            .collect();
        for size in 1..stream.len() {
            let (mut letter, mut rest, mut got) = (Letter::default(), &stream[..], Vec::new());
            while !rest.is_empty() {
                let count = size.min(letter.missing().unwrap()).min(rest.len());
                got.extend(letter.add(&rest[..count]).unwrap());
                rest = &rest[count..];
            }
            assert!(letter.is_empty());
            assert_eq!(got, sent);
        }
    }

    #[test]
    fn a_length_or_key_that_is_not_allowed_is_an_error_at_once() {
        let mut letter = Letter::default();
        let error = letter.add(&header(Key::User(1), MAX_MESSAGE + 1)).unwrap_err();
        assert!(error.contains("more than is allowed"), "{error}");
        let mut letter = Letter::default();
        assert!(letter.add(&[0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]).is_err());
    }
}

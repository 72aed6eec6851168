//! The form of messages between ranks: little endian, lengths before contents.
//!
//! What arrives is parsed, not trusted: every read checks what is left and every length its limit,
//! and an error names the message and the field.

use mscclrs_gpu::{ExportedHandle, HandleKind};

use crate::{Error, Result};

/// Most bytes of a handle's own payload; the largest known is 64.
const MAX_PAYLOAD: u64 = 4096;

/// Builds a message.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Writer::default()
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn array<const N: usize>(&mut self, value: &[u8; N]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        self
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u64(value.len() as u64);
        self.bytes.extend_from_slice(value);
        self
    }

    /// Text of at most `limit` bytes; the rest is cut.
    pub(crate) fn text(&mut self, value: &str, limit: u64) -> &mut Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.bytes(&value.as_bytes()[..value.floor_char_boundary(limit.min(value.len()))])
    }

    /// Numbers, after their count.
    pub(crate) fn list(&mut self, values: &[u64]) -> &mut Self {
        self.u64(values.len() as u64);
        values.iter().fold(self, |writer, &value| writer.u64(value))
    }

    pub(crate) fn handle(&mut self, handle: &ExportedHandle) -> &mut Self {
        self.u8(kind_code(handle.kind))
            .array(&handle.device_uuid)
            .u64(handle.allocation)
            .u64(handle.allocation_bytes)
            .u64(handle.offset)
            .u64(handle.bytes)
            .bytes(&handle.payload)
    }

    pub(crate) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Takes a message apart.
pub(crate) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// `what` names the message in errors.
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Reader { what, rest: bytes }
    }

    pub(crate) fn fail(&self, field: &'static str, why: impl Into<String>) -> Error {
        Error::Malformed { what: self.what, field, why: why.into() }
    }

    fn take(&mut self, field: &'static str, bytes: u64) -> Result<&'a [u8]> {
        let left = self.rest.len();
        match usize::try_from(bytes).ok().and_then(|bytes| self.rest.split_at_checked(bytes)) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.fail(field, format!("{bytes} bytes expected, {left} are left"))),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N as u64)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A length-prefixed run of at most `limit` bytes.
    pub(crate) fn bytes(&mut self, field: &'static str, limit: u64) -> Result<&'a [u8]> {
        let bytes = self.u64(field)?;
        if bytes > limit {
            return Err(self.fail(field, format!("{bytes} bytes; at most {limit} are allowed")));
        }
        self.take(field, bytes)
    }

    pub(crate) fn text(&mut self, field: &'static str, limit: u64) -> Result<String> {
        let bytes = self.bytes(field, limit)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.fail(field, "not UTF-8")),
        }
    }

    /// 0 or 1.
    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.fail(field, format!("{other} is neither 0 nor 1"))),
        }
    }

    /// At most `limit` numbers. A count that is not there takes no memory.
    pub(crate) fn list(&mut self, field: &'static str, limit: u64) -> Result<Vec<u64>> {
        let count = self.u64(field)?;
        if count > limit {
            return Err(self.fail(field, format!("{count} numbers; at most {limit} are allowed")));
        }
        let (words, _) = self.take(field, count.saturating_mul(8))?.as_chunks();
        Ok(words.iter().copied().map(u64::from_le_bytes).collect())
    }

    pub(crate) fn handle(&mut self) -> Result<ExportedHandle> {
        let code = self.u8("handle.kind")?;
        let Some(kind) = kind_from_code(code) else {
            return Err(self.fail("handle.kind", format!("{code} is no kind of handle")));
        };
        let handle = ExportedHandle {
            kind,
            device_uuid: self.array("handle.device_uuid")?,
            allocation: self.u64("handle.allocation")?,
            allocation_bytes: self.u64("handle.allocation_bytes")?,
            offset: self.u64("handle.offset")?,
            bytes: self.u64("handle.bytes")?,
            payload: self.bytes("handle.payload", MAX_PAYLOAD)?.to_vec(),
        };
        let end = handle.offset.checked_add(handle.bytes);
        if handle.bytes == 0 || end.is_none_or(|end| end > handle.allocation_bytes) {
            let (at, bytes, whole) = (handle.offset, handle.bytes, handle.allocation_bytes);
            return Err(self.fail(
                "handle.bytes",
                format!("{bytes} bytes at {at} do not lie in an allocation of {whole}"),
            ));
        }
        Ok(handle)
    }

    /// The message has been read to its end.
    pub(crate) fn end(&self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(self.fail("end", format!("{left} bytes too many"))),
        }
    }
}

pub(crate) fn kind_code(kind: HandleKind) -> u8 {
    match kind {
        HandleKind::Fabric => 1,
        HandleKind::PosixFd => 2,
        HandleKind::RuntimeIpc => 3,
    }
}

fn kind_from_code(code: u8) -> Option<HandleKind> {
    match code {
        1 => Some(HandleKind::Fabric),
        2 => Some(HandleKind::PosixFd),
        3 => Some(HandleKind::RuntimeIpc),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> ExportedHandle {
        ExportedHandle {
            kind: HandleKind::PosixFd,
            device_uuid: [7; 16],
            allocation: 9,
            allocation_bytes: 4096,
            offset: 256,
            bytes: 512,
            payload: vec![1, 2, 3],
        }
    }

    #[test]
    fn a_handle_comes_back_as_it_was() {
        let bytes = Writer::new().handle(&handle()).u32(5).finish();
        let mut reader = Reader::new("test", &bytes);
        assert_eq!(reader.handle().unwrap(), handle());
        assert_eq!(reader.u32("five").unwrap(), 5);
        reader.end().unwrap();
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = Writer::new().handle(&handle()).finish();
        for length in 0..bytes.len() {
            let mut reader = Reader::new("test", &bytes[..length]);
            assert!(matches!(reader.handle(), Err(Error::Malformed { .. })), "{length} bytes");
        }
    }

    #[test]
    fn a_range_outside_its_allocation_is_an_error() {
        for (offset, bytes) in [(4096, 1), (u64::MAX, 2), (0, 4097), (0, 0)] {
            let handle = ExportedHandle { offset, bytes, ..handle() };
            let bytes = Writer::new().handle(&handle).finish();
            assert!(Reader::new("test", &bytes).handle().is_err(), "{handle:?}");
        }
    }

    #[test]
    fn texts_lists_and_flags_are_held_to_their_limits() {
        let bytes = Writer::new().text("aé", 2).list(&[1, u64::MAX]).u8(1).finish();
        let mut reader = Reader::new("test", &bytes);
        assert_eq!(reader.text("text", 2).unwrap(), "a");
        assert_eq!(reader.list("list", 2).unwrap(), [1, u64::MAX]);
        assert!(reader.flag("flag").unwrap());
        reader.end().unwrap();
        let list = |count: u64, limit| {
            let bytes = Writer::new().u64(count).u64(5).finish();
            Reader::new("test", &bytes).list("list", limit).unwrap_err().to_string()
        };
        assert!(list(2, 1).contains("at most 1 are allowed"));
        assert!(list(2, 2).contains("16 bytes expected, 8 are left"));
        assert!(list(u64::MAX, u64::MAX).contains("are left"));
        let error = Reader::new("test", &[2]).flag("flag").unwrap_err().to_string();
        assert!(error.contains("2 is neither 0 nor 1"), "{error}");
    }

    #[test]
    fn a_length_beyond_its_limit_is_an_error_before_anything_is_read() {
        let bytes = Writer::new().u64(u64::MAX).finish();
        let error = Reader::new("test", &bytes).bytes("data", 16).unwrap_err();
        assert!(error.to_string().contains("at most 16"), "{error}");
    }
}

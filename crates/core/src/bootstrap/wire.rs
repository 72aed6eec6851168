//! How bootstrap messages are written and read: little endian, lengths before contents.
//!
//! A reader never takes more than there is and never trusts a length: each has a limit, which is also
//! the writer's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The bytes are not what they should be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// Writes a message.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Text of at most `limit` bytes; the rest is cut.
    pub(crate) fn text(self, text: &str, limit: u16) -> Self {
        let cut = text.floor_char_boundary(text.len().min(usize::from(limit)));
        let mut this = self.u16(cut as u16);
        this.0.extend_from_slice(&text.as_bytes()[..cut]);
        this
    }

    pub(crate) fn address(self, address: &SocketAddr) -> Self {
        let mut this = match address.ip() {
            IpAddr::V4(ip) => {
                let mut this = self.u8(4);
                this.0.extend_from_slice(&ip.octets());
                this
            }
            IpAddr::V6(ip) => {
                let mut this = self.u8(6);
                this.0.extend_from_slice(&ip.octets());
                this
            }
        };
        if let SocketAddr::V6(v6) = address {
            this = this.u32(v6.scope_id());
        }
        this.u16(address.port())
    }

    /// At most `limit` addresses; the rest is cut.
    pub(crate) fn addresses(self, addresses: &[SocketAddr], limit: u8) -> Self {
        let count = addresses.len().min(usize::from(limit));
        addresses[..count].iter().fold(self.u8(count as u8), Writer::address)
    }
}

/// Reads a message.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Damaged)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Damaged> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Damaged> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Damaged> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Damaged> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Damaged> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Damaged)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self, limit: u16) -> Result<String, Damaged> {
        let length = self.u16().ok().filter(|length| *length <= limit).ok_or(Damaged)?;
        let text = self.bytes(length.into())?;
        std::str::from_utf8(text).map(str::to_owned).map_err(|_| Damaged)
    }

    pub(crate) fn address(&mut self) -> Result<SocketAddr, Damaged> {
        match self.u8()? {
            4 => {
                let ip = Ipv4Addr::from(self.array::<4>()?);
                Ok(SocketAddr::new(ip.into(), self.u16()?))
            }
            6 => {
                let ip = Ipv6Addr::from(self.array::<16>()?);
                let scope = self.u32()?;
                Ok(SocketAddrV6::new(ip, self.u16()?, 0, scope).into())
            }
            _ => Err(Damaged),
        }
    }

    pub(crate) fn addresses(&mut self, limit: u8) -> Result<Vec<SocketAddr>, Damaged> {
        let count = self.u8().ok().filter(|count| *count <= limit).ok_or(Damaged)?;
        (0..count).map(|_| self.address()).collect()
    }

    pub(crate) fn end(self) -> Result<(), Damaged> {
        if self.0.is_empty() { Ok(()) } else { Err(Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_every_cut_is_seen() {
        let addresses: Vec<SocketAddr> =
            vec!["10.1.2.3:4".parse().unwrap(), "[fe80::1%7]:65535".parse().unwrap()];
        let bytes =
            Writer::default().u8(1).u16(2).u32(3).u64(4).text("é", 2).addresses(&addresses, 2).0;
        let read = |bytes: &[u8]| -> Result<_, Damaged> {
            let mut r = Reader(bytes);
            let all = (r.u8()?, r.u16()?, r.u32()?, r.u64()?, r.text(2)?, r.addresses(2)?);
            r.end()?;
            Ok(all)
        };
        assert_eq!(read(&bytes).unwrap(), (1, 2, 3, 4, "é".to_owned(), addresses));
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), Err(Damaged));
        }
        assert_eq!(read(&[&bytes[..], &[0]].concat()), Err(Damaged));
    }

    #[test]
    fn writers_keep_the_limits_of_readers() {
        let text = Writer::default().text("aé", 2).0;
        assert_eq!(Reader(&text).text(2), Ok("a".into()));
        assert_eq!(Reader(&Writer::default().text("abc", 3).0).text(2), Err(Damaged));
        let addresses = ["10.1.2.3:4".parse().unwrap(); 3];
        let cut = Writer::default().addresses(&addresses, 2).0;
        assert_eq!(Reader(&cut).addresses(2), Ok(addresses[..2].to_vec()));
        let all = Writer::default().addresses(&addresses, 3).0;
        assert_eq!(Reader(&all).addresses(2), Err(Damaged));
    }
}

//! Unique ids: where a rendezvous is served, and its secret.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use super::identity;
use super::interfaces::{self, InterfaceFilter};
use super::root::Root;
use super::secret::Secret;
use super::wire::{Reader, Writer};
use crate::{Error, Result};

const PREFIX: &str = "mscclrs1:";
const VERSION: u8 = 1;
const SECRET: usize = 16;
/// As many as the binary form has room for.
const MAX_ADDRESSES: u8 = 4;

/// Names one rendezvous and proves the right to take part. Made by one process, which serves the
/// rendezvous, and brought to the others by the user; whoever sees it can take part.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    secret: [u8; SECRET],
    addresses: Vec<SocketAddr>,
}

impl UniqueId {
    /// Length of the binary form.
    pub const BYTES: usize = 128;

    /// A new id. This process serves its rendezvous, in the background, until the ranks have come
    /// together or ten minutes have passed without any.
    pub fn create(filter: &InterfaceFilter) -> Result<UniqueId> {
        crate::logging::begin()?;
        let secret = identity::random()?;
        let mut chosen = filter.choose(&interfaces::list()?)?;
        chosen.truncate(MAX_ADDRESSES.into());
        let addresses = Root::serve_id(&chosen, derive(&secret))?;
        mscclrs_log::info!(BOOTSTRAP, ?addresses, "serving the rendezvous of a unique id");
        Ok(UniqueId { secret, addresses })
    }

    /// Where the rendezvous is served.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(super) fn secret(&self) -> Secret {
        derive(&self.secret)
    }

    /// The binary form, for doors that carry ids as arrays of this length.
    pub fn to_bytes(&self) -> [u8; UniqueId::BYTES] {
        let mut writer = Writer::default().u8(VERSION);
        writer.0.extend_from_slice(&self.secret);
        let written = writer.addresses(&self.addresses, MAX_ADDRESSES).0;
        let mut bytes = [0; UniqueId::BYTES];
        bytes[..written.len()].copy_from_slice(&written);
        bytes
    }

    /// Reads the binary form.
    pub fn from_bytes(bytes: &[u8; UniqueId::BYTES]) -> Result<UniqueId> {
        let read = || {
            let mut reader = Reader(bytes);
            let version = reader.u8()?;
            let secret = reader.array()?;
            let addresses = reader.addresses(MAX_ADDRESSES)?;
            let rest_is_zero = reader.0.iter().all(|&byte| byte == 0);
            Ok::<_, super::wire::Damaged>((version, secret, addresses, rest_is_zero))
        };
        match read() {
            Ok((VERSION, secret, addresses, true)) => UniqueId::checked(secret, addresses),
            _ => Err(bad("its bytes are damaged or of another version")),
        }
    }

    fn checked(secret: [u8; SECRET], addresses: Vec<SocketAddr>) -> Result<UniqueId> {
        if addresses.is_empty() || addresses.len() > MAX_ADDRESSES.into() {
            return Err(bad("it must have one to four addresses"));
        }
        if addresses.iter().any(|a| a.port() == 0 || a.ip().is_unspecified()) {
            return Err(bad("it has an address that nobody can be reached at"));
        }
        Ok(UniqueId { secret, addresses })
    }
}

fn derive(secret: &[u8; SECRET]) -> Secret {
    Secret::new([b"unique id ", &secret[..]].concat())
}

fn bad(why: &str) -> Error {
    // The text is not repeated: it holds a secret.
    Error::Address {
        text: format!("{PREFIX}..."),
        what: "unique id",
        why: why.into(),
        allowed: "pass on the text of UniqueId::create unchanged",
    }
}

/// The text form, which holds the secret.
impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        for byte in self.secret {
            write!(f, "{byte:02x}")?;
        }
        for (i, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if i == 0 { "@" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<UniqueId> {
        let rest = text.strip_prefix(PREFIX).ok_or_else(|| bad("it must start with mscclrs1:"))?;
        let (hex, addresses) =
            rest.split_once('@').ok_or_else(|| bad("the @ before its addresses is missing"))?;
        let digits: Option<Vec<u8>> = (hex.len() == 2 * SECRET)
            .then(|| hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect())
            .flatten();
        let digits = digits.filter(|digits| digits.len() == 2 * SECRET);
        let digits = digits.ok_or_else(|| bad("its secret must be 32 hexadecimal digits"))?;
        let mut secret = [0; SECRET];
        for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        let addresses: std::result::Result<Vec<SocketAddr>, _> =
            // One more than are allowed, so that too many are told from none.
            addresses.split(',').take(usize::from(MAX_ADDRESSES) + 1).map(str::parse).collect();
        UniqueId::checked(secret, addresses.map_err(|_| bad("an address in it cannot be read"))?)
    }
}

/// Without the secret.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_text_and_bytes() {
        let id = UniqueId {
            secret: *b"0123456789abcdef",
            addresses: ["10.0.0.1:4", "[fe80::1%3]:5", "[2001:db8::7]:6", "[::1]:65535"]
                .map(|a| a.parse().unwrap())
                .to_vec(),
        };
        assert_eq!(id.to_string().parse::<UniqueId>().unwrap(), id);
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap(), id);
        assert!(!format!("{id:?}").contains("3031"));
    }

    #[test]
    fn damaged_ids_are_refused_without_showing_them() {
        let secret = "30313233343536373839616263646566";
        for text in [
            String::new(),
            "mscclrs1:".into(),
            format!("mscclrs2:{secret}@1.2.3.4:5"),
            format!("mscclrs1:{secret}"),
            format!("mscclrs1:{secret}@"),
            format!("mscclrs1:{secret}@1.2.3.4:0"),
            format!("mscclrs1:{secret}@0.0.0.0:5"),
            format!("mscclrs1:{secret}@1.2.3.4:5,"),
            format!("mscclrs1:{secret}0@1.2.3.4:5"),
            format!("mscclrs1:é{secret}@1.2.3.4:5"),
        ] {
            let error = text.parse::<UniqueId>().unwrap_err().to_string();
            assert!(!error.contains(secret), "{error}");
        }
        for bytes in [[0; 128], [1; 128], [255; 128]] {
            assert!(UniqueId::from_bytes(&bytes).is_err());
        }
    }
}

//! The two ends of a connection, before they are joined.

use crate::wire::{Reader, Writer};
use crate::{Error, Result};

/// What carries a connection's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// The peer's memory is mapped: NVLink, PCIe peer access, shared memory on the CPU device.
    #[default]
    PeerMemory,
}

impl Transport {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::PeerMemory => "peer memory",
        }
    }

    const fn code(self) -> u8 {
        match self {
            Transport::PeerMemory => 1,
        }
    }
}

/// How an endpoint is to be made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// What carries the data.
    pub transport: Transport,
}

impl EndpointConfig {
    /// With this transport and defaults for the rest.
    pub fn new(transport: Transport) -> Self {
        EndpointConfig { transport }
    }
}

/// One end of a connection: what the other side has to know to join it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) transport: Transport,
    pub(crate) rank: u32,
    pub(crate) host: u64,
    pub(crate) device_uuid: [u8; 16],
}

impl Endpoint {
    /// What carries the data.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The rank it belongs to.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// For the other side.
    pub fn serialize(&self) -> Vec<u8> {
        Writer::new()
            .u8(self.transport.code())
            .u32(self.rank)
            .u64(self.host)
            .array(&self.device_uuid)
            .finish()
    }

    /// From what the other side serialized; parsed, not trusted.
    pub fn deserialize(bytes: &[u8]) -> Result<Endpoint> {
        let mut reader = Reader::new("serialized endpoint", bytes);
        let transport = match reader.u8("transport")? {
            1 => Transport::PeerMemory,
            other => return Err(reader.fail("transport", format!("{other} is not known here"))),
        };
        let endpoint = Endpoint {
            transport,
            rank: reader.u32("rank")?,
            host: reader.u64("host")?,
            device_uuid: reader.array("device_uuid")?,
        };
        reader.end()?;
        Ok(endpoint)
    }

    /// An error unless the two can be joined.
    pub(crate) fn require_match(&self, remote: &Endpoint) -> Result<()> {
        let unreachable =
            |why: String| Error::Unreachable { rank: self.rank, peer: remote.rank, why };
        if self.transport != remote.transport {
            return Err(unreachable(format!(
                "this end uses {}, the other {}",
                self.transport.name(),
                remote.transport.name()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_comes_back_as_it_was_and_nothing_else_does() {
        let endpoint =
            Endpoint { transport: Transport::PeerMemory, rank: 3, host: 77, device_uuid: [9; 16] };
        let bytes = endpoint.serialize();
        assert_eq!(Endpoint::deserialize(&bytes).unwrap(), endpoint);
        for length in 0..bytes.len() {
            assert!(Endpoint::deserialize(&bytes[..length]).is_err());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Endpoint::deserialize(&longer).is_err());
        let mut other = bytes;
        other[0] = 9;
        let error = Endpoint::deserialize(&other).unwrap_err().to_string();
        assert!(error.contains("transport"), "{error}");
    }
}

//! A path between two ranks.

use std::sync::Arc;

use crate::communicator::Shared;
use crate::future::Kind;
use crate::{Communicator, Endpoint, EndpointConfig, Error, Future, Result, Transport};

/// A path between this rank and a peer. Clones are the same connection.
#[derive(Clone, Debug)]
pub struct Connection {
    ends: Arc<(Endpoint, Endpoint)>,
}

impl Connection {
    /// The rank on the other side.
    pub fn peer(&self) -> u32 {
        self.ends.1.rank
    }

    /// What carries its data.
    pub fn transport(&self) -> Transport {
        self.ends.0.transport
    }

    /// This side's end.
    pub fn local(&self) -> &Endpoint {
        &self.ends.0
    }

    /// The other side's end.
    pub fn remote(&self) -> &Endpoint {
        &self.ends.1
    }
}

impl Communicator {
    /// Makes this rank's end of a connection.
    pub fn create_endpoint(&self, config: &EndpointConfig) -> Endpoint {
        let me = &self.shared.peers[self.rank() as usize];
        Endpoint { transport: config.transport, rank: me.rank, host: me.host, device_uuid: me.uuid }
    }

    /// Connects to a peer, which connects to this rank with the same tag. Sends this end at once;
    /// the future waits for the other.
    pub fn connect(
        &self,
        config: &EndpointConfig,
        peer: u32,
        tag: u32,
    ) -> Result<Future<Connection>> {
        let _turn = self.enter()?;
        let local = self.create_endpoint(config);
        self.shared.receives.send(peer, tag, Kind::Endpoint, &local.serialize())?;
        let shared = Arc::downgrade(&self.shared);
        self.shared.receives.receive(self.as_owner(), peer, tag, Kind::Endpoint, move |message| {
            let shared = shared.upgrade().ok_or_else(crate::future::gone)?;
            let remote = Endpoint::deserialize(message)?;
            shared.join(local, remote, peer)
        })
    }
}

impl Shared {
    fn join(&self, local: Endpoint, remote: Endpoint, peer: u32) -> Result<Connection> {
        let known = &self.peers[peer as usize];
        if remote.rank != peer || remote.device_uuid != known.uuid || remote.host != known.host {
            return Err(Error::Malformed {
                what: "serialized endpoint",
                field: "rank",
                why: format!("rank {peer} sent an endpoint that is not its own"),
            });
        }
        local.require_match(&remote)?;
        let unreachable = |why: String| Error::Unreachable { rank: local.rank, peer, why };
        match local.transport {
            Transport::PeerMemory => {
                if local.host != remote.host
                    && !self
                        .device
                        .handle_kinds(mscclrs_gpu::MemoryKind::Shareable)
                        .contains(&mscclrs_gpu::HandleKind::Fabric)
                {
                    return Err(unreachable(
                        "they are on two hosts, and this device shares memory within one only"
                            .into(),
                    ));
                }
                if local.host == remote.host && !self.device.can_reach(&remote.device_uuid) {
                    return Err(unreachable(format!(
                        "{:?} has no path to the other device (peer access)",
                        self.device
                    )));
                }
            }
        }
        mscclrs_log::debug!(
            CONN,
            rank = local.rank,
            peer,
            transport = local.transport.name(),
            "connected"
        );
        Ok(Connection { ends: Arc::new((local, remote)) })
    }
}

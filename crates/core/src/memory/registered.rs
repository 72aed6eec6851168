//! Memory given to single peers, in MSCCL++'s words.

use std::sync::Arc;

use mscclrs_gpu::Buffer;

use super::export::{Export, Offered};
use super::import::Import;
use super::retired::Held;
use crate::communicator::{Peer, Shared};
use crate::future::Kind;
use crate::wire::{Reader, Writer};
use crate::{Communicator, Error, Future, Result};

/// Names serialized memory: "MSCM" and a version.
const MAGIC: u64 = 0x0001_4d43_534d;

/// Most bytes of serialized memory.
const MAX_BYTES: usize = 16 << 10;

/// Memory of this rank that peers may map, or a peer's memory mapped here. Clones are the same.
///
/// What the last clone holds is freed once the communicator's kernels have ended. Serialized memory
/// can be deserialized by ranks of the same communicator as long as a clone lives at its owner.
#[derive(Clone)]
pub struct RegisteredMemory {
    inner: Arc<Memory>,
}

struct Memory {
    rank: u32,
    bytes: u64,
    serialized: Vec<u8>,
    place: Place,
}

enum Place {
    Local {
        memory: Held<Buffer>,
        /// Offered to peers as long as it lives.
        _export: Export,
    },
    Remote(Import),
}

impl RegisteredMemory {
    /// The rank that owns it.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Whether it is this rank's own.
    pub fn is_local(&self) -> bool {
        matches!(self.inner.place, Place::Local { .. })
    }

    /// Where kernels of this rank find it.
    pub fn address(&self) -> u64 {
        match &self.inner.place {
            Place::Local { memory, .. } => memory.address(),
            Place::Remote(import) => import.address(),
        }
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// For other ranks of the communicator, to be given to
    /// [`deserialize_memory`](Communicator::deserialize_memory).
    pub fn serialize(&self) -> Vec<u8> {
        self.inner.serialized.clone()
    }
}

impl std::fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, bytes) = (self.rank(), self.bytes());
        write!(f, "RegisteredMemory({:#x}, {bytes} bytes of rank {rank})", self.address())
    }
}

impl Communicator {
    /// Makes memory of this rank's device ready to be given to peers. Local.
    ///
    /// An error if it cannot be exported in a form that the other ranks' hosts allow.
    pub fn register_memory(&self, buffer: &Buffer) -> Result<RegisteredMemory> {
        let shared = &self.shared;
        let _turn = self.enter()?;
        let export = shared.export(buffer)?;
        let mut writer = head(shared.group, shared.rank);
        export.write(&mut writer);
        Ok(RegisteredMemory {
            inner: Arc::new(Memory {
                rank: shared.rank,
                bytes: buffer.bytes(),
                serialized: writer.finish(),
                place: Place::Local {
                    memory: Held::new(&shared.retired, buffer.clone()),
                    _export: export,
                },
            }),
        })
    }

    /// Maps memory that another rank serialized. Waits for what was enqueued before.
    pub fn deserialize_memory(&self, bytes: &[u8]) -> Result<RegisteredMemory> {
        RegisteredMemory::deserialize(&self.shared, bytes)
    }

    /// Sends memory to a peer, which receives it with the same tag. Does not wait for the peer.
    pub fn send_memory(&self, memory: &RegisteredMemory, peer: u32, tag: u32) -> Result<()> {
        let _turn = self.enter()?;
        self.shared.receives.send(peer, tag, Kind::Memory, &memory.inner.serialized)
    }

    /// Receives memory from a peer, when the future is asked for it: the i-th receive with a tag
    /// gets the i-th that the peer sent with it.
    pub fn recv_memory(&self, peer: u32, tag: u32) -> Result<Future<RegisteredMemory>> {
        let _turn = self.enter()?;
        let shared = Arc::downgrade(&self.shared);
        self.shared.receives.receive(self.as_owner(), peer, tag, Kind::Memory, move |message| {
            let shared = shared.upgrade().ok_or_else(crate::future::gone)?;
            RegisteredMemory::deserialize(&shared, message)
        })
    }
}

impl RegisteredMemory {
    fn deserialize(shared: &Shared, bytes: &[u8]) -> Result<Self> {
        let Serialized { rank, offered } =
            Serialized::read(bytes, shared.group, shared.rank, shared.peers.len())?;
        let import = shared.import(rank, &offered)?;
        Ok(RegisteredMemory {
            inner: Arc::new(Memory {
                rank,
                bytes: import.bytes(),
                serialized: bytes.to_vec(),
                place: Place::Remote(import),
            }),
        })
    }
}

/// Memory as it arrives.
pub(crate) struct Serialized {
    pub(crate) rank: u32,
    pub(crate) offered: Offered,
}

impl Serialized {
    /// Reads memory of another of `ranks` ranks than `own`.
    pub(crate) fn read(bytes: &[u8], group: u64, own: u32, ranks: usize) -> Result<Serialized> {
        let mut reader = Reader::new("serialized memory", bytes);
        if bytes.len() > MAX_BYTES {
            return Err(reader.fail("length", format!("more than {MAX_BYTES} bytes")));
        }
        if reader.u64("magic")? != MAGIC {
            return Err(reader.fail("magic", "not memory that this version serialized"));
        }
        if reader.u64("group")? != group {
            return Err(reader.fail("group", "of another communicator"));
        }
        let rank = reader.u32("rank")?;
        let offered = Offered::read(&mut reader)?;
        reader.end()?;
        if rank as usize >= ranks {
            return Err(reader.fail("rank", format!("there is no rank {rank} among {ranks}")));
        }
        if rank == own {
            return Err(reader.fail("rank", "this rank's own; use the original"));
        }
        Ok(Serialized { rank, offered })
    }
}

/// What stands before what is offered.
pub(crate) fn head(group: u64, rank: u32) -> Writer {
    let mut writer = Writer::new();
    writer.u64(MAGIC).u64(group).u32(rank);
    writer
}

impl Shared {
    /// Maps what a peer offers, after what was enqueued before has ended.
    pub(crate) fn import(&self, peer: u32, offered: &Offered) -> Result<Import> {
        self.enter()?.quiesce()?;
        self.map(&self.peers[self.rank as usize], &self.peers[peer as usize], offered)
    }

    pub(crate) fn map(&self, me: &Peer, peer: &Peer, offered: &Offered) -> Result<Import> {
        let imported = self.imports.import(me, peer, offered);
        imported.map_err(|error| match self.blame(error) {
            Error::Fetch { why } => Error::Unreachable { rank: me.rank, peer: peer.rank, why },
            other => other,
        })
    }
}

//! Set-up calls that all ranks make: regions, registrations, symmetric memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mscclrs_device::{EPOCH_START, MAX_BLOCKS};
use mscclrs_gpu::{Buffer, MemoryKind};

use super::Shared;
use super::setup::{MAX_ERROR, require_equal};
use super::turn::Turn;
use crate::memory::{
    Arena, Export, Held, Import, Offered, Region, Registered, Registration, SymmetricBuffer, layout,
};
use crate::wire::{Reader, Writer};
use crate::{Communicator, Error, Result};

/// Most regions of a call: more than the sizes of a message of a step, or a sentence, are for.
const MAX_SIZES: u64 = 4096;

/// What an exchange of memory came to; the same on every rank.
enum Exchanged {
    /// Every rank maps every other's; by rank, none for this one.
    Mapped(Vec<Option<Import>>),
    /// Some rank cannot export its memory or map a peer's; the lowest such rank, and why.
    Not { rank: u32, why: String },
}

impl Communicator {
    /// Cuts one new allocation of scratch into regions and maps every peer's. Collective: every
    /// rank gives the same sizes.
    ///
    /// Blocks: waits for what was enqueued before on all ranks, and ends in a barrier.
    pub fn create_regions(&self, bytes: &[u64]) -> Result<Vec<Region>> {
        const CALL: &str = "create_regions";
        let shared = &self.shared;
        let _span = shared.during(CALL);
        let turn = self.enter()?;
        shared.begin(&turn, CALL, "the number and sizes of regions", bytes)?;
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        let (starts, end) = layout(bytes)?;
        let made = shared.allocate(end).and_then(|memory| {
            shared.start_epochs(&memory, &starts)?;
            let export = shared.export(&memory)?;
            Ok((memory, export))
        });
        let (memory, export) = shared.agree_on(CALL, made)?;
        match shared.exchange(CALL, Ok(export))? {
            Exchanged::Mapped(peers) => {
                let arena = Arc::new(Arena { memory, peers });
                let cut = |(&start, &bytes)| Region::new(&arena, start, bytes);
                Ok(starts.iter().zip(bytes).map(cut).collect())
            }
            Exchanged::Not { rank, why } => Err(Error::Peer { call: CALL, rank, why }),
        }
    }

    /// Registers memory for zero copy. Collective: every rank, same order, same size.
    ///
    /// Where some rank's memory cannot be mapped by all it is registered all the same, but not
    /// [mapped](Registration::is_mapped). Blocks as [`create_regions`](Self::create_regions) does.
    pub fn register(&self, buffer: &Buffer) -> Result<Registration> {
        const CALL: &str = "register";
        let _span = self.shared.during(CALL);
        let turn = self.enter()?;
        self.shared.begin(&turn, CALL, "the size of the memory", &[buffer.bytes()])?;
        self.shared.register(CALL, Held::new(&self.shared.retired, buffer.clone()))
    }

    /// Allocates zeroed memory that every rank can reach, and registers it. Collective: every rank
    /// gives the same size. Blocks as [`create_regions`](Self::create_regions) does.
    pub fn alloc(&self, bytes: u64) -> Result<SymmetricBuffer> {
        const CALL: &str = "alloc";
        let _span = self.shared.during(CALL);
        let turn = self.enter()?;
        self.shared.begin(&turn, CALL, "the size of the memory", &[bytes])?;
        let memory = self.shared.allocate(bytes);
        let memory = self.shared.agree_on(CALL, memory)?;
        let buffer = Buffer::clone(&memory);
        Ok(SymmetricBuffer::new(buffer, self.shared.register(CALL, memory)?))
    }
}

impl Shared {
    /// The first step: the ranks agree on sizes, and what was enqueued before has ended on all.
    fn begin(
        &self,
        turn: &Turn<'_>,
        call: &'static str,
        what: &'static str,
        sizes: &[u64],
    ) -> Result<()> {
        let mine = turn.quiesce().and_then(|()| match sizes.len() as u64 {
            ..=MAX_SIZES => Ok(Writer::new().list(sizes).finish()),
            count => Err(Error::Invalid {
                what: "regions",
                value: format!("{count}"),
                allowed: format!("at most {MAX_SIZES} in one call"),
            }),
        });
        let parts = self.agree(call, mine)?;
        let all = parts.iter().map(|part| read_sizes(call, part)).collect::<Result<Vec<_>>>()?;
        require_equal(call, what, &all, |sizes| match sizes.as_slice() {
            [size] => format!("{size} bytes"),
            sizes => format!("{sizes:?} bytes"),
        })
    }

    fn agree_on<T>(&self, call: &'static str, mine: Result<T>) -> Result<T> {
        super::setup::agree_on(&*self.bootstrap, call, mine).map_err(|error| self.blame(error))
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Result<Held<Buffer>> {
        let buffer = self.device.alloc(bytes, MemoryKind::Shareable)?;
        Ok(Held::new(&self.retired, buffer))
    }

    pub(crate) fn export(&self, memory: &Buffer) -> Result<Export> {
        let here = self.peers[self.rank as usize].host;
        let many_hosts = self.peers.iter().any(|peer| peer.host != here);
        let kinds = Export::kinds(&self.device, many_hosts);
        Export::new(memory, &kinds, &self.descriptors)
    }

    /// Sets the epoch words of regions that begin at `starts` to their first value.
    fn start_epochs(&self, memory: &Buffer, starts: &[u64]) -> Result<()> {
        let words = EPOCH_START.to_le_bytes().repeat(MAX_BLOCKS as usize);
        for &start in starts {
            memory.write(&self.setup_stream, start, &words)?;
        }
        self.wait_idle(&self.setup_stream)
    }

    fn register(&self, call: &'static str, memory: Held<Buffer>) -> Result<Registration> {
        let exported = match self.peers.len() {
            1 => None,
            _ => Some(self.export(&memory)),
        };
        let (peers, why) = match exported {
            None => (Some(vec![None]), None),
            Some(export) => match self.exchange(call, export)? {
                Exchanged::Mapped(peers) => (Some(peers), None),
                Exchanged::Not { rank, why } => (None, Some(format!("rank {rank}: {why}"))),
            },
        };
        let id = self.registrations.fetch_add(1, Ordering::Relaxed);
        mscclrs_log::debug!(
            MEMORY,
            id,
            bytes = memory.bytes(),
            mapped = peers.is_some(),
            why_not = why,
            "memory is registered"
        );
        Ok(Registration::new(Registered { id, memory, peers, why }))
    }

    /// Offers this rank's memory to all peers and maps theirs. Ends in a barrier: when it returns
    /// every rank has mapped what it can, and this rank's offer is withdrawn.
    fn exchange(&self, call: &'static str, export: Result<Export>) -> Result<Exchanged> {
        let mut offer = Writer::new();
        match &export {
            Ok(export) => export.write(offer.u8(1)),
            Err(error) => drop(offer.u8(0).text(&error.to_string(), MAX_ERROR)),
        }
        let parts = self.agree(call, Ok(offer.finish()))?;
        let imported = self.import_all(call, &parts);
        // Of a rank that was lost all are told; nobody is to blame for not having mapped its memory.
        self.health.check()?;
        // A rank that could not export says so itself; what it heard of others is of no interest.
        let verdict = match (&export, &imported) {
            (Ok(_), Ok(_)) => Writer::new().u8(1).finish(),
            (Err(error), _) | (Ok(_), Err(error)) => {
                Writer::new().u8(0).text(&error.to_string(), MAX_ERROR).finish()
            }
        };
        for (rank, verdict) in self.agree(call, Ok(verdict))?.iter().enumerate() {
            if let Err(why) = read_answer(call, verdict, |_| Ok(()))? {
                return Ok(Exchanged::Not { rank: rank as u32, why });
            }
        }
        Ok(Exchanged::Mapped(imported?))
    }

    fn import_all(&self, call: &'static str, parts: &[Vec<u8>]) -> Result<Vec<Option<Import>>> {
        let me = &self.peers[self.rank as usize];
        let mut offers = Vec::with_capacity(parts.len());
        for (part, peer) in parts.iter().zip(&self.peers) {
            match read_answer(call, part, Offered::read)? {
                Ok(offered) => offers.push((peer, offered)),
                Err(why) => return Err(Error::Peer { call, rank: peer.rank, why }),
            }
        }
        let mut imports = Vec::with_capacity(parts.len());
        for (peer, offered) in offers {
            imports.push(match peer.rank == self.rank {
                true => None,
                false => Some(self.map(me, peer, &offered)?),
            });
        }
        Ok(imports)
    }
}

/// The sizes that a rank gave.
pub(crate) fn read_sizes(call: &'static str, part: &[u8]) -> Result<Vec<u64>> {
    let mut reader = Reader::new(call, part);
    let sizes = reader.list("sizes", MAX_SIZES)?;
    reader.end()?;
    Ok(sizes)
}

/// What a rank has, or why it has nothing.
pub(crate) fn read_answer<'a, T>(
    call: &'static str,
    part: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T>,
) -> Result<std::result::Result<T, String>> {
    let mut reader = Reader::new(call, part);
    let answer = match reader.flag("answer")? {
        true => Ok(read(&mut reader)?),
        false => Err(reader.text("why", MAX_ERROR)?),
    };
    reader.end()?;
    Ok(answer)
}

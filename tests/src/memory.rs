//! Memory that checks give to calls.

use anyhow::{Result, anyhow};
use mscclrs_collectives::Collectives;
use mscclrs_core::SymmetricBuffer;
use mscclrs_gpu::{Buffer, MemoryKind, Stream};

use crate::world::Rank;

/// Memory of a rank: registered, or plain and not the same on every rank.
pub(crate) struct Memory {
    pub(crate) input: Buffer,
    pub(crate) output: Buffer,
    _symmetric: Option<(SymmetricBuffer, SymmetricBuffer)>,
}

impl Memory {
    /// Collective.
    pub(crate) fn symmetric(collectives: &Collectives, bytes: u64) -> Result<Memory> {
        let (input, output) = (collectives.alloc(bytes)?, collectives.alloc(bytes)?);
        Ok(Memory {
            input: input.buffer().clone(),
            output: output.buffer().clone(),
            _symmetric: Some((input, output)),
        })
    }

    /// Of a kind that goes by the rank. Meet the other ranks before the first call: allocating may
    /// wait for the device.
    pub(crate) fn plain(rank: &Rank, bytes: u64) -> Result<Memory> {
        let kind = kind_of(rank.rank as u64);
        let (input, output) =
            (rank.device().alloc(bytes, kind)?, rank.device().alloc(bytes, kind)?);
        Ok(Memory::of(input, output))
    }

    pub(crate) fn of(input: Buffer, output: Buffer) -> Memory {
        Memory { input, output, _symmetric: None }
    }
}

/// The kinds of memory in turn.
pub(crate) fn kind_of(index: u64) -> MemoryKind {
    [MemoryKind::Plain, MemoryKind::Shareable, MemoryKind::Host][index as usize % 3]
}

/// A buffer with guard bytes before and after the part that a call is given.
pub(crate) struct Guarded {
    buffer: Buffer,
    offset: u64,
    bytes: u64,
}

const GUARD: u8 = 0xa5;

impl Guarded {
    /// `offset` bytes after the beginning of `buffer`, `bytes` long; guards around it.
    pub(crate) fn new(buffer: Buffer, offset: u64, bytes: u64) -> Guarded {
        Guarded { buffer, offset, bytes }
    }

    pub(crate) fn address(&self) -> u64 {
        self.buffer.address() + self.offset
    }

    /// Fills the part with `data` and everything else with guard bytes.
    pub(crate) fn set(&self, stream: &Stream, data: &[u8]) -> Result<()> {
        let mut all = vec![GUARD; self.span()];
        all[self.offset as usize..][..data.len()].copy_from_slice(data);
        Ok(self.buffer.write(stream, 0, &all)?)
    }

    /// An error if the part is not `wanted` or a guard byte changed.
    pub(crate) fn check(&self, stream: &Stream, wanted: &[u8], what: &str) -> Result<()> {
        let mut all = vec![0; self.span()];
        self.buffer.read(stream, 0, &mut all)?;
        let (before, rest) = all.split_at(self.offset as usize);
        let (part, after) = rest.split_at(self.bytes as usize);
        same(part, wanted, what)?;
        if before.iter().chain(after).any(|b| *b != GUARD) {
            return Err(anyhow!("{what}: written outside the buffer"));
        }
        Ok(())
    }

    fn span(&self) -> usize {
        // Room for a unit of 16 bytes on either side.
        (self.offset + self.bytes + 32).min(self.buffer.bytes()) as usize
    }
}

/// An error that tells where `seen` differs from `wanted`.
pub(crate) fn same(seen: &[u8], wanted: &[u8], what: &str) -> Result<()> {
    if seen == wanted {
        return Ok(());
    }
    let differs = |(at, (a, b)): (usize, (&u8, &u8))| (a != b).then_some(at);
    let mut wrong = seen.iter().zip(wanted).enumerate().filter_map(differs);
    match wrong.next() {
        None => Err(anyhow!("{what}: {} bytes instead of {}", seen.len(), wanted.len())),
        Some(at) => Err(anyhow!(
            "{what}: byte {at} of {} is {:#x} instead of {:#x}; {} bytes are wrong",
            wanted.len(),
            seen[at],
            wanted[at],
            wrong.count() + 1
        )),
    }
}

//! Inputs and outputs of a run, with guard bytes around them.
//!
//! Both blocks are allocated once, for the largest size: a run measures collectives, not allocation.
//! Every block begins and ends with guard bytes, and the bytes right behind an output of a smaller
//! size serve as its guard too.

use anyhow::Result;
use mscclrs_collectives::{Collectives, Pointer};
use mscclrs_core::SymmetricBuffer;
use mscclrs_gpu::{Buffer, MemoryKind, Stream};

use crate::options::Buffers;
use crate::rival::{Call, Collective};

/// Bytes on each side; a multiple of any alignment that kernels look for.
pub(crate) const GUARD: u64 = 512;

/// Host bytes moved at once.
const CHUNK: usize = 16 << 20;

/// One guarded block of device memory.
pub(crate) struct Block {
    buffer: Buffer,
    _symmetric: Option<SymmetricBuffer>,
}

impl Block {
    fn new(collectives: &Collectives, bytes: u64, kind: Buffers) -> Result<Block> {
        let bytes = bytes + 2 * GUARD;
        Ok(match kind {
            Buffers::Symmetric => {
                let symmetric = collectives.alloc(bytes)?;
                Block { buffer: symmetric.buffer().clone(), _symmetric: Some(symmetric) }
            }
            Buffers::Plain => {
                let buffer = collectives.communicator().device().alloc(bytes, MemoryKind::Plain)?;
                Block { buffer, _symmetric: None }
            }
        })
    }

    /// Where the data begin.
    pub(crate) fn address(&self) -> Pointer {
        self.buffer.address() + GUARD
    }

    /// Writes `bytes` from byte `offset` of the data on (negative: in the guard before); `fill` makes
    /// each chunk, given the byte that it begins with.
    pub(crate) fn write(
        &self,
        stream: &Stream,
        offset: i64,
        bytes: u64,
        mut fill: impl FnMut(u64, &mut [u8]),
    ) -> Result<()> {
        let mut chunk = vec![0; CHUNK.min(bytes as usize)];
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(CHUNK as u64);
            let part = &mut chunk[..part as usize];
            fill(done, part);
            let at = GUARD.wrapping_add_signed(offset) + done;
            self.buffer.write(stream, at, part)?;
            done += part.len() as u64;
        }
        Ok(())
    }

    /// Reads as `write` writes; `look` sees each chunk and the byte that it begins with.
    pub(crate) fn read(
        &self,
        stream: &Stream,
        offset: i64,
        bytes: u64,
        mut look: impl FnMut(u64, &[u8]),
    ) -> Result<()> {
        let mut chunk = vec![0; CHUNK.min(bytes as usize)];
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(CHUNK as u64);
            let part = &mut chunk[..part as usize];
            let at = GUARD.wrapping_add_signed(offset) + done;
            self.buffer.read(stream, at, part)?;
            look(done, part);
            done += part.len() as u64;
        }
        Ok(())
    }
}

/// A rank's input and output.
pub(crate) struct Memory {
    pub(crate) input: Block,
    pub(crate) output: Block,
}

impl Memory {
    /// For all calls of a collective up to a row size. Collective.
    pub(crate) fn new(
        collectives: &Collectives,
        collective: Collective,
        bytes: u64,
        kind: Buffers,
    ) -> Result<Memory> {
        let input = match collective {
            Collective::AllGather => bytes / u64::from(collectives.communicator().world_size()),
            Collective::AllReduce => bytes,
        };
        Ok(Memory {
            input: Block::new(collectives, input, kind)?,
            output: Block::new(collectives, bytes, kind)?,
        })
    }

    /// Where a call reads and writes.
    pub(crate) fn addresses(&self, call: &Call, rank: u32) -> (Pointer, Pointer) {
        let output = self.output.address();
        let input = if call.in_place {
            output + call.input_offset_in_place(rank)
        } else {
            self.input.address()
        };
        (input, output)
    }
}

impl Call {
    /// Bytes of a rank's input.
    pub(crate) fn input_bytes(&self) -> u64 {
        self.count * u64::from(self.data_type.size())
    }

    /// Bytes of a rank's output.
    pub(crate) fn output_bytes(&self, ranks: u32) -> u64 {
        match self.collective {
            Collective::AllGather => self.input_bytes() * u64::from(ranks),
            Collective::AllReduce => self.input_bytes(),
        }
    }

    /// Where the input lies in the output when in place.
    pub(crate) fn input_offset_in_place(&self, rank: u32) -> u64 {
        match self.collective {
            Collective::AllGather => self.input_bytes() * u64::from(rank),
            Collective::AllReduce => 0,
        }
    }
}

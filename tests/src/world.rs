//! Ranks as threads of one process, one a device or several a device.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp, Shape, Tuning};
use mscclrs_core::{Communicator, LocalBootstrap};
use mscclrs_gpu::{BackendKind, Buffer, Device, Stream, device_count};

/// How long a device wait of a check may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// One rank of a check.
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) communicator: Communicator,
    pub(crate) stream: Stream,
}

/// Runs `work` as `ranks` ranks and gives the first error.
pub(crate) fn run<W>(kind: BackendKind, ranks: u32, work: W) -> Result<()>
where
    W: Fn(&Rank) -> Result<()> + Send + Sync + 'static,
{
    let work = Arc::new(work);
    let devices = match kind {
        BackendKind::Cpu => ranks,
        BackendKind::Cuda => device_count(kind)?.min(ranks),
    };
    let threads: Vec<_> = LocalBootstrap::create(ranks, Duration::from_secs(30))
        .into_iter()
        .enumerate()
        .map(|(rank, bootstrap)| {
            let work = work.clone();
            std::thread::Builder::new().name(format!("rank {rank}")).spawn(move || {
                let rank = rank as u32;
                let device = Device::open(kind, rank % devices)?;
                let communicator = Communicator::new(Arc::new(bootstrap), device.clone())?;
                communicator.set_timeout(Some(TIMEOUT));
                let stream = device.create_stream()?;
                let rank = Rank { rank, ranks, communicator, stream };
                let done = work(&rank);
                // Leaving while others still use this rank's memory would be a fault of the check.
                let met = rank.communicator.bootstrap().barrier();
                done?;
                met?;
                Ok(())
            })
        })
        .collect();
    let mut result: Result<()> = Ok(());
    for (rank, thread) in threads.into_iter().enumerate() {
        let thread = thread.context("starting a rank")?;
        let done: Result<()> = thread.join().unwrap_or_else(|_| Err(anyhow!("panicked")));
        if let (Err(error), Ok(())) = (done, &result) {
            result = Err(error.context(format!("rank {rank} of {ranks}")));
        }
    }
    result
}

impl Rank {
    pub(crate) fn device(&self) -> &Device {
        self.communicator.device()
    }

    /// Collectives that use one algorithm, with few blocks so that ranks can share a device.
    pub(crate) fn only(&self, all_reduce: AllReduce, all_gather: AllGather) -> Result<Collectives> {
        let shape = Shape { blocks: 3, threads: 64 };
        let tuning = Tuning::only(all_reduce, all_gather, shape);
        Ok(Collectives::with_tuning(&self.communicator, tuning)?)
    }

    /// Waits for the stream, or for what went wrong.
    pub(crate) fn finish(&self) -> Result<()> {
        Ok(self.communicator.synchronize(&self.stream)?)
    }
}

/// Element `index` of `rank`'s input: small whole numbers, exact in every type and in sums of 8 ranks.
pub(crate) fn value(rank: u32, index: u64, seed: u64) -> i64 {
    let hash = (index.wrapping_mul(7) + rank as u64 * 13 + seed.wrapping_mul(31)) ^ (index >> 5);
    (hash % 15) as i64
}

/// What an allreduce makes of them.
pub(crate) fn expected(ranks: u32, index: u64, seed: u64, op: ReduceOp) -> i64 {
    let all = (0..ranks).map(|rank| value(rank, index, seed));
    match op {
        ReduceOp::Sum => all.sum(),
        ReduceOp::Min => all.min().unwrap_or(0),
        ReduceOp::Max => all.max().unwrap_or(0),
    }
}

/// Whole numbers as elements of a type.
pub(crate) fn encode(values: impl Iterator<Item = i64>, data_type: DataType) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        match data_type {
            DataType::F16 => bytes.extend(half::f16::from_f32(value as f32).to_le_bytes()),
            DataType::Bf16 => bytes.extend(half::bf16::from_f32(value as f32).to_le_bytes()),
            DataType::F32 => bytes.extend((value as f32).to_le_bytes()),
            DataType::I32 => bytes.extend((value as i32).to_le_bytes()),
            DataType::U32 => bytes.extend((value as u32).to_le_bytes()),
        }
    }
    bytes
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
        if let Some(at) = part.iter().zip(wanted).position(|(a, b)| a != b) {
            let wrong = part.iter().zip(wanted).filter(|(a, b)| a != b).count();
            return Err(anyhow!(
                "{what}: byte {at} of {} is {:#x} instead of {:#x}; {wrong} bytes are wrong",
                wanted.len(),
                part[at],
                wanted[at]
            ));
        }
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

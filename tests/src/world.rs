//! Ranks as threads of one process, one a device or several a device.
//!
//! Invariant: where ranks share a GPU, nothing that may wait for the device (allocating, making
//! streams, loading kernels, instantiating graphs) is called while another rank's kernel may wait for
//! this rank. Checks make what they need, meet the other ranks, and then begin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp, Shape, Tuning};
use mscclrs_core::{Bootstrap, Communicator, LocalBootstrap};
use mscclrs_gpu::{BackendKind, Device, Stream, device_count};

use crate::memory::{Memory, same};
use crate::values::{encode, expected, value};

/// How long a device wait of a check may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Few blocks, so that ranks can share a device.
pub(crate) const SMALL: Shape = Shape { blocks: 3, threads: 64 };

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
    run_groups(kind, ranks, 1, move |groups| work(&groups[0]))
}

/// As [`run`], with all ranks on the first device.
pub(crate) fn run_shared<W>(kind: BackendKind, ranks: u32, work: W) -> Result<()>
where
    W: Fn(&Rank) -> Result<()> + Send + Sync + 'static,
{
    together(kind, &vec![0; ranks as usize], 1, move |groups| work(&groups[0]))
}

/// As [`run`], with several communicators of the same ranks.
pub(crate) fn run_groups<W>(kind: BackendKind, ranks: u32, groups: usize, work: W) -> Result<()>
where
    W: Fn(&[Rank]) -> Result<()> + Send + Sync + 'static,
{
    together(kind, &ordinals(kind, ranks)?, groups, work)
}

fn together<W>(kind: BackendKind, devices: &[u32], groups: usize, work: W) -> Result<()>
where
    W: Fn(&[Rank]) -> Result<()> + Send + Sync + 'static,
{
    let outcomes = start(kind, devices, groups, move |groups| {
        let done = work(&groups);
        if let Err(error) = &done {
            // The others must not wait for what this rank will not do.
            groups.iter().for_each(|rank| rank.communicator.abort(&format!("{error:#}")));
        }
        // Leaving while others still use this rank's memory would be a fault of the check.
        let met = groups[0].barrier();
        done?;
        met
    })?;
    let failed = outcomes.into_iter().filter_map(|(at, outcome)| Some((at, outcome.err()?)));
    // Later ones often follow from the first.
    match failed.min_by_key(|(at, _)| *at) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// Runs `work` as ranks that need not come to their end together; by rank, how each ended.
pub(crate) fn run_apart<W>(kind: BackendKind, ranks: u32, work: W) -> Result<Vec<Result<()>>>
where
    W: Fn(Rank) -> Result<()> + Send + Sync + 'static,
{
    let outcomes =
        start(kind, &ordinals(kind, ranks)?, 1, move |mut groups| work(groups.remove(0)))?;
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

type Outcome = (Instant, Result<()>);

/// One rank for each of `devices`.
fn start<W>(kind: BackendKind, devices: &[u32], groups: usize, work: W) -> Result<Vec<Outcome>>
where
    W: Fn(Vec<Rank>) -> Result<()> + Send + Sync + 'static,
{
    let ranks = devices.len() as u32;
    let work = Arc::new(work);
    let mut bootstraps: Vec<Vec<LocalBootstrap>> = (0..ranks).map(|_| Vec::new()).collect();
    for _ in 0..groups {
        let group = LocalBootstrap::create(ranks, Duration::from_secs(30));
        bootstraps.iter_mut().zip(group).for_each(|(all, one)| all.push(one));
    }
    let mut threads = Vec::new();
    for (rank, (bootstraps, &ordinal)) in bootstraps.into_iter().zip(devices).enumerate() {
        let work = work.clone();
        let body = move || -> Outcome {
            let made = || -> Result<Vec<Rank>> {
                let device = Device::open(kind, ordinal)?;
                bootstraps.into_iter().map(|b| Rank::new(Arc::new(b), &device)).collect()
            };
            let done = made().and_then(|ranks| work(ranks));
            (Instant::now(), done)
        };
        let thread = std::thread::Builder::new().name(format!("rank {rank}")).spawn(body);
        threads.push(thread.context("starting a rank")?);
    }
    let outcome = |(rank, thread): (usize, std::thread::JoinHandle<Outcome>)| {
        let (at, done) =
            thread.join().unwrap_or_else(|_| (Instant::now(), Err(anyhow!("panicked"))));
        (at, done.with_context(|| format!("rank {rank} of {ranks}")))
    };
    Ok(threads.into_iter().enumerate().map(outcome).collect())
}

/// The device of a rank: its own, or where there are too few one that it shares.
pub(crate) fn ordinal(kind: BackendKind, rank: u32) -> Result<u32> {
    Ok(match kind {
        BackendKind::Cpu => rank,
        BackendKind::Cuda => rank % device_count(kind)?,
    })
}

fn ordinals(kind: BackendKind, ranks: u32) -> Result<Vec<u32>> {
    (0..ranks).map(|rank| ordinal(kind, rank)).collect()
}

impl Rank {
    /// Collective.
    pub(crate) fn new(bootstrap: Arc<dyn Bootstrap>, device: &Device) -> Result<Rank> {
        let communicator = Communicator::new(bootstrap, device.clone())?;
        communicator.set_timeout(Some(TIMEOUT));
        let rank = Rank {
            rank: communicator.rank(),
            ranks: communicator.world_size(),
            stream: device.create_stream()?,
            communicator,
        };
        rank.barrier()?;
        Ok(rank)
    }

    pub(crate) fn device(&self) -> &Device {
        self.communicator.device()
    }

    /// Waits until every rank is here.
    pub(crate) fn barrier(&self) -> Result<()> {
        Ok(self.communicator.bootstrap().barrier()?)
    }

    /// Collectives that use one algorithm, with few blocks so that ranks can share a device.
    pub(crate) fn only(&self, all_reduce: AllReduce, all_gather: AllGather) -> Result<Collectives> {
        let tuning = Tuning::only(all_reduce, all_gather, SMALL);
        Ok(Collectives::with_tuning(&self.communicator, tuning)?)
    }

    /// One of these for every algorithm.
    pub(crate) fn every_algorithm(&self) -> Result<Vec<(AllReduce, Collectives)>> {
        let one = |algorithm| Ok((algorithm, self.only(algorithm, partner(algorithm))?));
        AllReduce::ALL.into_iter().map(one).collect()
    }

    /// Waits for the stream, or for what went wrong.
    pub(crate) fn finish(&self) -> Result<()> {
        Ok(self.communicator.synchronize(&self.stream)?)
    }

    /// One allreduce on memory made before, and a look at its result.
    pub(crate) fn reduces(
        &self,
        collectives: &Collectives,
        memory: &Memory,
        seed: u64,
    ) -> Result<()> {
        let (count, data_type, op) = (250u64, DataType::F32, ReduceOp::Sum);
        let own = encode((0..count).map(|i| value(self.rank, i, seed)), data_type);
        let sums = (0..count).map(|i| expected(self.ranks, i, seed, op));
        memory.input.write(&self.stream, 0, &own)?;
        let (input, output) = (&memory.input, &memory.output);
        collectives.all_reduce(input, output, count, data_type, op, &self.stream)?;
        self.finish()?;
        let mut got = vec![0; own.len()];
        output.read(&self.stream, 0, &mut got)?;
        same(&got, &encode(sums, data_type), "a plain allreduce")
    }
}

/// The allgather that goes the way of an allreduce.
pub(crate) fn partner(algorithm: AllReduce) -> AllGather {
    match algorithm {
        AllReduce::OneShotLl8 | AllReduce::TwoShotLl8 => AllGather::PacketLl8,
        AllReduce::OneShotLl16 | AllReduce::TwoShotLl16 => AllGather::PacketLl16,
        AllReduce::Push | AllReduce::Mesh => AllGather::Mesh,
        AllReduce::Direct => AllGather::Direct,
    }
}

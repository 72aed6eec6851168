//! A wait that takes too long ends, and says who waited for whom, and for what.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp, Shape, Tuning};
use mscclrs_core::{Error, WaitCause};
use mscclrs_gpu::{BackendKind, Device};

use crate::memory::Memory;
use crate::world::{self, Rank};

const LIMIT: Duration = Duration::from_millis(300);
/// For the wait to end and the error to come, on a busy machine.
const MOST: Duration = Duration::from_secs(3);

/// Rank 1 never calls: the record of rank 0 tells, and rank 1 is told.
pub(crate) fn record(device: &Device) -> Result<()> {
    for reduce in AllReduce::ALL {
        alone(device.kind(), reduce, AllGather::Mesh, true).with_context(|| reduce.name())?;
    }
    for gather in AllGather::ALL {
        alone(device.kind(), AllReduce::Mesh, gather, false).with_context(|| gather.name())?;
    }
    Ok(())
}

fn alone(kind: BackendKind, reduce: AllReduce, gather: AllGather, reduces: bool) -> Result<()> {
    world::run(kind, 2, move |rank| {
        let collectives = rank.only(reduce, gather)?;
        let memory = Memory::symmetric(&collectives, 4096)?;
        rank.barrier()?;
        if rank.rank == 1 {
            return is_told(rank);
        }
        rank.communicator.set_timeout(Some(LIMIT));
        let (input, output, stream) = (&memory.input, &memory.output, &rank.stream);
        if reduces {
            let sum = ReduceOp::Sum;
            collectives.all_reduce(input, output, 64, DataType::F32, sum, stream)?;
        } else {
            collectives.all_gather(input, output, 64, DataType::F32, stream)?;
        }
        let (name, packets) = match reduces {
            true => ("allreduce", reduce.name().contains("ll")),
            false => ("allgather", gather.name().contains("ll")),
        };
        times_out(rank, name, if packets { "packet" } else { "epoch flag" })
    })
}

/// Waits for the end of the launched kernel.
fn times_out(rank: &Rank, name: &str, kind: &str) -> Result<()> {
    let start = Instant::now();
    let error = rank.communicator.synchronize(&rank.stream);
    let took = start.elapsed();
    ensure!(LIMIT / 2 < took && took < MOST, "it took {took:?}");
    let wait = match error {
        Err(Error::Wait { rank: 0, wait }) => wait,
        other => bail!("{other:?} instead of an early wait"),
    };
    ensure!(wait.cause == WaitCause::Timeout, "{wait:?}");
    ensure!(wait.kernel.starts_with(name), "{wait:?} does not name an {name}");
    ensure!(wait.peer == Some(1), "{wait:?} does not name rank 1");
    ensure!(wait.kind == kind, "{wait:?} did not wait for a {kind}");
    ensure!(rank.communicator.early_wait().as_ref() == Some(&*wait), "another record");
    Ok(())
}

fn is_told(rank: &Rank) -> Result<()> {
    let deadline = Instant::now() + LIMIT + MOST;
    loop {
        match rank.communicator.check() {
            Err(Error::RankLost(lost)) if lost.loss.rank == 0 => return Ok(()),
            Err(other) => bail!("{other} instead of the failure of rank 0"),
            Ok(()) => ensure!(Instant::now() < deadline, "rank 1 was not told"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ranks that do not do the same: one has registered memory where the other has not, so they choose
/// different algorithms. That is a fault of the caller; it ends with an error all the same.
pub(crate) fn disagreement(device: &Device) -> Result<()> {
    world::run(device.kind(), 2, |rank| {
        let collectives = rank.only(AllReduce::Direct, AllGather::Direct)?;
        let registered = Memory::symmetric(&collectives, 4096)?;
        let plain = Memory::plain(rank, 4096)?;
        rank.barrier()?;
        rank.communicator.set_timeout(Some(LIMIT));
        let memory = if rank.rank == 0 { &registered } else { &plain };
        let (data_type, op) = (DataType::F32, ReduceOp::Sum);
        let (input, output) = (&memory.input, &memory.output);
        collectives.all_reduce(input, output, 1000, data_type, op, &rank.stream)?;
        let start = Instant::now();
        let outcome = rank.finish();
        ensure!(outcome.is_err(), "ranks with different algorithms came to a result");
        ensure!(start.elapsed() < MOST, "it took {:?}", start.elapsed());
        Ok(())
    })
}

/// Ranks that do the same on registered memory, but with another count or at another offset: no rank
/// may read or write where the others do not expect it.
pub(crate) fn mismatch(device: &Device) -> Result<()> {
    for (offset, count) in [(64, 1000), (0, 996)] {
        world::run(device.kind(), 2, move |rank| {
            let collectives = rank.only(AllReduce::Direct, AllGather::Direct)?;
            let memory = Memory::symmetric(&collectives, 8192)?;
            rank.barrier()?;
            let (at, count) = if rank.rank == 0 { (0, 1000) } else { (offset, count) };
            let address = memory.input.address() + at;
            let start = Instant::now();
            // SAFETY: the elements lie in the buffer at either offset.
            unsafe {
                let (data_type, op) = (DataType::F32, ReduceOp::Sum);
                collectives.all_reduce_raw(address, address, count, data_type, op, &rank.stream)?;
            }
            let Err(error) = rank.finish() else {
                bail!("ranks that called differently came to a result");
            };
            ensure!(error.to_string().contains("another registration, offset, count"), "{error}");
            ensure!(start.elapsed() < MOST, "it took {:?}", start.elapsed());
            Ok(())
        })
        .with_context(|| format!("offset {offset}, count {count}"))?;
    }
    Ok(())
}

/// A table that one rank alone cannot follow is an error on every rank, at once.
pub(crate) fn bad_table(device: &Device) -> Result<()> {
    world::run(device.kind(), 2, |rank| {
        let shape = Shape { blocks: 1, threads: if rank.rank == 0 { 32 } else { 33 } };
        let tuning = Tuning::only(AllReduce::Mesh, AllGather::Mesh, shape);
        let start = Instant::now();
        let Err(error) = Collectives::with_tuning(&rank.communicator, tuning) else {
            bail!("blocks of 33 threads were accepted");
        };
        ensure!(error.to_string().contains("multiples of 32"), "{error}");
        ensure!(start.elapsed() < MOST, "it took {:?}", start.elapsed());
        Ok(())
    })
}

//! A rank that is gone ends the waits of the others, with an error that names it; what is left works.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp};
use mscclrs_gpu::{BackendKind, Device};

use crate::memory::Memory;
use crate::world::{self, Rank};

/// From the loss of a rank to the errors of the others.
pub(super) const LIMIT: Duration = Duration::from_secs(2);

/// How rank 1 comes to its end while the others' kernels wait for it.
#[derive(Clone, Copy, Debug)]
enum End {
    Panics,
    Aborts,
    Leaves,
}

/// A rank whose thread panics, or that gives up.
pub(crate) fn threads(device: &Device) -> Result<()> {
    for algorithm in [AllReduce::OneShotLl8, AllReduce::Mesh, AllReduce::Direct] {
        for end in [End::Panics, End::Aborts] {
            lose(device.kind(), algorithm, end, LIMIT)
                .with_context(|| format!("{end:?} in {}", algorithm.name()))?;
        }
    }
    Ok(())
}

/// A rank that leaves is not lost, but who waits for it is told that it left.
pub(crate) fn goodbye(device: &Device) -> Result<()> {
    lose(device.kind(), AllReduce::TwoShotLl16, End::Leaves, LIMIT)
}

fn lose(kind: BackendKind, algorithm: AllReduce, end: End, limit: Duration) -> Result<()> {
    let outcomes = world::run_apart(kind, 3, move |rank| {
        let collectives = rank.only(algorithm, AllGather::Mesh)?;
        let memory = Memory::symmetric(&collectives, 4096)?;
        rank.reduces(&collectives, &memory, 1)?;
        rank.barrier()?;
        if rank.rank != 1 {
            return is_told(&rank, &collectives, &memory, limit);
        }
        std::thread::sleep(Duration::from_millis(200));
        match end {
            End::Panics => panic!("on purpose"),
            End::Aborts => rank.communicator.abort("it was told to fail"),
            End::Leaves => {}
        }
        Ok(())
    })?;
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        if rank != 1 || !matches!(end, End::Panics) {
            outcome?;
        }
    }
    // The process and its devices go on.
    world::run(kind, 3, move |rank| {
        let collectives = rank.only(algorithm, AllGather::Mesh)?;
        let memory = Memory::symmetric(&collectives, 4096)?;
        (0..5).try_for_each(|seed| rank.reduces(&collectives, &memory, seed))
    })
    .context("the next communicator")
}

/// Calls what the lost rank does not call, and wants to hear of it.
fn is_told(rank: &Rank, collectives: &Collectives, memory: &Memory, limit: Duration) -> Result<()> {
    let start = Instant::now();
    let Err(error) = rank.reduces(collectives, memory, 2) else {
        anyhow::bail!("an allreduce without rank 1 came to a result");
    };
    let (took, text) = (start.elapsed(), format!("{error:#}"));
    ensure!(text.contains("rank 1"), "the error does not name rank 1: {text}");
    ensure!(took < limit + Duration::from_millis(200), "told after {took:?}: {text}");
    ensure!(rank.communicator.check().is_err(), "the communicator takes itself for whole");
    Ok(())
}

/// What a long graph still holds when a rank is lost in it ends as soon as one call would.
pub(crate) fn long_graph(device: &Device) -> Result<()> {
    const CALLS: u32 = 1500;
    const COUNT: u64 = 1 << 18;
    for algorithm in [AllReduce::Mesh, AllReduce::TwoShotLl16] {
        let outcomes = world::run_apart(device.kind(), 3, move |rank| {
            let collectives = rank.only(algorithm, AllGather::Mesh)?;
            let memory = Memory::symmetric(&collectives, 4 * COUNT)?;
            let (input, output) = (&memory.input, &memory.output);
            let graph = rank.stream.capture(|stream| -> Result<()> {
                for _ in 0..CALLS {
                    let (data_type, op) = (DataType::F32, ReduceOp::Sum);
                    collectives.all_reduce(input, output, COUNT, data_type, op, stream)?;
                }
                Ok(())
            })?;
            let graph = graph.instantiate()?;
            rank.barrier()?;
            if rank.rank == 1 {
                std::thread::sleep(Duration::from_millis(100));
                rank.communicator.abort("it was told to fail");
                return Ok(());
            }
            let start = Instant::now();
            rank.communicator.launch_graph(&graph, &rank.stream)?;
            let Err(error) = rank.finish() else {
                anyhow::bail!("a graph without rank 1 came to a result");
            };
            let (took, text) = (start.elapsed(), format!("{error:#}"));
            ensure!(text.contains("rank 1"), "the error does not name rank 1: {text}");
            ensure!(took < LIMIT, "told after {took:?}: {text}");
            Ok(())
        })?;
        for outcome in outcomes {
            outcome.with_context(|| algorithm.name())?;
        }
    }
    Ok(())
}

/// Leaving is no loss: a rank that only computes, for however long, does not mind.
pub(crate) fn compute_goes_on(device: &Device) -> Result<()> {
    let outcomes = world::run_apart(device.kind(), 2, |rank| {
        let collectives = rank.only(AllReduce::Mesh, AllGather::Mesh)?;
        let memory = Memory::symmetric(&collectives, 4096)?;
        rank.reduces(&collectives, &memory, 1)?;
        rank.barrier()?;
        if rank.rank == 1 {
            return Ok(());
        }
        // Work that waits for nobody, while the other leaves.
        let stream = &rank.stream;
        stream.call_host(|| std::thread::sleep(Duration::from_millis(700)))?;
        rank.communicator.synchronize(stream)?;
        rank.communicator.check()?;
        Ok(())
    })?;
    outcomes.into_iter().collect()
}

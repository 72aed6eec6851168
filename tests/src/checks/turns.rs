//! Two threads in the collectives of one communicator: one gets an error, and nothing breaks.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use mscclrs_collectives::{Collectives, DataType, Error, ReduceOp};
use mscclrs_gpu::{BackendKind, Device, Stream};

use crate::memory::{Memory, same};
use crate::values::{encode, expected, value};
use crate::world::{self, Rank};

const COUNT: u64 = 100;

fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Busy | Error::Core(mscclrs_core::Error::Busy { .. }))
}

/// Both threads of rank 0 call until they have got through often enough; rank 1 calls as often.
pub(crate) fn busy(device: &Device) -> Result<()> {
    let each = match device.kind() {
        BackendKind::Cpu => 100,
        BackendKind::Cuda => 1000,
    };
    world::run(device.kind(), 2, move |rank| {
        let first = Collectives::new(&rank.communicator)?;
        // Another object of the same communicator, which has the same turn.
        let second = Collectives::new(&rank.communicator)?;
        let memory = Memory::symmetric(&first, 4096)?;
        let streams = [rank.stream.clone(), rank.device().create_stream()?];
        let own = encode((0..COUNT).map(|i| value(rank.rank, i, 3)), DataType::F32);
        memory.input.write(&rank.stream, 0, &own)?;
        rank.finish()?;
        rank.barrier()?;
        if rank.rank == 0 {
            refused(rank, &first, &memory)?;
        }
        rank.barrier()?;
        // The same calls on all ranks whoever makes them: both objects choose alike.
        let call = |stream: &Stream| {
            let (input, output) = (&memory.input, &memory.output);
            first.all_reduce(input, output, COUNT, DataType::F32, ReduceOp::Sum, stream)
        };
        let refusals = AtomicU64::new(0);
        let many = |stream: &Stream, times: u64| -> Result<()> {
            let mut done = 0;
            while done < times {
                match call(stream) {
                    Ok(()) => done += 1,
                    Err(error) if is_busy(&error) => {
                        refusals.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        };
        if rank.rank == 0 {
            std::thread::scope(|scope| -> Result<()> {
                let other = scope.spawn(|| many(&streams[1], each));
                many(&streams[0], each)?;
                other.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
            })?;
        } else {
            many(&rank.stream, 2 * each)?;
            ensure!(refusals.load(Ordering::Relaxed) == 0, "one thread alone was refused");
        }
        rank.communicator.synchronize(&streams[1])?;
        rank.finish()?;
        let mut got = vec![0; own.len()];
        memory.output.read(&rank.stream, 0, &mut got)?;
        let sums = (0..COUNT).map(|i| expected(2, i, 3, ReduceOp::Sum));
        same(&got, &encode(sums, DataType::F32), "the sums")?;
        rank.barrier()?;
        both_work(rank, &first, &second, &memory)
    })
}

/// While another thread has the turn a call is refused, and enqueues nothing.
fn refused(rank: &Rank, collectives: &Collectives, memory: &Memory) -> Result<()> {
    let turn = rank.communicator.enter()?;
    let outcome = std::thread::scope(|scope| {
        let call = || {
            let (input, output, stream) = (&memory.input, &memory.output, &rank.stream);
            collectives.all_reduce(input, output, COUNT, DataType::F32, ReduceOp::Sum, stream)
        };
        scope.spawn(call).join()
    });
    drop(turn);
    match outcome {
        Ok(Err(error)) if is_busy(&error) => {}
        Ok(other) => bail!("{other:?} while another thread has the turn"),
        Err(_) => bail!("a thread panicked"),
    }
    ensure!(rank.stream.is_idle()?, "a call that was refused enqueued something");
    Ok(())
}

fn both_work(
    rank: &Rank,
    first: &Collectives,
    second: &Collectives,
    memory: &Memory,
) -> Result<()> {
    let unregistered = "the second object takes this memory as not registered";
    for seed in 0..5 {
        rank.reduces(first, memory, seed)?;
        rank.reduces(second, memory, seed).context(unregistered)?;
    }
    Ok(())
}

//! The ranks of one process add up their buffers: one rank a GPU, or four on the CPU device.
//!
//! `cargo run --release -p mscclrs-examples --example allreduce`

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use mscclrs::gpu::{BackendKind, Device, default_backend, device_count};
use mscclrs::{Bootstrap, Collectives, Communicator, DataType, LocalBootstrap, ReduceOp};

const COUNT: u64 = 1000;

fn rank(kind: BackendKind, bootstrap: LocalBootstrap) -> Result<()> {
    let (rank, ranks) = (bootstrap.rank(), bootstrap.world_size());
    let device = Device::open(kind, rank)?;
    let communicator = Communicator::new(Arc::new(bootstrap), device.clone())?;
    let collectives = Collectives::new(&communicator)?;
    let stream = device.create_stream()?;

    let memory = collectives.alloc(4 * COUNT)?;
    let buffer = memory.buffer();
    buffer.write(&stream, 0, &(rank + 1).to_le_bytes().repeat(COUNT as usize))?;
    collectives.all_reduce(buffer, buffer, COUNT, DataType::U32, ReduceOp::Sum, &stream)?;
    communicator.synchronize(&stream)?;

    let mut result = vec![0; 4 * COUNT as usize];
    buffer.read(&stream, 0, &mut result)?;
    let sum = ranks * (ranks + 1) / 2;
    ensure!(result == sum.to_le_bytes().repeat(COUNT as usize), "rank {rank}: a wrong sum");
    println!("rank {rank} on {device:?} [{}]: every element is {sum}", device.name());
    Ok(())
}

fn main() -> Result<()> {
    let kind = default_backend()?;
    let ranks = if kind == BackendKind::Cpu { 4 } else { device_count(kind)? };
    let bootstraps = LocalBootstrap::create(ranks, Duration::from_secs(30));
    std::thread::scope(|scope| {
        let ranks: Vec<_> = bootstraps.into_iter().map(|b| scope.spawn(|| rank(kind, b))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank panicked"))
    })
}

//! Four ranks of one process add up their buffers.
//!
//! `cargo run --release -p mscclrs-examples --example allreduce`

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use mscclrs::gpu::{BackendKind, Device};
use mscclrs::{Collectives, Communicator, DataType, LocalBootstrap, ReduceOp};

const RANKS: u32 = 4;
const COUNT: u64 = 1000;

fn rank(bootstrap: LocalBootstrap, rank: u32) -> Result<()> {
    let device = Device::open(BackendKind::Cpu, rank)?;
    let communicator = Communicator::new(Arc::new(bootstrap), device.clone())?;
    let collectives = Collectives::new(&communicator)?;
    let stream = device.create_stream()?;

    let buffer = collectives.alloc(4 * COUNT)?;
    let ones = (rank as f32 + 1.0).to_le_bytes().repeat(COUNT as usize);
    buffer.buffer().write(&stream, 0, &ones)?;
    let (data, sum) = (buffer.buffer(), ReduceOp::Sum);
    collectives.all_reduce(data, data, COUNT, DataType::F32, sum, &stream)?;
    communicator.synchronize(&stream)?;

    let mut result = vec![0; 4 * COUNT as usize];
    data.read(&stream, 0, &mut result)?;
    // 1 + 2 + 3 + 4
    ensure!(result == 10f32.to_le_bytes().repeat(COUNT as usize), "rank {rank}: a wrong sum");
    println!("rank {rank}: every element is 10");
    Ok(())
}

fn main() -> Result<()> {
    let bootstraps = LocalBootstrap::create(RANKS, Duration::from_secs(30));
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..).zip(bootstraps).map(|(r, b)| scope.spawn(move || rank(b, r))).collect();
        ranks.into_iter().try_for_each(|r| r.join().expect("a rank panicked"))
    })
}

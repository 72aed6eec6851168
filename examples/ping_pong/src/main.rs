//! The host's half: two ranks of one process, a channel between them, a launch, a check.
//!
//! `cargo run --release -p ping_pong` runs it on the CPU device. For GPUs compile the kernel first:
//! `mscclrs kernel build examples/ping_pong`, then `cargo run --release -p ping_pong -- cuda`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mscclrs::gpu::{BackendKind, Device, Grid, MemoryKind, device_count};
use mscclrs::{Communicator, EndpointConfig, LocalBootstrap, MemoryChannel, Transport};
use ping_pong::{PingPongArgs, volley};

const WORDS: u32 = 1000;
const PASSES: u32 = 100;
const TAG: u32 = 0;

fn rank(kind: BackendKind, bootstrap: LocalBootstrap, rank: u32) -> Result<()> {
    let device = Device::open(kind, rank % device_count(kind)?)?;
    let kernel = volley.instance("").context("the kernel has one instance")?;
    let function = device.function(kernel)?;
    let communicator = Communicator::new(Arc::new(bootstrap), device.clone())?;
    let stream = device.create_stream()?;
    let peer = 1 - rank;

    // Each side registers its memory and learns the other's.
    let memory = device.alloc(4 * WORDS as u64, MemoryKind::Shareable)?;
    // What was enqueued is there before the peer learns of the memory.
    memory.write(&stream, 0, &[0; 4 * WORDS as usize])?;
    communicator.synchronize(&stream)?;
    let local = communicator.register_memory(&memory)?;
    communicator.send_memory(&local, peer, TAG)?;
    let remote = communicator.recv_memory(peer, TAG)?;
    let connection =
        communicator.connect(&EndpointConfig::new(Transport::PeerMemory), peer, TAG)?;
    let semaphore = communicator.build_semaphore(&connection.get()?, TAG)?.get()?;
    let channel = MemoryChannel::new(&semaphore, &remote.get()?, &local)?;

    let args = PingPongArgs {
        guard: communicator.guard(0),
        channel: channel.device_handle(),
        words: WORDS,
        passes: PASSES,
        rank,
    };
    // SAFETY: the channel and the memory live until the stream has passed.
    unsafe { stream.launch(&function, Grid::new(1, 256), &args)? };
    communicator.synchronize(&stream)?;

    let mut message = vec![0; 4 * WORDS as usize];
    memory.read(&stream, 0, &mut message)?;
    // The last pass goes from rank 1 to rank 0; rank 1 added once less.
    let added = PASSES - rank;
    ensure!(message == added.to_le_bytes().repeat(WORDS as usize), "a wrong message");
    println!("rank {rank} on {device:?}: {PASSES} passes of {WORDS} words, every word is {added}");
    communicator.bootstrap().barrier()?;
    Ok(())
}

fn main() -> Result<()> {
    let kind = std::env::args().nth(1).as_deref().unwrap_or("cpu").parse()?;
    let bootstraps = LocalBootstrap::create(2, Duration::from_secs(30));
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..).zip(bootstraps).map(|(r, b)| scope.spawn(move || rank(kind, b, r))).collect();
        ranks.into_iter().try_for_each(|r| r.join().expect("a rank panicked"))
    })
}

//! The host's half: rank 0 hands a message to rank 1, which checks it.
//!
//! `cargo run -p race` most likely goes well on any machine, and yet the kernel is wrong:
//! `mscclrs check -- cargo run -p race` says where. `cargo run -p race -- --mended` runs the mended one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mscclrs::gpu::{BackendKind, Device, Grid, MemoryKind, device_count};
use mscclrs::{Communicator, EndpointConfig, LocalBootstrap, MemoryChannel, Transport};
use race::{HandOverArgs, hand_over};

const WORDS: u32 = 64;
const TAG: u32 = 0;

#[derive(Clone, Copy)]
struct Options {
    kind: BackendKind,
    mended: bool,
}

fn options() -> Result<Options> {
    let mut options = Options { kind: BackendKind::Cpu, mended: false };
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--mended" => options.mended = true,
            "cpu" => options.kind = BackendKind::Cpu,
            "cuda" => options.kind = BackendKind::Cuda,
            other => bail!("'{other}' is not allowed; allowed are cpu, cuda and --mended"),
        }
    }
    Ok(options)
}

fn rank(options: Options, bootstrap: LocalBootstrap, rank: u32) -> Result<()> {
    let device = Device::open(options.kind, rank % device_count(options.kind)?)?;
    let function =
        device.function(hand_over.instance("").context("the kernel has one instance")?)?;
    let communicator = Communicator::new(Arc::new(bootstrap), device.clone())?;
    let stream = device.create_stream()?;
    let peer = 1 - rank;

    let memory = device.alloc(4 * WORDS as u64, MemoryKind::Shareable)?;
    let local = communicator.register_memory(&memory)?;
    communicator.send_memory(&local, peer, TAG)?;
    let remote = communicator.recv_memory(peer, TAG)?;
    let connection =
        communicator.connect(&EndpointConfig::new(Transport::PeerMemory), peer, TAG)?;
    let semaphore = communicator.build_semaphore(&connection.get()?, TAG)?.get()?;
    let channel = MemoryChannel::new(&semaphore, &remote.get()?, &local)?;

    let message = if rank == 0 { 41_u32 } else { 0 };
    memory.write(&stream, 0, &message.to_le_bytes().repeat(WORDS as usize))?;
    // Rank 1's zeros are there before the message comes.
    communicator.synchronize(&stream)?;
    communicator.bootstrap().barrier()?;
    let args = HandOverArgs {
        guard: communicator.guard(0),
        channel: channel.device_handle(),
        words: WORDS,
        rank,
        mended: options.mended.into(),
    };
    // SAFETY: the channel and the memory live until the stream has passed.
    unsafe { stream.launch(&function, Grid::new(1, 64), &args)? };
    communicator.synchronize(&stream)?;

    let mut found = vec![0; 4 * WORDS as usize];
    memory.read(&stream, 0, &mut found)?;
    if rank == 1 {
        ensure!(found == 42_u32.to_le_bytes().repeat(WORDS as usize), "a wrong message");
        println!("every word is 42");
    }
    communicator.bootstrap().barrier()?;
    Ok(())
}

fn main() -> Result<()> {
    let options = options()?;
    let bootstraps = LocalBootstrap::create(2, Duration::from_secs(30));
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..).zip(bootstraps).map(|(r, b)| scope.spawn(move || rank(options, b, r))).collect();
        // What went wrong is seen by the receiver.
        ranks.into_iter().rev().try_for_each(|r| r.join().expect("a rank panicked"))
    })
}

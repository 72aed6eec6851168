//! What everything else stands on: barriers, warps, copies and graphs.

use std::time::Duration;

use anyhow::{Result, ensure};
use mscclrs_device::Global;
use mscclrs_gpu::{Buffer, Device, Function, Grid, MemoryKind, Stream};
use mscclrs_kernels::probe;

const LIMIT: Duration = Duration::from_secs(30);

/// The sentinel kernel gives what its source says: no barrier was copied, moved or dropped.
pub(crate) fn contract(device: &Device) -> Result<()> {
    let setup = Setup::new(device)?;
    setup.data.fill(&setup.stream, 0)?;
    setup.launch()?;
    setup.finish("the kernel")?;
    setup.compare(&expected(&vec![0; setup.threads as usize]))
}

/// A launch and a copy, captured once, give the right result each time they are replayed.
pub(crate) fn replay(device: &Device) -> Result<()> {
    let setup = Setup::new(device)?;
    let bytes = 4 * u64::from(setup.threads);
    let input = device.alloc(bytes, MemoryKind::Plain)?;
    let graph = setup.stream.capture(|stream| -> Result<()> {
        // SAFETY: both buffers have this many bytes and live until the stream is done.
        unsafe { stream.copy(setup.data.address(), input.address(), bytes) }?;
        setup.launch()
    })?;
    let graph = graph.instantiate()?;
    for round in 0..10u32 {
        let words: Vec<u32> = (0..setup.threads).map(|lane| lane * 7 + round * 1000).collect();
        let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        input.write(&setup.stream, 0, &data)?;
        graph.launch(&setup.stream)?;
        setup.finish("the graph")?;
        setup.compare(&expected(&words))?;
    }
    Ok(())
}

struct Setup {
    stream: Stream,
    function: Function,
    data: Buffer,
    threads: u32,
}

impl Setup {
    fn new(device: &Device) -> Result<Setup> {
        let kernel = &probe::contract.instances()[0];
        let threads = kernel.max_threads.min(device.limits().threads_per_block);
        Ok(Setup {
            stream: device.create_stream()?,
            function: device.function(kernel)?,
            data: device.alloc(4 * u64::from(threads), MemoryKind::Plain)?,
            threads,
        })
    }

    fn launch(&self) -> Result<()> {
        let args = probe::ContractArgs { data: Global::from_address(self.data.address()) };
        // SAFETY: the buffer has a word a lane and lives until the stream is done.
        unsafe { self.stream.launch(&self.function, Grid::new(1, self.threads), &args) }?;
        Ok(())
    }

    fn finish(&self, what: &str) -> Result<()> {
        let done = self.stream.synchronize_within(LIMIT)?;
        ensure!(done, "{what} did not end within {} s", LIMIT.as_secs());
        Ok(())
    }

    fn compare(&self, expected: &[u32]) -> Result<()> {
        let mut bytes = vec![0; 4 * expected.len()];
        self.data.read(&self.stream, 0, &mut bytes)?;
        for (lane, (bytes, expected)) in bytes.chunks_exact(4).zip(expected).enumerate() {
            let seen = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            ensure!(seen == *expected, "lane {lane} holds {seen} instead of {expected}");
        }
        Ok(())
    }
}

/// What the sentinel makes of `before`, one word a lane.
fn expected(before: &[u32]) -> Vec<u32> {
    let lanes = before.len();
    let stored: Vec<u32> =
        (0..lanes).map(|lane| if lane > 4 { 3 + lane as u32 } else { before[lane] }).collect();
    let taken: Vec<u32> =
        (0..lanes).map(|lane| if lane > 4 { stored[lane ^ 1] } else { 1 }).collect();
    (0..lanes)
        .map(|lane| {
            let warp = lane / 32 * 32;
            taken[warp..warp + 32].iter().sum::<u32>() + lanes as u32
        })
        .collect()
}

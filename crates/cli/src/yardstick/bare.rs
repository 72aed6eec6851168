//! The bare kernels on a pair of ranks: their memory, their launches, and a check of what they give.
//!
//! Invariant: a bare allreduce counts an epoch a block, so while it is measured a `Lane` of scratch
//! is its own and its grid stays the same. Before a lane is used again all its epochs are set past
//! any that was used, on both ranks, between two barriers: no packet or signal of before can pass for
//! a new one. Lanes are few, and never grow with what is measured.

use std::cell::Cell;

use anyhow::{Context, Result, bail, ensure};
use mscclrs_core::{Communicator, SymmetricBuffer};
use mscclrs_device::{Global, Kernel, KernelArgs, MAX_BLOCKS};
use mscclrs_gpu::{BackendKind, Function, Grid, Stream};

use super::kernels::*;
use super::method::{Method, Shape};
use crate::harness::{Candidate, Harness, Timing};

/// Allreduces that can be measured alternating.
pub(crate) const LANES: usize = 4;

const EPOCHS: u64 = 0;
const SIGNALS: u64 = 1024;
const HOP_WORD: u64 = 2048;
const HOP_COUNT: u64 = 2176;
const PACKET_WORD: u64 = 2304;
const PACKET_COUNT: u64 = 2432;
const FAILED: u64 = 3072;
const CONTROL_BYTES: u64 = 4096;
const SLOT_BYTES: u64 = 16 << 20;
/// Whole pages, so that the control words and the slots of small messages share one.
const LANE_BYTES: u64 = (CONTROL_BYTES + SLOT_BYTES).next_multiple_of(2 << 20);

// Control words lie apart.
const _: () = assert!(
    EPOCHS + 4 * MAX_BLOCKS as u64 <= SIGNALS
        && SIGNALS + 8 * MAX_BLOCKS as u64 <= HOP_WORD
        && PACKET_COUNT + 8 <= FAILED
        && FAILED + 4 <= CONTROL_BYTES
);

/// Round trips of one ping-pong launch: what the launch costs is a thousandth of a hop then.
pub(crate) const HOP_ROUNDS: u32 = 200;

/// Bytes of a chunk of the bulk copies.
const BULK_CHUNK: u32 = 32 << 10;

/// Enqueues one operation.
pub(crate) type Work = Box<dyn Fn(&Stream) -> Result<()>>;

/// Which way a copy goes and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// 16-byte stores to the peer, with this many blocks.
    Stores(u32),
    /// 16-byte loads from the peer, with this many blocks.
    Loads(u32),
    /// Bulk copies through shared memory to the peer, with this many blocks.
    BulkPush(u32),
    /// Bulk copies through shared memory from the peer, with this many blocks.
    BulkPull(u32),
    /// What the device has beside its multiprocessors, to the peer.
    Engine,
}

impl Copy {
    /// For tables and JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Copy::Stores(_) => "stores",
            Copy::Loads(_) => "loads",
            Copy::BulkPush(_) => "bulk push",
            Copy::BulkPull(_) => "bulk pull",
            Copy::Engine => "copy engine",
        }
    }

    /// Blocks and lanes a block, for those that kernels make.
    pub(crate) const fn grid(self) -> Option<(u32, u32)> {
        match self {
            Copy::Stores(blocks) => Some((blocks, 1024)),
            Copy::Loads(blocks) => Some((blocks, 512)),
            Copy::BulkPush(blocks) | Copy::BulkPull(blocks) => Some((blocks, 32)),
            Copy::Engine => None,
        }
    }
}

/// The bare kernels on two ranks of a communicator.
pub(crate) struct Bare {
    communicator: Communicator,
    scratch: SymmetricBuffer,
    input: SymmetricBuffer,
    output: SymmetricBuffer,
    functions: Functions,
    /// Ranks on this rank's device.
    sharing: u32,
    /// Past every epoch that was used.
    next_epoch: u32,
}

struct Functions {
    empty: Function,
    hop_signal: Function,
    hop_ll8: Function,
    ll8: Function,
    ll16: Function,
    store: Function,
    pull: Function,
    copy_store: Function,
    copy_load: Function,
    copy_bulk: Function,
}

/// Why the bare kernels cannot run here; the same on every rank.
pub(crate) fn unavailable(communicator: &Communicator) -> Option<String> {
    let device = communicator.device();
    if device.kind() != BackendKind::Cuda {
        return Some("the bare kernels are for CUDA".into());
    }
    if device.limits().sm < 90 {
        return Some(format!(
            "the bare kernels need compute capability 9.0 or higher, {} has {}.{}",
            device.name(),
            device.limits().sm / 10,
            device.limits().sm % 10
        ));
    }
    (communicator.world_size() != 2).then(|| {
        format!("the bare kernels are for 2 ranks, these are {}", communicator.world_size())
    })
}

impl Bare {
    /// Allocates and loads for vectors of up to `bytes` bytes. Both ranks call it, where
    /// [`unavailable`] gave nothing on either.
    pub(crate) fn new(communicator: &Communicator, bytes: u64, stream: &Stream) -> Result<Bare> {
        if let Some(why) = unavailable(communicator) {
            bail!("{why}");
        }
        let device = communicator.device();
        let function = |kernel: &'static Kernel| device.function(kernel);
        let functions = Functions {
            empty: function(&EMPTY)?,
            hop_signal: function(&HOP_SIGNAL)?,
            hop_ll8: function(&HOP_LL8)?,
            ll8: function(&ALLREDUCE_LL8)?,
            ll16: function(&ALLREDUCE_LL16)?,
            store: function(&ALLREDUCE_STORE)?,
            pull: function(&ALLREDUCE_PULL)?,
            copy_store: function(&COPY_STORE)?,
            copy_load: function(&COPY_LOAD)?,
            copy_bulk: function(&COPY_BULK)?,
        };
        let bytes = bytes.next_multiple_of(32);
        let alloc = |bytes: u64| -> Result<SymmetricBuffer> {
            let memory = communicator.alloc(bytes)?;
            ensure!(
                memory.registration().is_mapped(),
                "the ranks cannot map each other's memory, so no kernel can reach the peer's"
            );
            Ok(memory)
        };
        let scratch = alloc(LANES as u64 * LANE_BYTES)?;
        let (input, output) = (alloc(bytes)?, alloc(bytes)?);
        input.buffer().write(stream, 0, &pattern(communicator.rank(), bytes))?;
        // Nothing but the control words has to be zero: slots are told apart by epochs.
        for lane in 0..LANES as u64 {
            scratch.buffer().write(stream, lane * LANE_BYTES, &[0; CONTROL_BYTES as usize])?;
        }
        let uuids = communicator.bootstrap().all_gather(&device.uuid())?;
        let sharing = uuids.iter().filter(|uuid| **uuid == device.uuid()).count() as u32;
        stream.synchronize()?;
        communicator.bootstrap().barrier()?;
        Ok(Bare {
            communicator: communicator.clone(),
            scratch,
            input,
            output,
            functions,
            sharing,
            next_epoch: 1,
        })
    }

    /// Bytes of the longest vector.
    pub(crate) fn bytes(&self) -> u64 {
        self.input.registration().bytes()
    }

    /// The ranks.
    pub(crate) fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Ranks on this rank's device.
    pub(crate) fn sharing(&self) -> u32 {
        self.sharing
    }

    fn peer(&self) -> u32 {
        1 - self.communicator.rank()
    }

    fn here(&self, lane: usize, offset: u64) -> u64 {
        self.scratch.registration().local() + lane as u64 * LANE_BYTES + offset
    }

    fn there(&self, lane: usize, offset: u64) -> u64 {
        self.scratch.registration().of(self.peer()) + lane as u64 * LANE_BYTES + offset
    }

    fn failed(&self) -> Global<u32> {
        Global::from_address(self.here(0, FAILED))
    }

    /// Launches an empty kernel.
    pub(crate) fn empty(&self, grid: Grid) -> impl Fn(&Stream) -> Result<()> {
        launch(&self.functions.empty, grid, EmptyArgs { unused: 0 })
    }

    /// Ping-pong of [`HOP_ROUNDS`] round trips, by counting signals or by packets.
    pub(crate) fn hop(&self, packets: bool) -> impl Fn(&Stream) -> Result<()> {
        let (function, word, count) = if packets {
            (&self.functions.hop_ll8, PACKET_WORD, PACKET_COUNT)
        } else {
            (&self.functions.hop_signal, HOP_WORD, HOP_COUNT)
        };
        let args = HopArgs {
            remote: Global::from_address(self.there(0, word)),
            local: Global::from_address(self.here(0, word)),
            count: Global::from_address(self.here(0, count)),
            failed: self.failed(),
            rounds: HOP_ROUNDS,
            starts: u32::from(self.communicator.rank() == 0),
        };
        launch(function, Grid::new(1, 32), args)
    }

    /// Moves `bytes` (a multiple of the bulk chunk) between this rank and its peer.
    pub(crate) fn copy(&self, copy: Copy, bytes: u64) -> Result<Work> {
        ensure!(
            bytes <= self.bytes() && bytes.is_multiple_of(BULK_CHUNK.into()),
            "a copy of {bytes} bytes is not allowed; allowed are multiples of {BULK_CHUNK} up to {}",
            self.bytes()
        );
        let (input, output) = (self.input.registration(), self.output.registration());
        let push = (output.of(self.peer()), input.local());
        let pull = (output.local(), input.of(self.peer()));
        let words = |(to, from)| -> Result<CopyArgs> {
            Ok(CopyArgs {
                to: Global::from_address(to),
                from: Global::from_address(from),
                words: u32::try_from(bytes / 16)?,
            })
        };
        let bulk = |blocks, (to, from)| -> Result<_> {
            let args = BulkArgs {
                to: Global::from_address(to),
                from: Global::from_address(from),
                failed: self.failed(),
                chunks: u32::try_from(bytes / u64::from(BULK_CHUNK))?,
                chunk_bytes: BULK_CHUNK,
            };
            let grid = Grid { blocks, threads: 32, shared_bytes: BULK_STAGES * BULK_CHUNK };
            Ok(launch(&self.functions.copy_bulk, grid, args))
        };
        Ok(match copy {
            Copy::Stores(blocks) => {
                Box::new(launch(&self.functions.copy_store, Grid::new(blocks, 1024), words(push)?))
            }
            Copy::Loads(blocks) => {
                Box::new(launch(&self.functions.copy_load, Grid::new(blocks, 512), words(pull)?))
            }
            Copy::BulkPush(blocks) => Box::new(bulk(blocks, push)?),
            Copy::BulkPull(blocks) => Box::new(bulk(blocks, pull)?),
            Copy::Engine => {
                let (to, from) = push;
                // SAFETY: both are ranges of registered buffers of at least `bytes` bytes, which
                // live as long as `self`; who measures waits for the stream before dropping it.
                Box::new(move |stream| Ok(unsafe { stream.copy(to, from, bytes) }?))
            }
        })
    }

    fn allreduce(&self, shape: Shape, bytes: u64, lane: usize) -> Result<Work> {
        let (input, output) = (self.input.registration(), self.output.registration());
        let grid = Grid::new(shape.blocks, shape.threads);
        let epochs = Global::from_address(self.here(lane, EPOCHS));
        let remote_signals = Global::from_address(self.there(lane, SIGNALS));
        let local_signals = Global::from_address(self.here(lane, SIGNALS));
        let (remote, local) = (self.there(lane, CONTROL_BYTES), self.here(lane, CONTROL_BYTES));
        let half = shape.slot_bytes(bytes).next_multiple_of(256);
        ensure!(half <= SLOT_BYTES / 2, "{bytes} bytes are too many for {shape}");
        let words = u32::try_from(bytes / 16)?;
        Ok(match shape.method {
            Method::Ll8 | Method::Ll16 => {
                let (function, payload) = match shape.method {
                    Method::Ll8 => (&self.functions.ll8, 4),
                    _ => (&self.functions.ll16, 8),
                };
                let packets = u32::try_from(bytes / payload)?;
                let half_words = u32::try_from(half / 8)?;
                let launches: Vec<_> = places(half)
                    .map(|place| PacketArgs {
                        input: Global::from_address(input.local()),
                        output: Global::from_address(output.local()),
                        remote: Global::from_address(remote + place),
                        local: Global::from_address(local + place),
                        epochs,
                        failed: self.failed(),
                        packets,
                        half: half_words,
                    })
                    .map(|args| launch(function, grid, args))
                    .collect();
                let next = Cell::new(0);
                Box::new(move |stream| {
                    let launch = &launches[next.get()];
                    next.set((next.get() + 1) % launches.len());
                    launch(stream)
                })
            }
            Method::Store => {
                let args = StoreArgs {
                    input: Global::from_address(input.local()),
                    output: Global::from_address(output.local()),
                    remote: Global::from_address(remote),
                    local: Global::from_address(local),
                    remote_signals,
                    local_signals,
                    epochs,
                    failed: self.failed(),
                    words,
                    per_block: words.div_ceil(shape.blocks),
                    half: u32::try_from(half / 16)?,
                };
                Box::new(launch(&self.functions.store, grid, args))
            }
            Method::Pull => {
                let first = words / 2;
                let (begin, words) = match self.communicator.rank() {
                    0 => (0, first),
                    _ => (first, words - first),
                };
                let args = PullArgs {
                    input: Global::from_address(input.local()),
                    peer_input: Global::from_address(input.of(self.peer())),
                    output: Global::from_address(output.local()),
                    peer_output: Global::from_address(output.of(self.peer())),
                    remote_signals,
                    local_signals,
                    epochs,
                    failed: self.failed(),
                    begin,
                    words,
                };
                Box::new(launch(&self.functions.pull, grid, args))
            }
        })
    }

    fn function(&self, method: Method) -> &Function {
        match method {
            Method::Ll8 => &self.functions.ll8,
            Method::Ll16 => &self.functions.ll16,
            Method::Store => &self.functions.store,
            Method::Pull => &self.functions.pull,
        }
    }

    /// Measures the best few shapes for a vector of `bytes` bytes, a multiple of 32, after a check of
    /// each one's result. Both ranks call it.
    pub(crate) fn measure(
        &mut self,
        bytes: u64,
        harness: &mut Harness<'_>,
        stream: &Stream,
    ) -> Result<Vec<(Shape, Timing)>> {
        ensure!(
            bytes.is_multiple_of(32) && bytes > 0 && bytes <= self.bytes(),
            "a vector of {bytes} bytes is not allowed; allowed are multiples of 32 up to {}",
            self.bytes()
        );
        let mut shapes = Vec::new();
        for shape in Shape::for_bytes(bytes) {
            let resident =
                self.function(shape.method).resident_blocks(shape.threads, 0)? / self.sharing;
            // Blocks wait for their twins, so all of both ranks have to be resident; the ranks'
            // devices may differ.
            if harness.agree(u64::from(shape.blocks > resident))? == 0 {
                shapes.push(shape);
            }
        }
        let mut timings = Vec::with_capacity(shapes.len());
        for shapes in shapes.chunks(LANES) {
            self.reset(stream)?;
            let mut candidates = Vec::with_capacity(shapes.len());
            for (lane, &shape) in shapes.iter().enumerate() {
                let enqueue = self.allreduce(shape, bytes, lane)?;
                self.check(shape, bytes, &*enqueue, stream)?;
                candidates.push(Candidate::new(format!("bare {shape}, {bytes} bytes"), enqueue));
            }
            let measured = harness.measure(&mut candidates)?;
            drop(candidates);
            self.finish(stream)?;
            timings.extend(shapes.iter().copied().zip(measured));
        }
        Ok(timings)
    }

    /// Makes every lane ready for other shapes.
    fn reset(&mut self, stream: &Stream) -> Result<()> {
        self.communicator.bootstrap().barrier()?;
        let epochs = self.next_epoch.to_le_bytes().repeat(MAX_BLOCKS as usize);
        for lane in 0..LANES as u64 {
            self.scratch.buffer().write(stream, lane * LANE_BYTES + EPOCHS, &epochs)?;
        }
        stream.synchronize()?;
        Ok(self.communicator.bootstrap().barrier()?)
    }

    /// Looks whether a wait reached its bound since the last look. Every rank calls it after a
    /// measurement.
    pub(crate) fn finish(&mut self, stream: &Stream) -> Result<()> {
        let mut failed = [0; 4];
        self.scratch.buffer().read(stream, FAILED, &mut failed)?;
        let mut latest = self.next_epoch;
        for lane in 0..LANES as u64 {
            // Block 0 is part of every grid.
            let mut epoch = [0; 4];
            self.scratch.buffer().read(stream, lane * LANE_BYTES + EPOCHS, &mut epoch)?;
            latest = latest.max(u32::from_le_bytes(epoch));
        }
        self.next_epoch = latest
            .checked_add(1)
            .context("the bare kernels have used up their epochs; start the command again")?;
        let mine = [u8::from(u32::from_le_bytes(failed) != 0)];
        let all = self.communicator.bootstrap().all_gather(&mine)?;
        match all.iter().position(|failed| *failed != [0]) {
            None => Ok(()),
            Some(rank) => bail!(
                "a bare kernel of rank {rank} gave up waiting for its peer, so its figures mean \
                 nothing; with several ranks on one GPU, set CUDA_DEVICE_MAX_CONNECTIONS=32"
            ),
        }
    }

    /// Runs the allreduce three times, so that both halves of its slots are used twice over, and
    /// compares the whole output.
    fn check(
        &self,
        shape: Shape,
        bytes: u64,
        enqueue: &dyn Fn(&Stream) -> Result<()>,
        stream: &Stream,
    ) -> Result<()> {
        self.output.buffer().fill(stream, 0xff)?;
        stream.synchronize()?;
        // Zero copy writes the peer's output, which has to be filled by then.
        self.communicator.bootstrap().barrier()?;
        for _ in 0..3 {
            enqueue(stream)?;
        }
        self.communicator.synchronize(stream)?;
        let mut output = vec![0; usize::try_from(bytes)?];
        self.output.buffer().read(stream, 0, &mut output)?;
        let wrong = output
            .chunks_exact(2)
            .enumerate()
            .filter(|(i, value)| **value != bf16(value_at(0, *i) + value_at(1, *i)))
            .count();
        let all = self.communicator.bootstrap().all_gather(&(wrong as u64).to_le_bytes())?;
        match all.iter().position(|wrong| *wrong != [0; 8]) {
            None => Ok(()),
            Some(rank) => bail!(
                "bare {shape} gave wrong sums for {bytes} bytes on rank {rank} ({wrong} on this \
                 rank), so its time would mean nothing"
            ),
        }
    }
}

/// Where the two halves of a message's slots begin, call by call: small ones in several places in
/// turn. How long a small message takes depends by up to a tenth on which 4 KiB of the receiver's memory
/// it lies in, so one place would make the yardstick a matter of luck. No two places overlap.
fn places(half: u64) -> impl Iterator<Item = u64> {
    const PLACES: u64 = 8;
    const SMALL: u64 = 64 << 10;
    const STEP: u64 = 4 << 10;
    let count = if half <= SMALL { PLACES } else { 1 };
    (0..count).map(move |place| place * ((2 * half).next_multiple_of(STEP) + STEP))
}

/// A closure that launches `function` with these arguments.
fn launch<A: KernelArgs>(
    function: &Function,
    grid: Grid,
    args: A,
) -> impl Fn(&Stream) -> Result<()> + use<A> {
    let function = function.clone();
    move |stream| {
        // SAFETY: the addresses lie in buffers of the `Bare` that made the closure, large enough for
        // the counts beside them; who measures waits for the stream before dropping it.
        Ok(unsafe { stream.launch(&function, grid, &args) }?)
    }
}

/// What element `index` of a rank's input is: a whole number up to 31, so that sums are exact.
fn value_at(rank: u32, index: usize) -> u32 {
    (index as u32).wrapping_add(rank * 7919).wrapping_mul(2_654_435_761) >> 27
}

fn bf16(value: u32) -> [u8; 2] {
    let [_, _, low, high] = (value as f32).to_le_bytes();
    [low, high]
}

fn pattern(rank: u32, bytes: u64) -> Vec<u8> {
    (0..bytes as usize / 2).flat_map(|index| bf16(value_at(rank, index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_differs_by_rank_and_sums_are_exact() {
        assert_ne!(pattern(0, 64), pattern(1, 64));
        for i in 0..10_000 {
            let sum = value_at(0, i) + value_at(1, i);
            assert_eq!(half::bf16::from_le_bytes(bf16(sum)).to_f32(), sum as f32);
        }
    }

    #[test]
    fn places_are_apart_and_fit() {
        for half in [256, 4096, 5120, 64 << 10, 8 << 20] {
            let all: Vec<_> = places(half).collect();
            assert!(all.windows(2).all(|two| two[1] - two[0] >= 2 * half), "{half}");
            assert!(all.iter().all(|place| place + 2 * half <= SLOT_BYTES), "{half}");
        }
        assert_eq!(places(256).count(), 8);
    }

    #[test]
    fn slots_hold_every_shape() {
        for power in 5..=23 {
            for shape in Shape::for_bytes(1 << power) {
                assert!(shape.slot_bytes(1 << power) <= SLOT_BYTES / 2, "{shape} 2^{power}");
                assert!(shape.blocks <= MAX_BLOCKS, "{shape}");
            }
        }
    }
}

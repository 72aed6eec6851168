//! The collectives of a communicator.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use mscclrs_core::{Communicator, Registration, SymmetricBuffer, Turn};
use mscclrs_device::{DataType, Guard, ReduceOp};
use mscclrs_gpu::{Buffer, Stream};

use crate::agreement::{Agreed, agree, same_tuning};
use crate::context::Context;
use crate::kernels::{Kernels, Ready};
use crate::registry::Registry;
use crate::{Error, Result, Tuning, all_gather, all_reduce};

/// An address in device memory, as a caller of a collective names it.
pub type Pointer = u64;

/// What launches need, and graphs keep alive.
pub(crate) struct Inner {
    pub(crate) communicator: Communicator,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) agreed: Agreed,
    pub(crate) tuning: Tuning,
    pub(crate) context: Arc<Context>,
}

impl Inner {
    /// What ends the waits of a launch of this kernel.
    pub(crate) fn guard(&self, kernel: &Ready) -> Guard {
        self.communicator.guard(kernel.tag)
    }
}

/// The collectives of a communicator.
///
/// Calls enqueue work on a stream and return; they take no lock that others hold, allocate nothing and
/// send no message. All ranks make the same calls in the same order, with the same counts, types and
/// operations. Calls of one communicator run in the order in which they are made, on whatever streams.
/// One thread at a time uses it; a second gets [`Error::Busy`].
pub struct Collectives {
    inner: Arc<Inner>,
    registry: Mutex<Registry>,
}

impl Collectives {
    /// Prepares the algorithms: scratch, mappings, kernels. Collective; blocks until all ranks are
    /// ready.
    pub fn new(communicator: &Communicator) -> Result<Collectives> {
        Self::build(communicator, None)
    }

    /// As [`Collectives::new`], with a table of one's own, the same on every rank.
    pub fn with_tuning(communicator: &Communicator, tuning: Tuning) -> Result<Collectives> {
        tuning.check()?;
        Self::build(communicator, Some(tuning))
    }

    fn build(communicator: &Communicator, tuning: Option<Tuning>) -> Result<Collectives> {
        let ranks = communicator.world_size();
        let kernels = Kernels::load(communicator.device(), ranks)?;
        let agreed = agree(communicator, kernels.resident)?;
        let tuning = tuning.unwrap_or_else(|| Tuning::built_in(ranks, agreed));
        same_tuning(communicator, &tuning)?;
        let context = Arc::new(Context::new(communicator, kernels)?);
        let inner = Inner {
            communicator: communicator.clone(),
            rank: communicator.rank(),
            ranks: communicator.world_size(),
            agreed,
            tuning,
            context,
        };
        Ok(Collectives { inner: Arc::new(inner), registry: Mutex::default() })
    }

    /// The communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.inner.communicator
    }

    /// Allocates memory of the same size on every rank, registered for zero copy. Collective.
    pub fn alloc(&self, bytes: u64) -> Result<SymmetricBuffer> {
        // Entered first: a rank that found it busy afterwards would lack what the others have.
        let mut registry = self.enter()?;
        let buffer = self.inner.communicator.alloc(bytes)?;
        registry.add(buffer.registration().clone());
        Ok(buffer)
    }

    /// Registers memory for zero copy; works with any memory, and is of no effect where some rank
    /// cannot share its own. Collective: every rank, same order, same size. A call uses it where its
    /// buffers lie in registrations, at the same offsets on every rank.
    pub fn register(&self, buffer: &Buffer) -> Result<Registration> {
        let mut registry = self.enter()?;
        let registration = self.inner.communicator.register(buffer)?;
        registry.add(registration.clone());
        Ok(registration)
    }

    /// Takes a registration back. Collective; graphs that captured calls on it keep it alive.
    pub fn deregister(&self, registration: &Registration) -> Result<()> {
        self.enter()?.remove(registration.id());
        Ok(())
    }

    /// Reduces `count` elements over all ranks; every rank gets the result. `output` may be `input`;
    /// otherwise the input stays as it is. Any count, 0 too. Enqueues on `stream` and returns.
    pub fn all_reduce(
        &self,
        input: &Buffer,
        output: &Buffer,
        count: u64,
        data_type: DataType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        check_length("input", input, count, data_type)?;
        check_length("output", output, count, data_type)?;
        // SAFETY: both buffers are long enough; freed memory waits for the streams, and a graph keeps
        // what it was captured with.
        unsafe {
            let addresses = [input.address(), output.address()];
            self.reduce(addresses, count, data_type, op, stream, Some([input, output]))
        }
    }

    /// Gathers `count` elements of every rank, by rank, into `world_size * count` elements of every
    /// rank. `input` may be this rank's part of `output`. Enqueues on `stream` and returns.
    pub fn all_gather(
        &self,
        input: &Buffer,
        output: &Buffer,
        count: u64,
        data_type: DataType,
        stream: &Stream,
    ) -> Result<()> {
        check_length("input", input, count, data_type)?;
        let total = count.saturating_mul(self.inner.ranks as u64);
        check_length("output", output, total, data_type)?;
        // SAFETY: as in `all_reduce`.
        unsafe {
            let addresses = [input.address(), output.address()];
            self.gather(addresses, count, data_type, stream, Some([input, output]))
        }
    }

    /// As [`Collectives::all_reduce`], by address.
    ///
    /// # Safety
    /// `count` elements at both addresses are mapped on the device, and stay so until the stream has
    /// passed the call.
    pub unsafe fn all_reduce_raw(
        &self,
        input: Pointer,
        output: Pointer,
        count: u64,
        data_type: DataType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.reduce([input, output], count, data_type, op, stream, None) }
    }

    /// As [`Collectives::all_gather`], by address.
    ///
    /// # Safety
    /// As for [`Collectives::all_reduce_raw`], with `world_size * count` elements of output.
    pub unsafe fn all_gather_raw(
        &self,
        input: Pointer,
        output: Pointer,
        count: u64,
        data_type: DataType,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.gather([input, output], count, data_type, stream, None) }
    }

    /// The name of the algorithm that a call with these arguments uses.
    pub fn all_reduce_algorithm(
        &self,
        input: Pointer,
        output: Pointer,
        count: u64,
        data_type: DataType,
        op: ReduceOp,
    ) -> &'static str {
        if self.inner.ranks == 1 {
            return "copy";
        }
        let bytes = count.saturating_mul(data_type.size() as u64);
        let call = all_reduce::Call { input, output, bytes, data_type, op };
        match self.enter() {
            Ok(registry) => all_reduce::select(&self.inner, &registry, call).algorithm.name(),
            Err(_) => "busy",
        }
    }

    /// The name of the algorithm that a call with these arguments uses.
    pub fn all_gather_algorithm(
        &self,
        input: Pointer,
        output: Pointer,
        count: u64,
        data_type: DataType,
    ) -> &'static str {
        if self.inner.ranks == 1 {
            return "copy";
        }
        let bytes = count.saturating_mul(data_type.size() as u64);
        match self.enter() {
            Ok(registry) => {
                let call = all_gather::Call { input, output, bytes };
                all_gather::select(&self.inner, &registry, call).algorithm.name()
            }
            Err(_) => "busy",
        }
    }

    /// # Safety
    /// As for [`Collectives::all_reduce_raw`]. A graph keeps what is `held`.
    unsafe fn reduce(
        &self,
        [input, output]: [Pointer; 2],
        count: u64,
        data_type: DataType,
        op: ReduceOp,
        stream: &Stream,
        held: Option<[&Buffer; 2]>,
    ) -> Result<()> {
        let registry = self.enter()?;
        if count == 0 {
            return Ok(());
        }
        let bytes = bytes_of(count, data_type)?;
        check_alignment(input, output, data_type)?;
        let _turn = self.begin(stream, held)?;
        if self.inner.ranks == 1 {
            return self.copy(output, input, bytes, stream);
        }
        let call = all_reduce::Call { input, output, bytes, data_type, op };
        all_reduce::launch(&self.inner, &registry, call, stream)
    }

    /// # Safety
    /// As for [`Collectives::all_gather_raw`]. A graph keeps what is `held`.
    unsafe fn gather(
        &self,
        [input, output]: [Pointer; 2],
        count: u64,
        data_type: DataType,
        stream: &Stream,
        held: Option<[&Buffer; 2]>,
    ) -> Result<()> {
        let registry = self.enter()?;
        if count == 0 {
            return Ok(());
        }
        let bytes = bytes_of(count, data_type)?;
        check_alignment(input, output, data_type)?;
        let _turn = self.begin(stream, held)?;
        if self.inner.ranks == 1 {
            return self.copy(output, input, bytes, stream);
        }
        all_gather::launch(
            &self.inner,
            &registry,
            all_gather::Call { input, output, bytes },
            stream,
        )
    }

    /// One thread at a time: a second one gets an error instead of waiting.
    fn enter(&self) -> Result<MutexGuard<'_, Registry>> {
        match self.registry.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Error::Busy),
        }
    }

    /// What every call does before it enqueues. The turn is held until it has: a thread that uses the
    /// communicator by other collectives could come between the order and the launch.
    fn begin(&self, stream: &Stream, held: Option<[&Buffer; 2]>) -> Result<Turn<'_>> {
        let turn = self.inner.communicator.enter()?;
        turn.order(stream)?;
        if stream.is_capturing()? {
            stream.retain(self.inner.clone())?;
            if let Some(buffers) = held {
                stream.retain(Arc::new(buffers.map(Buffer::clone)))?;
            }
        }
        Ok(turn)
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: &Stream) -> Result<()> {
        if to != from {
            // SAFETY: the promise of the public call.
            unsafe { stream.copy(to, from, bytes)? };
        }
        Ok(())
    }
}

fn bytes_of(count: u64, data_type: DataType) -> Result<u64> {
    count
        .checked_mul(data_type.size() as u64)
        .ok_or(Error::TooLong { bytes: u64::MAX, most: all_gather::MOST })
}

fn check_length(
    what: &'static str,
    buffer: &Buffer,
    count: u64,
    data_type: DataType,
) -> Result<()> {
    let need = count.saturating_mul(data_type.size() as u64);
    let have = buffer.bytes();
    if need <= have {
        return Ok(());
    }
    Err(Error::Short { what, have, need, count, data_type })
}

fn check_alignment(input: u64, output: u64, data_type: DataType) -> Result<()> {
    let size = data_type.size();
    for (what, address) in [("input", input), ("output", output)] {
        if address & (size as u64 - 1) != 0 {
            return Err(Error::Alignment { what, address, size, data_type });
        }
    }
    Ok(())
}

impl Collectives {
    /// Sets the epochs of all scratch, as if that many calls had been made: for tests of the lap of
    /// 32-bit flags. Collective; no call is in flight.
    #[doc(hidden)]
    pub fn set_epochs(&self, epoch: u64) -> Result<()> {
        let communicator = &self.inner.communicator;
        let stream = communicator.device().create_stream()?;
        let barrier = || communicator.bootstrap().barrier();
        barrier()?;
        let words: Vec<u8> = epoch.to_le_bytes().repeat(mscclrs_device::MAX_BLOCKS as usize);
        for region in self.inner.context.regions() {
            // SAFETY: the epoch words lie in the region, which the context holds.
            let epochs =
                unsafe { communicator.device().adopt(region.epochs(), words.len() as u64)? };
            epochs.write(&stream, 0, &words)?;
        }
        stream.synchronize()?;
        drop(stream);
        barrier()?;
        Ok(())
    }
}

//! The collectives of a communicator.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use mscclrs_core::{Communicator, Registration, SymmetricBuffer};
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
        Self::build(communicator, Some(tuning))
    }

    fn build(communicator: &Communicator, tuning: Option<Tuning>) -> Result<Collectives> {
        let ranks = communicator.world_size();
        let _span = mscclrs_log::during!("collectives", rank = communicator.rank());
        let own_table = tuning.is_some();
        // What fails on one rank alone is told to the others, who would wait for it.
        let checked = tuning.as_ref().map_or(Ok(()), Tuning::check);
        let kernels = checked.and_then(|()| Kernels::load(communicator.device(), ranks));
        let (kernels, agreed) = agree(communicator, kernels)?;
        let tuning = tuning.unwrap_or_else(|| Tuning::built_in(ranks, agreed));
        same_tuning(communicator, &tuning)?;
        tuning.tell(own_table, agreed);
        let context = Arc::new(Context::new(communicator, kernels)?);
        let inner = Inner {
            communicator: communicator.clone(),
            rank: communicator.rank(),
            ranks: communicator.world_size(),
            agreed,
            tuning,
            context,
        };
        // Nobody launches while another still prepares: what prepares may wait for the device.
        communicator.bootstrap().barrier()?;
        Ok(Collectives { inner: Arc::new(inner), registry: Mutex::default() })
    }

    /// The communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.inner.communicator
    }

    /// Allocates memory of the same size on every rank, registered for zero copy. Collective: every
    /// rank gives the same size. Blocks until all ranks have it.
    ///
    /// The memory is the caller's: it is given back when the last clone is dropped, with no call of
    /// [`deregister`](Self::deregister). Every rank drops it at the same place among its calls; see
    /// [`SymmetricBuffer`] for when it is freed.
    pub fn alloc(&self, bytes: u64) -> Result<SymmetricBuffer> {
        let mut registry = self.enter()?;
        let buffer = self.inner.communicator.alloc(bytes)?;
        registry.know(buffer.registration());
        Ok(buffer)
    }

    /// Registers memory for zero copy; works with any memory, and is of no effect where some rank
    /// cannot share its own. Collective: every rank, same order, same size. A call uses it where its
    /// buffers lie in registrations, at the same offsets on every rank.
    ///
    /// The registration, and with it the memory, is kept until it is deregistered or these
    /// collectives are dropped, whether or not the caller keeps the result.
    pub fn register(&self, buffer: &Buffer) -> Result<Registration> {
        let mut registry = self.enter()?;
        let registration = self.inner.communicator.register(buffer)?;
        registry.keep(registration.clone());
        Ok(registration)
    }

    /// Takes a registration back. Collective: every rank, at the same place among its calls. Its memory
    /// can be used as before, without zero copy; graphs that captured calls on it keep it alive. For
    /// memory of [`alloc`](Self::alloc) there is no need to.
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
        // SAFETY: both buffers are long enough; their owner keeps them until the stream has passed.
        unsafe {
            self.all_reduce_raw(input.address(), output.address(), count, data_type, op, stream)?;
        }
        keep(stream, input, output)
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
        // SAFETY: both buffers are long enough; their owner keeps them until the stream has passed.
        unsafe {
            self.all_gather_raw(input.address(), output.address(), count, data_type, stream)?;
        }
        keep(stream, input, output)
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
        let registry = self.enter()?;
        if count == 0 {
            return Ok(());
        }
        let bytes = bytes_of(count, data_type)?;
        check_alignment(input, output, data_type)?;
        let call = all_reduce::Call { input, output, bytes, data_type, op };
        self.in_turn(stream, || match self.inner.ranks {
            1 => copy(output, input, bytes, stream),
            _ => all_reduce::launch(&self.inner, &registry, call, stream),
        })
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
        let registry = self.enter()?;
        if count == 0 {
            return Ok(());
        }
        let bytes = bytes_of(count, data_type)?;
        check_alignment(input, output, data_type)?;
        let call = all_gather::Call { input, output, bytes };
        self.in_turn(stream, || match self.inner.ranks {
            1 => copy(output, input, bytes, stream),
            _ => all_gather::launch(&self.inner, &registry, call, stream),
        })
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

    /// One thread at a time: a second one gets an error instead of waiting.
    fn enter(&self) -> Result<MutexGuard<'_, Registry>> {
        match self.registry.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Error::Busy),
        }
    }

    /// Enqueues in the communicator's order, as the only one who does, and keeps what is captured alive.
    /// A call that fails from here on ends the communicator: the other ranks made it and would wait for
    /// ever.
    fn in_turn(&self, stream: &Stream, enqueue: impl FnOnce() -> Result<()>) -> Result<()> {
        let communicator = &self.inner.communicator;
        let turn = communicator.enter()?;
        turn.order(stream)?;
        let enqueued = stream
            .is_capturing()
            .and_then(|capturing| match capturing {
                true => stream.retain(self.inner.clone()),
                false => Ok(()),
            })
            .map_err(Error::from)
            .and_then(|()| enqueue());
        if let Err(error) = &enqueued {
            communicator.abort(&error.to_string());
        }
        enqueued
    }
}

/// A captured call keeps its buffers as long as the graph lives.
fn keep(stream: &Stream, input: &Buffer, output: &Buffer) -> Result<()> {
    if stream.is_capturing()? {
        stream.retain(Arc::new((input.clone(), output.clone())))?;
    }
    Ok(())
}

fn copy(to: u64, from: u64, bytes: u64, stream: &Stream) -> Result<()> {
    if to != from {
        // SAFETY: the promise of the public call.
        unsafe { stream.copy(to, from, bytes)? };
    }
    Ok(())
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

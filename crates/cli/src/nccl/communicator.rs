//! NCCL's communicator over the same ranks as ours.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mscclrs_core::Communicator;
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::{Device, Stream};

use super::context::Context;
use super::library::Library;
use super::sys::{self, Comm, Config, UniqueId};
use super::{Error, sys::Window};

/// NCCL's communicator of one rank.
pub(crate) struct NcclCommunicator {
    comm: Comm,
    library: &'static Library,
    context: Context,
    ranks: Communicator,
    /// After an error a peer may never answer, so that it is aborted and not destroyed.
    broken: AtomicBool,
}

// SAFETY: NCCL allows a communicator to be used by any thread, one at a time; ours is used by its
// rank's thread, and dropped when nobody else has it.
unsafe impl Send for NcclCommunicator {}
// SAFETY: as above.
unsafe impl Sync for NcclCommunicator {}

impl NcclCommunicator {
    /// Opens NCCL and joins the ranks. Every rank calls it, each on its own thread; blocks until all
    /// have. If a rank cannot, all of them get an error and none waits in NCCL.
    pub(crate) fn new(communicator: &Communicator) -> Result<Arc<NcclCommunicator>, Error> {
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        let device = communicator.device();
        let opened = Library::open().and_then(|library| Ok((library, Context::of(device)?)));
        let (library, context) = all_or_none(communicator, opened)?;
        let _current = context.enter()?;

        let mut id = UniqueId([0; 128]);
        let made = if rank == 0 {
            // SAFETY: it writes one id.
            let status = unsafe { (library.calls.get_unique_id)(&mut id) };
            library.check("ncclGetUniqueId", status, std::ptr::null_mut())
        } else {
            Ok(())
        };
        all_or_none(communicator, made)?;
        let ids = communicator.bootstrap().all_gather(if rank == 0 { &id.0 } else { &[] })?;
        id.0 = ids[0].as_slice().try_into().map_err(|_| Error::Invalid {
            what: "NCCL's unique id from rank 0",
            value: format!("{} bytes", ids[0].len()),
            allowed: "it has 128".into(),
        })?;

        let mut comm = std::ptr::null_mut();
        let mut config = Config::new();
        // SAFETY: the configuration is 2.27's and says so; the device's context is current; every
        // rank makes this call.
        let status = unsafe {
            (library.calls.comm_init_rank_config)(
                &mut comm,
                world_size as c_int,
                id,
                rank as c_int,
                &mut config,
            )
        };
        let made = library.check("ncclCommInitRankConfig", status, std::ptr::null_mut());
        let joined = made.map(|()| {
            Arc::new(NcclCommunicator {
                comm,
                library,
                context,
                ranks: communicator.clone(),
                broken: AtomicBool::new(false),
            })
        });
        all_or_none(communicator, joined)
    }

    /// What was opened.
    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    /// This rank.
    pub(crate) fn rank(&self) -> u32 {
        self.ranks.rank()
    }

    /// Number of ranks.
    pub(crate) fn world_size(&self) -> u32 {
        self.ranks.world_size()
    }

    pub(super) fn device(&self) -> &Device {
        self.ranks.device()
    }

    /// [`all_or_none`] among its ranks.
    pub(super) fn agree<T>(&self, mine: Result<T, Error>) -> Result<T, Error> {
        all_or_none(&self.ranks, mine)
    }

    fn check(&self, call: &'static str, status: sys::Status) -> Result<(), Error> {
        let checked = self.library.check(call, status, self.comm);
        if checked.is_err() {
            self.broken.store(true, Ordering::Relaxed);
        }
        checked
    }

    /// Enqueues an allreduce; does not block.
    ///
    /// # Safety
    /// `count` elements at both addresses are mapped on the device until the stream has passed.
    pub(super) unsafe fn all_reduce(
        &self,
        input: u64,
        output: u64,
        count: u64,
        data_type: DataType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<(), Error> {
        let _current = self.context.enter()?;
        // SAFETY: the caller's promise; the communicator and the stream live.
        let status = unsafe {
            (self.library.calls.all_reduce)(
                input as *const c_void,
                output as *mut c_void,
                count as usize,
                sys::data_type(data_type),
                sys::reduce_op(op),
                self.comm,
                stream.raw() as *mut c_void,
            )
        };
        self.check("ncclAllReduce", status)
    }

    /// Enqueues an allgather of `count` elements of each rank; does not block.
    ///
    /// # Safety
    /// `count` elements of the input and `world_size * count` of the output are mapped on the device
    /// until the stream has passed.
    pub(super) unsafe fn all_gather(
        &self,
        input: u64,
        output: u64,
        count: u64,
        data_type: DataType,
        stream: &Stream,
    ) -> Result<(), Error> {
        let _current = self.context.enter()?;
        // SAFETY: the caller's promise; the communicator and the stream live.
        let status = unsafe {
            (self.library.calls.all_gather)(
                input as *const c_void,
                output as *mut c_void,
                count as usize,
                sys::data_type(data_type),
                self.comm,
                stream.raw() as *mut c_void,
            )
        };
        self.check("ncclAllGather", status)
    }

    /// Allocates memory that windows can be made of. May wait for the device.
    pub(super) fn alloc(&self, bytes: u64) -> Result<u64, Error> {
        let _current = self.context.enter()?;
        let mut at = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        let status = unsafe { (self.library.calls.mem_alloc)(&mut at, bytes as usize) };
        self.check("ncclMemAlloc", status)?;
        Ok(at as u64)
    }

    /// Frees what `alloc` gave.
    ///
    /// # Safety
    /// Nothing uses the memory any more.
    pub(super) unsafe fn free(&self, address: u64) -> Result<(), Error> {
        let _current = self.context.enter()?;
        // SAFETY: the caller's promise.
        let status = unsafe { (self.library.calls.mem_free)(address as *mut c_void) };
        self.check("ncclMemFree", status)
    }

    /// Makes a symmetric window of a range that `alloc` gave. Every rank calls it, with ranges of
    /// one size.
    pub(super) fn register(&self, address: u64, bytes: u64) -> Result<Window, Error> {
        let _current = self.context.enter()?;
        let mut window = std::ptr::null_mut();
        // SAFETY: the range is an allocation of NCCL's; it writes one handle.
        let status = unsafe {
            (self.library.calls.window_register)(
                self.comm,
                address as *mut c_void,
                bytes as usize,
                &mut window,
                sys::WINDOW_SYMMETRIC,
            )
        };
        self.check("ncclCommWindowRegister", status)?;
        if window.is_null() {
            return Err(Error::Call {
                call: "ncclCommWindowRegister",
                text: "NCCL has no symmetric windows here".into(),
                detail:
                    "; NCCL_WIN_ENABLE=0, NCCL_CUMEM_ENABLE=0 or several ranks on one GPU make \
                         it so"
                        .into(),
            });
        }
        Ok(window)
    }

    /// Ends a window.
    ///
    /// # Safety
    /// `window` is one of this communicator, and nothing uses it any more.
    pub(super) unsafe fn deregister(&self, window: Window) -> Result<(), Error> {
        let _current = self.context.enter()?;
        // SAFETY: the caller's promise.
        let status = unsafe { (self.library.calls.window_deregister)(self.comm, window) };
        self.check("ncclCommWindowDeregister", status)
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        let calls = &self.library.calls;
        // SAFETY: this was the last user of the communicator. An error leaves nothing to be done.
        let _ = unsafe {
            match self.broken.load(Ordering::Relaxed) {
                true => (calls.comm_abort)(self.comm),
                false => (calls.comm_destroy)(self.comm),
            }
        };
    }
}

/// What this rank has, if every rank has it; else this rank's error, or one that names the first rank
/// that has one. Every rank calls it.
fn all_or_none<T>(communicator: &Communicator, mine: Result<T, Error>) -> Result<T, Error> {
    let why = mine.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let all = communicator.bootstrap().all_gather(why.as_bytes())?;
    let mine = mine?;
    match all.iter().position(|why| !why.is_empty()) {
        None => Ok(mine),
        Some(rank) => Err(Error::Invalid {
            what: "NCCL",
            value: format!("rank {rank}: {}", String::from_utf8_lossy(&all[rank])),
            allowed: "it has to work on every rank".into(),
        }),
    }
}

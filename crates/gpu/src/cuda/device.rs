//! GPUs.
//!
//! Invariant: there is one [`Gpu`] a device and process; it is made when the device is first opened
//! and lives as long as the process, so that memory, streams and graphs that outlive every handle of
//! the device can still be released on it.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::CUdevice;
use mscclrs_device::Kernel;

use crate::backend::{
    BackendDevice, BackendEvent, BackendFunction, BackendMapping, BackendMemory, BackendStream,
};
use crate::cuda::attributes::{
    Abilities, abilities_of, can_access, device_of, limits_of, name_of, uuid_of,
};
use crate::cuda::context::Context;
use crate::cuda::event::{Backoff, CudaEvent};
use crate::cuda::library::{Api, api, code};
use crate::cuda::memory::PinnedMemory;
use crate::cuda::module::Modules;
use crate::cuda::release;
use crate::cuda::stream::CudaStream;
use crate::cuda::streams::Streams;
use crate::cuda::vmm::{self, HandleTypes};
use crate::cuda::{handle, memory};
use crate::{BackendKind, Error, ExportedHandle, HandleKind, Limits, MemoryKind, Result};

/// A panic elsewhere leaves none of our tables half changed.
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One device, for the whole process.
pub(super) struct Gpu {
    pub(super) api: &'static Api,
    pub(super) ordinal: u32,
    pub(super) device: CUdevice,
    pub(super) context: Context,
    pub(super) uuid: [u8; 16],
    pub(super) limits: Limits,
    pub(super) abilities: Abilities,
    pub(super) modules: Modules,
    name: String,
    pub(super) streams: Mutex<Streams>,
    /// Staging buffers that no stream uses.
    staging: Mutex<Vec<PinnedMemory>>,
    service: Mutex<Option<Arc<CudaStream>>>,
    shareable: OnceLock<HandleTypes>,
}

/// Devices of this process; an error says why there are none.
pub(super) fn count() -> Result<u32> {
    let api = api()?;
    let mut count: c_int = 0;
    // SAFETY: writes a number.
    unsafe { api.cuDeviceGetCount(&raw mut count) }?;
    match u32::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Error::Unsupported {
            what: "CUDA",
            why: "the driver shows no GPU: check `nvidia-smi` and CUDA_VISIBLE_DEVICES".into(),
        }),
    }
}

/// Devices that were opened.
pub(super) static OPENED: Mutex<Vec<&'static Gpu>> = Mutex::new(Vec::new());

/// The device, opened when it is first asked for.
pub(super) fn gpu(ordinal: u32) -> Result<&'static Gpu> {
    // Not the lock of the list: opening takes long.
    static OPENING: Mutex<()> = Mutex::new(());
    let _opening = lock(&OPENING);
    if let Some(gpu) = lock(&OPENED).iter().find(|gpu| gpu.ordinal == ordinal) {
        return Ok(gpu);
    }
    let none = |why| Error::NoDevice { backend: "CUDA", ordinal, why };
    let count = count().map_err(|error| none(error.to_string()))?;
    if ordinal >= count {
        return Err(none(format!(
            "this process sees {count}, numbered from 0; check CUDA_VISIBLE_DEVICES"
        )));
    }
    let gpu: &'static Gpu = Box::leak(Box::new(Gpu::open(ordinal)?));
    lock(&OPENED).push(gpu);
    Ok(gpu)
}

/// The device with that uuid, if this process sees it.
pub(super) fn gpu_of(uuid: &[u8; 16]) -> Result<Option<&'static Gpu>> {
    for ordinal in 0..count()? {
        if uuid_of(api()?, device_of(api()?, ordinal)?)? == *uuid {
            return gpu(ordinal).map(Some);
        }
    }
    Ok(None)
}

impl Gpu {
    fn open(ordinal: u32) -> Result<Gpu> {
        let api = api()?;
        let device = device_of(api, ordinal)?;
        Ok(Gpu {
            api,
            ordinal,
            device,
            context: Context::retain(api, device)?,
            uuid: uuid_of(api, device)?,
            limits: limits_of(api, device)?,
            abilities: abilities_of(api, device),
            modules: Modules::default(),
            name: name_of(api, device)?,
            streams: Mutex::default(),
            staging: Mutex::default(),
            service: Mutex::default(),
            shareable: OnceLock::new(),
        })
    }

    /// Free and total bytes, in words.
    pub(super) fn memory_in_words(&self) -> String {
        match self.memory() {
            Ok((free, total)) => {
                format!("cuda:{} has {free} of {total} bytes free", self.ordinal)
            }
            Err(_) => format!("on cuda:{}", self.ordinal),
        }
    }

    fn memory(&self) -> Result<(u64, u64)> {
        let _entered = self.context.enter_relaxed()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers; the device's context is current.
        unsafe { self.api.cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
        Ok((free as u64, total as u64))
    }

    /// The stream of this back end's own work: zeroing, reading layout words.
    pub(super) fn service(&'static self) -> Result<Arc<CudaStream>> {
        let mut service = lock(&self.service);
        if let Some(stream) = &*service {
            return Ok(stream.clone());
        }
        let stream = Arc::new(CudaStream::create(self)?);
        *service = Some(stream.clone());
        Ok(stream)
    }

    /// The forms in which shareable memory of this device is really exported here.
    pub(super) fn shareable(&'static self) -> HandleTypes {
        *self.shareable.get_or_init(|| vmm::probe(self))
    }

    /// Lets kernels of this device reach plain memory of another one in this process.
    pub(super) fn reach(&self, peer: &Gpu) -> Result<()> {
        if peer.ordinal == self.ordinal {
            return Ok(());
        }
        let _entered = self.context.enter_relaxed()?;
        // SAFETY: both contexts are retained.
        match unsafe { self.api.cuCtxEnablePeerAccess(peer.context.raw, 0) } {
            Err(failure) if failure.code == code::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    /// A staging buffer that no stream uses; pins memory only if there is none.
    pub(super) fn take_staging(&'static self, bytes: u64) -> Result<PinnedMemory> {
        let free = lock(&self.staging).pop();
        free.map_or_else(|| PinnedMemory::alloc(self, bytes), Ok)
    }

    /// Takes back a staging buffer that no work uses any more.
    pub(super) fn give_staging(&self, staging: PinnedMemory) {
        lock(&self.staging).push(staging);
    }
}

/// The device as the front types see it.
pub(super) struct CudaDevice(pub(super) &'static Gpu);

impl BackendDevice for CudaDevice {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn uuid(&self) -> [u8; 16] {
        self.0.uuid
    }

    fn limits(&self) -> &Limits {
        &self.0.limits
    }

    fn memory(&self) -> Result<(u64, u64)> {
        self.0.memory()
    }

    fn can_reach(&self, uuid: &[u8; 16]) -> bool {
        if *uuid == self.0.uuid {
            return true;
        }
        match gpu_of(uuid) {
            Ok(Some(peer)) => can_access(self.0.api, self.0.device, peer.device).unwrap_or(false),
            // A GPU that CUDA_VISIBLE_DEVICES hides cannot be asked about, but can be mapped; if it
            // cannot, the import says so.
            Ok(None) => true,
            Err(_) => false,
        }
    }

    fn handle_kinds(&self, memory: MemoryKind) -> Vec<HandleKind> {
        let legacy =
            if self.0.abilities.legacy_ipc { vec![HandleKind::RuntimeIpc] } else { vec![] };
        match memory {
            MemoryKind::Host => Vec::new(),
            MemoryKind::Plain => legacy,
            MemoryKind::Shareable => match self.0.shareable().kinds() {
                kinds if kinds.is_empty() => legacy,
                kinds => kinds,
            },
        }
    }

    fn require_handle(&self, kind: HandleKind) -> Result<()> {
        let abilities = &self.0.abilities;
        let offered = match kind {
            HandleKind::Fabric => abilities.virtual_memory && abilities.fabric_handles,
            HandleKind::PosixFd => abilities.virtual_memory && abilities.posix_handles,
            HandleKind::RuntimeIpc => abilities.legacy_ipc,
        };
        if !offered {
            return Err(Error::Unsupported {
                what: "exporting memory in this form",
                why: "the driver does not offer it for this GPU".into(),
            });
        }
        match kind {
            HandleKind::Fabric => vmm::try_fabric(self.0),
            HandleKind::PosixFd | HandleKind::RuntimeIpc => Ok(()),
        }
    }

    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Box<dyn BackendMemory>> {
        release::now(self.0);
        memory::alloc(self.0, bytes, kind)
    }

    fn adopt(&self, address: u64, bytes: u64) -> Result<Box<dyn BackendMemory>> {
        memory::adopt(self.0, address, bytes)
    }

    fn import(
        &self,
        handle: &ExportedHandle,
        fd: Option<OwnedFd>,
    ) -> Result<Box<dyn BackendMapping>> {
        release::now(self.0);
        handle::import(self.0, handle, fd)
    }

    fn create_stream(&self) -> Result<Arc<dyn BackendStream>> {
        Ok(Arc::new(CudaStream::create(self.0)?))
    }

    fn wrap_stream(&self, raw: u64) -> Result<Arc<dyn BackendStream>> {
        Ok(Arc::new(CudaStream::wrap(self.0, raw)?))
    }

    fn create_event(&self, timing: bool) -> Result<Arc<dyn BackendEvent>> {
        Ok(Arc::new(CudaEvent::new(self.0, timing)?))
    }

    fn function(&self, kernel: &'static Kernel) -> Result<Arc<dyn BackendFunction>> {
        Ok(self.0.modules.function(self.0, kernel)?)
    }

    fn reclaim(&self) {
        release::now(self.0);
    }

    /// Waits for the streams made here. The context as a whole cannot be waited for while any of its
    /// streams is captured, not even from another thread.
    fn synchronize(&self) -> Result<()> {
        let mut points = self.0.busy_points();
        let backoff = Backoff::new();
        loop {
            let mut waiting = Vec::new();
            for event in points {
                if !event.is_done()? {
                    waiting.push(event);
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
            points = waiting;
            backoff.pause(None::<Duration>);
        }
    }
}

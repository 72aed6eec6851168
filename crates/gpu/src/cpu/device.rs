//! The CPU device itself.

use std::any::Any;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use mscclrs_device::Kernel;
use mscclrs_sim::{Listeners, OnTimeline, World};

use super::config::SHARED_BYTES;
use super::event::CpuEvent;
use super::memory::{self, Account};
use super::stream::CpuStream;
use crate::backend::{
    BackendDevice, BackendEvent, BackendFunction, BackendMapping, BackendMemory, BackendStream,
};
use crate::report;
use crate::{
    BackendKind, CpuConfig, Error, ExportedHandle, HandleKind, Limits, MemoryKind, Result,
};

/// How the uuid of every CPU device begins.
const UUID_PREFIX: [u8; 4] = *b"mCPU";

static OPENED: Mutex<BTreeMap<u32, Weak<CpuDevice>>> = Mutex::new(BTreeMap::new());

pub(crate) struct CpuDevice {
    ordinal: u32,
    uuid: [u8; 16],
    limits: Limits,
    engine: Arc<mscclrs_sim::Device>,
    account: Arc<Account>,
    streams: Mutex<BTreeMap<u64, Weak<CpuStream>>>,
}

pub(crate) fn open(ordinal: u32) -> Result<Arc<dyn BackendDevice>> {
    // Held while the device is made, so that two threads get the same one.
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = opened.get(&ordinal).and_then(Weak::upgrade)
        && device.engine.is_of_this_process()
    {
        return Ok(device);
    }
    let device = Arc::new(CpuDevice::new(ordinal, &CpuConfig::from_env()?)?);
    opened.insert(ordinal, Arc::downgrade(&device));
    Ok(device)
}

impl CpuDevice {
    fn new(ordinal: u32, config: &CpuConfig) -> Result<CpuDevice> {
        let of_engine = mscclrs_sim::DeviceConfig {
            ordinal,
            multiprocessors: config.multiprocessors,
            threads: config.threads,
            shared_bytes: SHARED_BYTES,
            deadlock: config.deadlock,
        };
        let engine = match &config.simulation {
            None => mscclrs_sim::Device::start(of_engine),
            Some(mode) => {
                let report = config.report.as_deref().map(|folder| report::keep(folder, mode));
                let (progress, decisions) = report.unzip();
                let progress = progress.or_else(|| Some(report::on_standard_error()));
                let timeline = config.trace.as_deref().map(on_timeline);
                let listeners = Listeners { timeline, decisions, progress };
                World::of_process(mode.clone(), listeners).map(|world| world.device(of_engine))
            }
        };
        let engine = engine.map_err(|source| Error::System { call: "pthread_create", source })?;
        Ok(CpuDevice::with_engine(ordinal, config, engine))
    }

    pub(crate) fn with_engine(
        ordinal: u32,
        config: &CpuConfig,
        engine: Arc<mscclrs_sim::Device>,
    ) -> CpuDevice {
        let limits = Limits {
            sm: 0,
            multiprocessors: config.multiprocessors,
            threads_per_multiprocessor: config.threads,
            threads_per_block: config.threads,
            warp: 32,
            shared_bytes_per_block: SHARED_BYTES,
        };
        CpuDevice {
            ordinal,
            uuid: uuid(ordinal),
            limits,
            engine,
            account: Arc::new(Account::new()),
            streams: Mutex::default(),
        }
    }
}

/// Writes all accesses of kernels to a file: whole, or there is none.
fn on_timeline(path: &Path) -> OnTimeline {
    let path = path.to_owned();
    Box::new(move |text| {
        if let Err(error) = std::fs::write(&path, text) {
            // Part of it is no JSON. What is no file of its own, such as a pipe, stays.
            if std::fs::metadata(&path).is_ok_and(|found| found.is_file()) {
                let _ = std::fs::remove_file(&path);
            }
            mscclrs_log::warn!(
                ENV,
                file = %path.display(),
                %error,
                "the file of MSCCLRS_SIM_TRACE cannot be written"
            );
        }
    })
}

/// Of this process's random number and the ordinal.
fn uuid(ordinal: u32) -> [u8; 16] {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    let process = PROCESS.get_or_init(|| {
        // Seeded by the system; the process id tells a fork from its parent where it is first asked.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        hasher.finish()
    });
    let mut uuid = [0; 16];
    uuid[..4].copy_from_slice(&UUID_PREFIX);
    uuid[4..12].copy_from_slice(&process.to_le_bytes());
    uuid[12..].copy_from_slice(&ordinal.to_le_bytes());
    uuid
}

impl BackendDevice for CpuDevice {
    fn kind(&self) -> BackendKind {
        BackendKind::Cpu
    }

    fn ordinal(&self) -> u32 {
        self.ordinal
    }

    fn name(&self) -> String {
        let Limits { multiprocessors, threads_per_multiprocessor, .. } = self.limits;
        format!("CPU device ({multiprocessors} x {threads_per_multiprocessor} lanes)")
    }

    fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn memory(&self) -> Result<(u64, u64)> {
        let used = self.account.used.load(Ordering::Relaxed);
        Ok((self.account.total.saturating_sub(used), self.account.total))
    }

    fn can_reach(&self, uuid: &[u8; 16]) -> bool {
        uuid.starts_with(&UUID_PREFIX)
    }

    fn handle_kinds(&self, memory: MemoryKind) -> Vec<HandleKind> {
        match memory {
            MemoryKind::Shareable => vec![HandleKind::PosixFd],
            // As on GPUs, where plain and host memory often cannot be given away: what works here
            // must not lean on it.
            MemoryKind::Host | MemoryKind::Plain => Vec::new(),
        }
    }

    fn require_handle(&self, kind: HandleKind) -> Result<()> {
        memory::require_handle(kind)
    }

    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Box<dyn BackendMemory>> {
        memory::alloc(&self.account, self.uuid, bytes, kind)
    }

    fn adopt(&self, address: u64, bytes: u64) -> Result<Box<dyn BackendMemory>> {
        memory::adopt(address, bytes)
    }

    fn import(
        &self,
        handle: &ExportedHandle,
        fd: Option<OwnedFd>,
    ) -> Result<Box<dyn BackendMapping>> {
        if !self.can_reach(&handle.device_uuid) {
            return Err(Error::Invalid {
                what: "device of a memory handle",
                value: format!("{:02x?}", handle.device_uuid),
                allowed: "a CPU device maps memory of CPU devices only".into(),
            });
        }
        memory::import(handle, fd)
    }

    fn create_stream(&self) -> Result<Arc<dyn BackendStream>> {
        let stream = Arc::new(CpuStream::new(self.engine.create_queue()));
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|_, stream| stream.strong_count() > 0);
        streams.insert(stream.raw(), Arc::downgrade(&stream));
        Ok(stream)
    }

    fn wrap_stream(&self, raw: u64) -> Result<Arc<dyn BackendStream>> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        match streams.get(&raw).and_then(Weak::upgrade) {
            Some(stream) => Ok(stream),
            None => Err(Error::Invalid {
                what: "stream",
                value: format!("{raw:#x}"),
                allowed: "the raw value of a live stream of this device, made with create_stream"
                    .into(),
            }),
        }
    }

    fn create_event(&self, timing: bool) -> Result<Arc<dyn BackendEvent>> {
        Ok(Arc::new(CpuEvent::new(timing)))
    }

    fn function(&self, kernel: &'static Kernel) -> Result<Arc<dyn BackendFunction>> {
        Ok(Arc::new(CpuFunction { kernel, config: self.engine.config().clone() }))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(self.engine.synchronize()?)
    }

    fn waiting_report(&self) -> Option<String> {
        let report = self.engine.waiting_report()?;
        (!report.is_empty()).then(|| report.to_string())
    }
}

/// A kernel, whose code is in this program.
pub(super) struct CpuFunction {
    kernel: &'static Kernel,
    config: mscclrs_sim::DeviceConfig,
}

impl BackendFunction for CpuFunction {
    fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    fn resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let most = self.kernel.max_threads.min(self.config.threads);
        if threads == 0 || threads > most {
            return Err(Error::Invalid {
                what: "threads a block",
                value: format!("{threads} for kernel {}", self.kernel.name),
                allowed: format!("from 1 to {most}"),
            });
        }
        Ok(self.config.resident_blocks(threads, shared_bytes))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

//! Devices and the kernels loaded on them.

use std::str::FromStr;
use std::sync::Arc;

use mscclrs_device::Kernel;
use mscclrs_env as env;

use crate::backend::{BackendDevice, BackendFunction};
use crate::{Buffer, Error, Event, Limits, MemoryKind, Result, Stream, cpu, cuda};

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// The CPU device.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
}

impl BackendKind {
    /// cpu or cuda.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::Cpu => "cpu",
            BackendKind::Cuda => "cuda",
        }
    }
}

impl FromStr for BackendKind {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cpu" => Ok(BackendKind::Cpu),
            "cuda" => Ok(BackendKind::Cuda),
            _ => Err(Error::Invalid {
                what: "device",
                value: text.into(),
                allowed: "one of cpu, cuda".into(),
            }),
        }
    }
}

/// The kinds of device that work here, best first; the CPU device always does.
pub fn available_backends() -> Vec<BackendKind> {
    let mut kinds = Vec::new();
    match cuda::device_count() {
        Ok(0) => mscclrs_log::debug!(GPU, why = "there are none", "no GPUs are used"),
        Ok(_) => kinds.push(BackendKind::Cuda),
        Err(error) => mscclrs_log::debug!(GPU, why = %error, "no GPUs are used"),
    }
    kinds.push(BackendKind::Cpu);
    kinds
}

/// The kind to use where nobody named one: that of `MSCCLRS_DEVICE`, and where this is auto, empty or
/// not set, the best that works here.
pub fn default_backend() -> Result<BackendKind> {
    match env::DEVICE.choice()? {
        None | Some("auto") => {
            Ok(available_backends().first().copied().unwrap_or(BackendKind::Cpu))
        }
        Some(named) => named.parse(),
    }
}

/// Devices of a kind. For CUDA an error says why there are none; the CPU device has any number.
pub fn device_count(kind: BackendKind) -> Result<u32> {
    match kind {
        BackendKind::Cpu => Ok(u32::MAX),
        BackendKind::Cuda => cuda::device_count(),
    }
}

/// A device. Clones are the same device; opening an ordinal twice in a process gives the same one.
#[derive(Clone)]
pub struct Device {
    inner: Arc<dyn BackendDevice>,
}

impl Device {
    /// Opens a device. CUDA's primary context is used, as PyTorch does. The CPU device of an ordinal
    /// is made with the limits of `MSCCLRS_CPU_...` or [`CpuConfig`](crate::CpuConfig)'s defaults.
    pub fn open(kind: BackendKind, ordinal: u32) -> Result<Device> {
        let inner = match kind {
            BackendKind::Cpu => cpu::open(ordinal)?,
            BackendKind::Cuda => cuda::open(ordinal)?,
        };
        let device = Device { inner };
        mscclrs_log::debug!(
            GPU,
            ?device,
            name = device.name(),
            multiprocessors = device.limits().multiprocessors,
            handles = ?device.handle_kinds(MemoryKind::Shareable),
            "a device is open"
        );
        Ok(device)
    }

    pub(crate) fn of(inner: Arc<dyn BackendDevice>) -> Device {
        Device { inner }
    }

    pub(crate) fn backend(&self) -> &dyn BackendDevice {
        &*self.inner
    }

    /// Its kind.
    pub fn kind(&self) -> BackendKind {
        self.inner.kind()
    }

    /// Its number among the devices of its kind.
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal()
    }

    /// Its product name.
    pub fn name(&self) -> String {
        self.inner.name()
    }

    /// Names it among all processes of the host.
    pub fn uuid(&self) -> [u8; 16] {
        self.inner.uuid()
    }

    /// What it allows.
    pub fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    /// Free and total bytes of its memory.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.inner.memory()
    }

    /// Whether it can map the memory of another device of this host.
    pub fn can_reach(&self, uuid: &[u8; 16]) -> bool {
        self.inner.can_reach(uuid)
    }

    /// The forms in which memory of this kind can be given to another process, best first.
    pub fn handle_kinds(&self, memory: MemoryKind) -> Vec<crate::HandleKind> {
        self.inner.handle_kinds(memory)
    }

    /// An error that says why no memory of this device can be given to another process in this form.
    /// May allocate a little memory to try.
    pub fn require_handle(&self, kind: crate::HandleKind) -> Result<()> {
        self.inner.require_handle(kind)
    }

    /// Allocates zeroed memory, so that nobody sees what others left. A kernel that reads what nobody
    /// has written is a fault for the checks of a simulation all the same: fill what is to begin as
    /// zeros. May wait for the device: do not call it while a kernel of ours waits for something that
    /// only the caller can do. Frees what was dropped before, too.
    pub fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        let memory = self.inner.alloc(bytes, kind)?;
        mscclrs_log::debug!(
            MEMORY, bytes, ?kind, device = ?self, address = format_args!("{:#x}", memory.address()),
            "memory is allocated"
        );
        Ok(Buffer::new(self.clone(), memory))
    }

    /// Frees memory that was dropped and that nothing uses any more. May wait for the device, as
    /// [`Device::alloc`] may.
    ///
    /// There is seldom a need for it: dropped memory is freed in the background as soon as no kernel runs
    /// that could be held up by it, and by the next allocation. In a process that uses streams of somebody
    /// else ([`Device::wrap_stream`]) that moment cannot be known, and only allocating, importing and
    /// this call free.
    pub fn reclaim(&self) {
        self.inner.reclaim();
    }

    /// Names memory that somebody else allocated and keeps alive, so that it can be exported.
    ///
    /// # Safety
    /// The range is mapped on this device and stays so as long as the buffer lives.
    pub unsafe fn adopt(&self, address: u64, bytes: u64) -> Result<Buffer> {
        Ok(Buffer::new(self.clone(), self.inner.adopt(address, bytes)?))
    }

    /// A new queue, independent of all others. May wait for the device, as [`Device::alloc`] may.
    pub fn create_stream(&self) -> Result<Stream> {
        Ok(Stream::new(self.clone(), self.inner.create_stream()?))
    }

    /// Uses a queue that somebody else owns. An error for CUDA's default streams, the legacy one (0 and
    /// 1) and the per-thread one (2): they mean other queues, or another one on each thread.
    ///
    /// From the first such call on dropped memory is no longer freed in the background, see
    /// [`Device::reclaim`].
    ///
    /// # Safety
    /// `raw` is a live stream of this device (CUDA: a CUstream). It outlives the result with all its
    /// clones, and what remembers the streams that work was enqueued on: communicators.
    pub unsafe fn wrap_stream(&self, raw: u64) -> Result<Stream> {
        Ok(Stream::new(self.clone(), self.inner.wrap_stream(raw)?))
    }

    /// A new event; `timing` makes it measurable.
    pub fn create_event(&self, timing: bool) -> Result<Event> {
        Ok(Event { inner: self.inner.create_event(timing)? })
    }

    /// Makes a kernel ready to be launched here. Loads its module the first time, which may wait for
    /// the device.
    pub fn function(&self, kernel: &'static Kernel) -> Result<Function> {
        Ok(Function { inner: self.inner.function(kernel)? })
    }

    /// Blocks until the work that streams made here have by now is done. Streams that somebody else
    /// owns are not waited for.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.synchronize()
    }

    /// What running kernels wait for, several lines of text for an error message; `None` where
    /// nothing waits or the back end cannot tell. Blocks for half a second at most.
    pub fn waiting_report(&self) -> Option<String> {
        self.inner.waiting_report()
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.kind().name(), self.ordinal())
    }
}

/// A kernel ready to be launched on one device.
#[derive(Clone)]
pub struct Function {
    pub(crate) inner: Arc<dyn BackendFunction>,
}

impl Function {
    /// Which kernel.
    pub fn kernel(&self) -> &'static Kernel {
        self.inner.kernel()
    }

    /// Blocks of this shape that the whole device holds at once.
    pub fn resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        self.inner.resident_blocks(threads, shared_bytes)
    }

    /// An error if not all `grid.blocks` blocks are resident at once.
    pub fn require_resident(&self, grid: crate::Grid) -> Result<()> {
        let resident = self.resident_blocks(grid.threads, grid.shared_bytes)?;
        if grid.blocks <= resident {
            return Ok(());
        }
        Err(Error::NotResident {
            kernel: self.kernel().name,
            blocks: grid.blocks,
            threads: grid.threads,
            shared_bytes: grid.shared_bytes,
            resident,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_variable_but_auto_is_a_kind() {
        let env::Kind::Choice(words) = env::DEVICE.kind else { panic!("it is a choice") };
        for word in words.iter().filter(|word| **word != "auto") {
            assert_eq!(word.parse::<BackendKind>().unwrap().name(), *word);
        }
        assert_eq!(words.len(), 3);
    }
}

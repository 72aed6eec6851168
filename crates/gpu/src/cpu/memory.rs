//! Memory of the CPU device.
//!
//! Shareable memory is one memfd an allocation, sealed against shrinking so that no process that
//! maps it can be made to fault; a peer gets the descriptor. Other kinds are anonymous. What is
//! dropped is unmapped by a device's thread, after the work that may still use it.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mscclrs_sim::{MappedMemory, MemoryOwner};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::backend::{BackendMapping, BackendMemory};
use crate::rlimits::file_limit;
use crate::{
    Error, ExportedHandle, GroupLimit, HandleKind, MemoryKind, Result, group_memory_limit,
    limit_hint,
};

/// Bytes of a page; every allocation is a whole number of them.
const PAGE: u64 = 4096;

/// What a device has, and how much of it is in use.
pub(super) struct Account {
    pub(super) total: u64,
    pub(super) used: AtomicU64,
    /// What makes it less than the machine has, if anything does.
    limit: Option<GroupLimit>,
}

impl Account {
    /// The machine's memory, or what this process may use of it; each device counts its own use.
    pub(super) fn new() -> Self {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Account::of(number.map_or(16 << 30, |kib| kib * 1024), group_memory_limit())
    }

    fn of(machine: u64, limit: Option<GroupLimit>) -> Self {
        let limit = limit.filter(|limit| limit.bytes < machine);
        let total = limit.as_ref().map_or(machine, |limit| limit.bytes);
        Account { total, used: AtomicU64::new(0), limit }
    }

    /// Why it has no more to give.
    fn refusal(&self) -> String {
        let (total, used) = (self.total, self.used.load(Ordering::Relaxed));
        let limit = self.limit.as_ref().map_or(String::new(), |limit| {
            format!("; {limit}: raise that to have more of this machine's memory")
        });
        format!("the CPU device has {total} bytes, of which {used} are in use{limit}")
    }

    fn take(&self, bytes: u64) -> bool {
        let add = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.total);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes behind a mapping in which nothing lies: who runs past its end meets no other memory, neither
/// unseen nor as a race with who owns that.
const GAP: u64 = 64 * 1024;

/// Pages mapped into this process, and a gap behind them; unmapped when dropped.
struct Pages {
    at: *mut c_void,
    /// With the gap.
    bytes: usize,
    /// Told to the simulator: not before the pages are there, and no longer than they are.
    known: Option<MappedMemory>,
}

// SAFETY: an address range of the process, the same on every thread.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(bytes: u64, fd: Option<&OwnedFd>) -> rustix::io::Result<Pages> {
        let sizes = bytes.checked_add(GAP).and_then(|whole| usize::try_from(whole).ok());
        let Some(whole) = sizes else { return Err(rustix::io::Errno::NOMEM) };
        let (none, flags) = (std::ptr::null_mut(), MapFlags::NORESERVE);
        // SAFETY: a new mapping where the system wants it touches no other.
        let at = unsafe {
            rustix::mm::mmap_anonymous(none, whole, ProtFlags::empty(), flags | MapFlags::PRIVATE)?
        };
        // From here on an error unmaps it.
        let pages = Pages { at, bytes: whole, known: None };
        let (bytes, protection) = (whole - GAP as usize, ProtFlags::READ | ProtFlags::WRITE);
        let flags = flags | MapFlags::FIXED;
        // SAFETY: it lies in what was just mapped, which nobody knows of yet.
        unsafe {
            match fd {
                Some(fd) => {
                    rustix::mm::mmap(at, bytes, protection, flags | MapFlags::SHARED, fd, 0)?
                }
                None => {
                    rustix::mm::mmap_anonymous(at, bytes, protection, flags | MapFlags::PRIVATE)?
                }
            }
        };
        Ok(pages)
    }

    /// Tells the simulator that kernels may use the first `bytes` bytes; memory of one file is one
    /// piece however often it is mapped.
    fn tell(&mut self, bytes: u64, fd: Option<&OwnedFd>, owner: MemoryOwner) {
        let file = fd.and_then(|fd| rustix::fs::fstat(fd).ok()).map(|stat| stat.st_ino);
        let object = file.unwrap_or_else(MappedMemory::new_object);
        self.known = Some(MappedMemory::new(self.at as usize as u64, bytes, object, owner));
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.known = None;
        // SAFETY: mapped by `map`, and nobody uses it any more: see the module. An error would mean
        // that it is not mapped.
        let _ = unsafe { rustix::mm::munmap(self.at, self.bytes) };
    }
}

/// There is one form in which memory of the CPU device is given away.
pub(super) fn require_handle(kind: HandleKind) -> Result<()> {
    if kind == HandleKind::PosixFd {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "exporting this memory",
        why: "the CPU device exports memory as file descriptors only".into(),
    })
}

/// How an allocation is given to others.
struct Shared {
    id: u64,
    bytes: u64,
    device_uuid: [u8; 16],
    fd: Option<OwnedFd>,
}

impl Shared {
    fn export(
        &self,
        kind: HandleKind,
        offset: u64,
        bytes: u64,
    ) -> Result<(ExportedHandle, Option<OwnedFd>)> {
        require_handle(kind)?;
        let Some(fd) = &self.fd else {
            return Err(Error::Unsupported {
                what: "exporting this memory",
                why: "it was not allocated as shareable memory".into(),
            });
        };
        let fd = fd
            .try_clone()
            .map_err(|source| Error::System { call: "fcntl(F_DUPFD_CLOEXEC)", source })?;
        let handle = ExportedHandle {
            kind,
            device_uuid: self.device_uuid,
            allocation: self.id,
            allocation_bytes: self.bytes,
            offset,
            bytes,
            payload: Vec::new(),
        };
        Ok((handle, Some(fd)))
    }
}

/// Live allocations of the process by address.
static ALLOCATIONS: Mutex<BTreeMap<u64, Arc<Shared>>> = Mutex::new(BTreeMap::new());

fn allocations() -> MutexGuard<'static, BTreeMap<u64, Arc<Shared>>> {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct CpuMemory {
    /// Taken when dropped.
    pages: Option<Pages>,
    address: u64,
    bytes: u64,
    shared: Arc<Shared>,
    account: Arc<Account>,
}

pub(super) fn alloc(
    account: &Arc<Account>,
    device_uuid: [u8; 16],
    bytes: u64,
    kind: MemoryKind,
) -> Result<Box<dyn BackendMemory>> {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    if bytes == 0 {
        return Err(Error::Invalid {
            what: "bytes to allocate",
            value: "0".into(),
            allowed: "at least 1".into(),
        });
    }
    let name = match kind {
        MemoryKind::Host => "host memory",
        MemoryKind::Plain => "plain memory",
        MemoryKind::Shareable => "shareable memory",
    };
    let refuse = |why: String| Error::OutOfMemory { bytes, kind: name, why };
    let whole = bytes.checked_next_multiple_of(PAGE).filter(|&whole| account.take(whole));
    let Some(whole) = whole else {
        return Err(refuse(account.refusal()));
    };
    if let (MemoryKind::Shareable, Some(why)) = (kind, file_limit(whole)) {
        account.give(whole);
        return Err(refuse(why));
    }
    let made = make(whole, kind);
    let (mut pages, fd) = made.map_err(|(call, error)| {
        account.give(whole);
        match error {
            rustix::io::Errno::NOMEM => {
                refuse(format!("{call}: {error}{}", limit_hint(&error.into())))
            }
            _ => Error::System { call, source: error.into() },
        }
    })?;
    let owner = if kind == MemoryKind::Host { MemoryOwner::Host } else { MemoryOwner::Device };
    pages.tell(bytes, fd.as_ref(), owner);
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let shared = Arc::new(Shared { id, bytes: whole, device_uuid, fd });
    let address = pages.at as usize as u64;
    allocations().insert(address, shared.clone());
    Ok(Box::new(CpuMemory { pages: Some(pages), address, bytes, shared, account: account.clone() }))
}

type Failed = (&'static str, rustix::io::Errno);

fn make(whole: u64, kind: MemoryKind) -> std::result::Result<(Pages, Option<OwnedFd>), Failed> {
    if kind != MemoryKind::Shareable {
        return Ok((Pages::map(whole, None).map_err(|error| ("mmap", error))?, None));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("mscclrs", flags).map_err(|e| ("memfd_create", e))?;
    rustix::fs::ftruncate(&fd, whole).map_err(|e| ("ftruncate", e))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).map_err(|e| ("fcntl(F_ADD_SEALS)", e))?;
    let pages = Pages::map(whole, Some(&fd)).map_err(|e| ("mmap", e))?;
    Ok((pages, Some(fd)))
}

impl BackendMemory for CpuMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn host_address(&self) -> Option<*mut u8> {
        Some(self.address as usize as *mut u8)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self, kind: HandleKind) -> Result<(ExportedHandle, Option<OwnedFd>)> {
        self.shared.export(kind, 0, self.bytes)
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        mscclrs_log::debug!(
            MEMORY,
            bytes = self.bytes,
            address = format_args!("{:#x}", self.address),
            "memory is freed"
        );
        // First, so that a later mapping at the same address does not meet this entry.
        allocations().remove(&self.address);
        self.account.give(self.shared.bytes);
        mscclrs_sim::release_after_work(Arc::new(self.pages.take()));
    }
}

/// A range that somebody else keeps alive.
struct Adopted {
    address: u64,
    bytes: u64,
    /// The allocation that holds it and where it begins there, if it is one of ours.
    within: Option<(Arc<Shared>, u64)>,
    /// Told to the simulator where it is none of ours: who has it may write it at any time.
    _known: Option<MappedMemory>,
}

pub(super) fn adopt(address: u64, bytes: u64) -> Result<Box<dyn BackendMemory>> {
    let end = address.checked_add(bytes).filter(|_| address != 0 && bytes != 0);
    let Some(end) = end else {
        return Err(Error::Invalid {
            what: "memory range to adopt",
            value: format!("{bytes} bytes at {address:#x}"),
            allowed: "a range that is mapped".into(),
        });
    };
    let allocations = allocations();
    let before_end = allocations.range(..end).next_back();
    let overlapping = before_end.filter(|(start, shared)| *start + shared.bytes > address);
    let within = match overlapping {
        None => None,
        Some((&start, shared)) if start <= address && end <= start + shared.bytes => {
            Some((shared.clone(), address - start))
        }
        Some((start, shared)) => {
            return Err(Error::Invalid {
                what: "memory range to adopt",
                value: format!("{bytes} bytes at {address:#x}"),
                allowed: format!(
                    "it lies partly in an allocation of {} bytes at {start:#x}; adopt a range \
                     within one allocation",
                    shared.bytes
                ),
            });
        }
    };
    let foreign =
        || MappedMemory::new(address, bytes, MappedMemory::new_object(), MemoryOwner::Host);
    let known = within.is_none().then(foreign);
    Ok(Box::new(Adopted { address, bytes, within, _known: known }))
}

impl BackendMemory for Adopted {
    fn address(&self) -> u64 {
        self.address
    }

    fn host_address(&self) -> Option<*mut u8> {
        Some(self.address as usize as *mut u8)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn export(&self, kind: HandleKind) -> Result<(ExportedHandle, Option<OwnedFd>)> {
        match &self.within {
            Some((shared, offset)) => shared.export(kind, *offset, self.bytes),
            None => Err(Error::Unsupported {
                what: "exporting this memory",
                why: "it was not allocated by a CPU device".into(),
            }),
        }
    }
}

struct CpuMapping {
    /// Taken when dropped.
    pages: Option<Pages>,
    address: u64,
    bytes: u64,
}

pub(super) fn import(
    handle: &ExportedHandle,
    fd: Option<OwnedFd>,
) -> Result<Box<dyn BackendMapping>> {
    let refuse = |what, value: String, allowed: &str| {
        Err(Error::Invalid { what, value, allowed: allowed.into() })
    };
    if handle.kind != HandleKind::PosixFd {
        let allowed = "a CPU device maps memory by file descriptors only";
        return refuse("kind of a memory handle", format!("{:?}", handle.kind), allowed);
    }
    let Some(fd) = fd else {
        let allowed = "the descriptor has to come with it";
        return refuse("memory handle", "one without a file descriptor".into(), allowed);
    };
    let ExportedHandle { allocation_bytes, offset, bytes, .. } = *handle;
    let end = offset.checked_add(bytes);
    if bytes == 0 || end.is_none_or(|end| end > allocation_bytes) {
        let value = format!("{bytes} bytes at {offset}");
        let allowed = format!("the allocation has {allocation_bytes} bytes");
        return refuse("range of a memory handle", value, &allowed);
    }
    let system =
        |call| move |error: rustix::io::Errno| Error::System { call, source: error.into() };
    let found = rustix::fs::fstat(fd.as_fd()).map_err(system("fstat"))?;
    if u64::try_from(found.st_size) != Ok(allocation_bytes) {
        let value = format!("a descriptor of {} bytes", found.st_size);
        let allowed = format!("the handle says {allocation_bytes} bytes");
        return refuse("memory handle", value, &allowed);
    }
    // Without the seal its owner could shrink it, and a kernel would fault. Other files have no
    // seals at all.
    let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) {
        let allowed = "memory that is sealed against shrinking";
        return refuse("memory handle", "a descriptor that can shrink".into(), allowed);
    }
    let mut pages = Pages::map(allocation_bytes, Some(&fd)).map_err(|error| match error {
        rustix::io::Errno::NOMEM => Error::OutOfMemory {
            bytes: allocation_bytes,
            kind: "another process's memory",
            why: format!("mmap: {error}{}", limit_hint(&error.into())),
        },
        error => system("mmap")(error),
    })?;
    pages.tell(allocation_bytes, Some(&fd), MemoryOwner::Device);
    let address = pages.at as usize as u64 + offset;
    Ok(Box::new(CpuMapping { pages: Some(pages), address, bytes }))
}

impl BackendMapping for CpuMapping {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for CpuMapping {
    fn drop(&mut self) {
        mscclrs_log::debug!(
            MEMORY,
            bytes = self.bytes,
            address = format_args!("{:#x}", self.address),
            "a peer's memory is unmapped"
        );
        mscclrs_sim::release_after_work(Arc::new(self.pages.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_what_the_control_group_allows_and_says_so() {
        let limit = |bytes| {
            let file = "/sys/fs/cgroup/job/memory.max".into();
            Some(GroupLimit { bytes, used_bytes: 9 * PAGE, file })
        };
        let refused = |limit| {
            let account = Arc::new(Account::of(16 * PAGE, limit));
            let held = alloc(&account, [0; 16], 2 * PAGE, MemoryKind::Shareable).unwrap();
            let most = account.total - 2 * PAGE;
            drop(alloc(&account, [0; 16], most, MemoryKind::Plain).unwrap());
            let error = alloc(&account, [0; 16], most + 1, MemoryKind::Plain).err().unwrap();
            drop(held);
            error.to_string()
        };
        for looser in [None, limit(16 * PAGE)] {
            let text = refused(looser);
            let says = "the CPU device has 65536 bytes, of which 8192 are in use";
            assert!(text.ends_with(says), "{text}");
        }
        let text = refused(limit(10 * PAGE));
        for part in ["has 40960 bytes, of which 8192 are", "use 40960 bytes", "job/memory.max"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn nothing_lies_right_behind_memory() {
        let account = Arc::new(Account::new());
        let kinds = [MemoryKind::Host, MemoryKind::Plain, MemoryKind::Shareable];
        let some = |kind| alloc(&account, [0; 16], 2 * PAGE, kind).unwrap();
        let all: Vec<_> = (0..24).map(|nth| some(kinds[nth % 3])).collect();
        for memory in &all {
            let end = memory.address() + memory.bytes();
            let behind = end..end + GAP;
            assert!(!all.iter().any(|other| behind.contains(&other.address())), "{end:#x}");
        }
        let last = all[2].host_address().unwrap().wrapping_add(2 * PAGE as usize - 1);
        // SAFETY: its last byte, which nobody else has.
        unsafe { last.write_volatile(7) };
    }
}

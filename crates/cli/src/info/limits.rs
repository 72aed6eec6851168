//! The machine, and what the system allows this process.

use mscclrs_gpu::GroupLimit;
use rustix::process::{Resource, getrlimit};

use super::model::{GroupMemory, Host, Limit, Limits, SharedMemory};

/// Where memory that processes share by name lies.
const SHARED_MEMORY: &str = "/dev/shm";

/// Of this process.
pub(super) fn limits() -> Limits {
    Limits {
        open_files: limit(Resource::Nofile),
        locked_bytes: limit(Resource::Memlock),
        shared_memory: shared_memory(SHARED_MEMORY),
        group_memory: mscclrs_gpu::group_memory_limit().and_then(|limit| {
            let machine = total_memory(&memory_of_the_machine());
            below(machine, limit)
        }),
    }
}

/// Where a group allows as much as the machine has, it is no limit.
fn below(machine: Option<u64>, limit: GroupLimit) -> Option<GroupMemory> {
    let GroupLimit { bytes, used_bytes, file } = limit;
    let file = file.to_string_lossy().into_owned();
    machine.is_none_or(|machine| bytes < machine).then_some(GroupMemory { bytes, used_bytes, file })
}

fn limit(resource: Resource) -> Limit {
    let limit = getrlimit(resource);
    Limit { soft: limit.current, hard: limit.maximum }
}

fn shared_memory(path: &str) -> Option<SharedMemory> {
    let system = rustix::fs::statvfs(path).ok()?;
    Some(SharedMemory {
        bytes: system.f_blocks.saturating_mul(system.f_frsize),
        free_bytes: system.f_bavail.saturating_mul(system.f_frsize),
    })
}

/// This machine.
pub(super) fn host() -> Host {
    let name = rustix::system::uname();
    Host {
        name: name.nodename().to_string_lossy().into_owned(),
        kernel: format!(
            "{} {}",
            name.sysname().to_string_lossy(),
            name.release().to_string_lossy()
        ),
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
        memory_bytes: total_memory(&memory_of_the_machine()),
    }
}

fn memory_of_the_machine() -> String {
    std::fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// From the line `MemTotal:       24684084 kB`.
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(
            total_memory("MemTotal:       24684084 kB\nMemFree: 1 kB\n"),
            Some(25_276_502_016)
        );
        assert_eq!(total_memory("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn a_folder_that_is_not_there_has_no_size() {
        assert!(shared_memory("/nowhere").is_none());
        assert!(shared_memory("/proc").is_some());
    }

    #[test]
    fn a_group_that_allows_all_of_the_machine_is_no_limit() {
        let limit = GroupLimit { bytes: 4096, used_bytes: 7, file: "/g/memory.max".into() };
        assert!(below(Some(4096), limit.clone()).is_none());
        for machine in [Some(4097), None] {
            let found = below(machine, limit.clone()).expect("a limit");
            assert_eq!((found.bytes, found.used_bytes), (4096, 7));
            assert_eq!(found.file, "/g/memory.max");
        }
    }

    #[test]
    fn this_process_may_open_files() {
        let Limit { soft, hard } = limits().open_files;
        assert!(soft.is_none_or(|soft| soft > 0 && hard.is_none_or(|hard| soft <= hard)));
    }
}

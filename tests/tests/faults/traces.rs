//! What processes leave behind, on the machine and in themselves.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use mscclrs_gpu::BackendKind;

use crate::process::{Group, kind};

/// Things end a moment after their last use.
const MOMENT: Duration = Duration::from_secs(5);

/// What this process holds: descriptors, threads, and pieces of devices' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    descriptors: usize,
    threads: usize,
    mappings: usize,
}

impl Held {
    pub(crate) fn now() -> Held {
        let entries = |path| std::fs::read_dir(path).unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Held {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            mappings: maps.lines().filter(|line| line.contains("memfd:")).count(),
        }
    }

    /// What is held once nothing changes any more.
    pub(crate) fn settled() -> Held {
        let mut last = Held::now();
        loop {
            std::thread::sleep(Duration::from_millis(30));
            let now = Held::now();
            if now == last {
                return now;
            }
            last = now;
        }
    }

    /// What is held beyond this, where it does not go by itself.
    pub(crate) fn surplus(self) -> Option<String> {
        let deadline = Instant::now() + MOMENT;
        loop {
            let now = Held::now();
            // For the first peer the driver opens what it keeps to the end of the process. That no more
            // comes with more communicators is seen where many are made.
            let drivers = kind() == BackendKind::Cuda;
            let ours = now.descriptors <= self.descriptors && now.threads <= self.threads;
            if (drivers || ours) && now.mappings <= self.mappings {
                return None;
            }
            if Instant::now() > deadline {
                return Some(format!("{self:?} became {now:?}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The sockets of processes, to be gone later.
#[derive(Default)]
pub(crate) struct Sockets(HashSet<String>);

impl Sockets {
    /// Notes those that a process has now.
    pub(crate) fn note(&mut self, pid: u32) {
        // A descriptor may be closed, and a process end, while this looks.
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return };
        for entry in entries.flatten() {
            let Ok(link) = std::fs::read_link(entry.path()) else { continue };
            let link = link.to_string_lossy().into_owned();
            if let Some(inode) = link.strip_prefix("socket:[") {
                self.0.insert(inode.trim_end_matches(']').to_owned());
            }
        }
    }

    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (table, column) in [("tcp", 9), ("tcp6", 9), ("unix", 6)] {
            // A machine may have no IPv6.
            let text = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            for line in text.lines().skip(1) {
                let inode = line.split_whitespace().nth(column).unwrap_or("0");
                if self.0.contains(inode) {
                    left.push(format!("{table}: {}", line.trim()));
                }
            }
        }
        left
    }
}

/// Nothing of a group is left on the machine once all its processes have ended.
pub(crate) fn none(group: &Group, sockets: &Sockets) {
    let deadline = Instant::now() + MOMENT;
    while group.is_alive() || !sockets.left().is_empty() {
        assert!(!group.is_alive() || Instant::now() < deadline, "a process is left");
        assert!(Instant::now() < deadline, "sockets are left: {:?}", sockets.left());
        std::thread::sleep(Duration::from_millis(5));
    }
    let entries = |path: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    // The GPU driver's cache of what it compiled.
    let mut left = entries(group.folder.path());
    left.retain(|name| kind() != BackendKind::Cuda || name != ".nv");
    assert!(left.is_empty(), "files are left: {left:?}");
    let ours = |names: Vec<String>| -> Vec<String> {
        names.into_iter().filter(|name| name.contains("mscclrs")).collect()
    };
    let left = ours(entries(Path::new("/dev/shm")));
    assert!(left.is_empty(), "shared memory is left: {left:?}");
}

//! Limits of the system, for errors of it that say too little.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::GroupLimit;
use crate::cgroup::fullest_group;

/// What to do about an error that says too little, beginning with "; ", or empty: where a limit of
/// descriptors, memory or threads was met, whose limit it is and how high.
pub fn limit_hint(error: &io::Error) -> String {
    const FILES: i32 = Errno::MFILE.raw_os_error();
    const ALL_FILES: i32 = Errno::NFILE.raw_os_error();
    const MEMORY: i32 = Errno::NOMEM.raw_os_error();
    const THREADS: i32 = Errno::AGAIN.raw_os_error();
    match error.raw_os_error() {
        Some(FILES) => format!("; {}", descriptor_limit()),
        Some(ALL_FILES) => format!(
            "; all processes of this machine together may have {} files open: raise \
             /proc/sys/fs/file-max",
            read("/proc/sys/fs/file-max").trim()
        ),
        Some(MEMORY) => memory_limit().map_or(String::new(), |limit| format!("; {limit}")),
        // What calls that do not wait say instead is never shown to anybody.
        Some(THREADS) => {
            let threads = bounded(Resource::Nproc, "any number of");
            let memory = memory_limit().map_or(String::new(), |limit| format!(", and {limit}"));
            format!(
                "; this user may have {threads} processes and threads (`ulimit -u`; a control group \
                 may allow fewer, pids.max){memory}"
            )
        }
        _ => String::new(),
    }
}

/// How many file descriptors this process may have, and where that is set.
pub fn descriptor_limit() -> String {
    let limit = getrlimit(Resource::Nofile);
    let number = |limit: Option<u64>| limit.map_or("any number of".into(), |n| n.to_string());
    let (now, most) = (number(limit.current), number(limit.maximum));
    let how = match now == most {
        true => "only a privileged user can raise that".to_owned(),
        false => format!("raise that, to {most} at most without privileges"),
    };
    format!("this process may have {now} files and sockets open (`ulimit -n`): {how}")
}

/// Why a file of so many bytes cannot be made. To try it would end the process by a signal.
pub(crate) fn file_limit(bytes: u64) -> Option<String> {
    let most = getrlimit(Resource::Fsize).current.filter(|&most| most < bytes)?;
    Some(format!(
        "a file of this process, which shareable memory is to the system, may have {most} bytes \
         (`ulimit -f`)"
    ))
}

/// What is left of a limit when something was refused because of it: who asks for memory asks for whole
/// pages, and the system keeps some at hand.
const NEARLY_NOTHING: u64 = 16 << 20;

/// What may stand in the way of more pinned memory.
pub(crate) fn pinned_limit() -> String {
    let group = full(fullest_group()).map_or(String::new(), |group| format!("; {group}"));
    format!("see `ulimit -l` and the machine's free memory{group}")
}

/// A group that refuses something. What is allocated is charged to a group only when it is used, and who
/// goes beyond the limit then is killed: one that has room refuses nothing.
fn full(group: Option<GroupLimit>) -> Option<GroupLimit> {
    group.filter(|group| left(group.bytes, group.used_bytes) < NEARLY_NOTHING)
}

/// The limit that most likely stands in the way of more memory.
fn memory_limit() -> Option<String> {
    let mapped = read("/proc/self/maps").lines().count() as u64;
    let most = read("/proc/sys/vm/max_map_count").trim().parse().unwrap_or(u64::MAX);
    // Some may have been given back since.
    if mapped.saturating_add(64) >= most {
        return Some(format!(
            "this process may have {most} mappings (vm.max_map_count), and has {mapped}"
        ));
    }
    let (status, machine) = (read("/proc/self/status"), read("/proc/meminfo"));
    let bytes =
        |text: &str, name: &str| number_after(text, name).map_or(0, |kib| kib.saturating_mul(1024));
    let is_strict = read("/proc/sys/vm/overcommit_memory").trim() == "2";
    tightest(MemoryLimits {
        mapped: (getrlimit(Resource::As).current, bytes(&status, "VmSize:")),
        own: (getrlimit(Resource::Data).current, bytes(&status, "VmData:")),
        promised: (
            is_strict.then(|| bytes(&machine, "CommitLimit:")),
            bytes(&machine, "Committed_AS:"),
        ),
        group: fullest_group(),
    })
}

/// Limits of memory: the most, if there is one, and what is used.
struct MemoryLimits {
    mapped: (Option<u64>, u64),
    own: (Option<u64>, u64),
    promised: (Option<u64>, u64),
    group: Option<GroupLimit>,
}

/// The sentence about the limit of which the least is left.
fn tightest(limits: MemoryLimits) -> Option<String> {
    let MemoryLimits { mapped, own, promised, group } = limits;
    let mut found = Vec::new();
    if let (Some(most), used) = mapped {
        let text =
            format!("this process may map {most} bytes (`ulimit -v`), and has mapped {used}");
        found.push((left(most, used), text));
    }
    if let (Some(most), used) = own {
        let text =
            format!("this process may have {most} bytes of its own (`ulimit -d`), and has {used}");
        found.push((left(most, used), text));
    }
    if let (Some(most), used) = promised {
        let text = format!(
            "all processes of this machine may ask for {most} bytes (vm.overcommit_memory is 2), and \
             have asked for {used}"
        );
        found.push((left(most, used), text));
    }
    if let Some(group) = full(group) {
        found.push((left(group.bytes, group.used_bytes), group.to_string()));
    }
    found.into_iter().min_by_key(|(left, _)| *left).map(|(_, text)| text)
}

fn left(most: u64, used: u64) -> u64 {
    most.saturating_sub(used)
}

fn bounded(resource: Resource, unbounded: &str) -> String {
    getrlimit(resource).current.map_or(unbounded.to_owned(), |limit| limit.to_string())
}

/// Empty where there is none, which gives no hint.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn a_limit_of_descriptors_is_named_with_its_value() {
        let error =
            |errno: Errno| Error::System { call: "memfd_create", source: errno.into() }.to_string();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or("any number of".to_owned(), |limit| limit.to_string());
        let text = error(Errno::MFILE);
        assert!(text.contains("`ulimit -n`") && text.contains(&format!(" {limit} ")), "{text}");
        let text = error(Errno::NFILE);
        assert!(text.contains("file-max") && !text.contains("ulimit"), "{text}");
        let text = error(Errno::AGAIN);
        assert!(text.contains("`ulimit -u`") && text.contains("pids.max"), "{text}");
        let text = error(Errno::NOENT);
        assert!(!text.contains(';'), "{text}");
    }

    #[test]
    fn tightest_limit_of_memory_is_named() {
        const GIB: u64 = 1 << 30;
        let none =
            || MemoryLimits { mapped: (None, 7), own: (None, 7), promised: (None, 7), group: None };
        let group = |bytes, used_bytes| {
            Some(GroupLimit { bytes, used_bytes, file: "/sys/fs/cgroup/memory.max".into() })
        };
        for (limits, says) in [
            (none(), None),
            (
                MemoryLimits { mapped: (Some(GIB), 5), ..none() },
                Some("map 1073741824 bytes (`ulimit -v`)"),
            ),
            (
                MemoryLimits { mapped: (Some(8 * GIB), 5), own: (Some(GIB), 6), ..none() },
                Some("own (`ulimit -d`), and has 6"),
            ),
            (
                MemoryLimits { own: (Some(8 * GIB), 6), promised: (Some(GIB), 9), ..none() },
                Some("and have asked for 9"),
            ),
            (
                MemoryLimits { own: (Some(GIB), 6), group: group(GIB, GIB - 4096), ..none() },
                Some("use 1073741824 bytes (/sys/fs/cgroup/memory.max), and uses 1073737728"),
            ),
            // One that is full refuses before one that is nearly full.
            (
                MemoryLimits { own: (Some(5), 6), group: group(GIB, GIB - 1), ..none() },
                Some("`ulimit -d`"),
            ),
            // One with room refuses nothing.
            (
                MemoryLimits { own: (Some(8 * GIB), 6), group: group(GIB, 5), ..none() },
                Some("`ulimit -d`"),
            ),
            (MemoryLimits { group: group(GIB, 5), ..none() }, None),
        ] {
            let found = tightest(limits);
            match says {
                None => assert_eq!(found, None),
                Some(says) => {
                    assert!(found.as_ref().is_some_and(|f| f.contains(says)), "{found:?}")
                }
            }
        }
    }
}

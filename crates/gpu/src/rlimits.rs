//! Limits of the system, for errors of it that say too little.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

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

/// The limit that most likely stands in the way of more memory.
fn memory_limit() -> Option<String> {
    let status = read("/proc/self/status");
    let bytes = |name: &str| number_after(&status, name).map_or(0, |kib| kib * 1024);
    if let Some(most) = getrlimit(Resource::As).current {
        let used = bytes("VmSize:");
        return Some(format!(
            "this process may map {most} bytes (`ulimit -v`), and has mapped {used}"
        ));
    }
    if let Some(most) = getrlimit(Resource::Data).current {
        let used = bytes("VmData:");
        return Some(format!(
            "this process may have {most} bytes of its own (`ulimit -d`), and has {used}"
        ));
    }
    let mapped = read("/proc/self/maps").lines().count() as u64;
    let most = read("/proc/sys/vm/max_map_count").trim().parse().unwrap_or(u64::MAX);
    // Some may have been given back since.
    if mapped.saturating_add(64) >= most {
        return Some(format!(
            "this process may have {most} mappings (vm.max_map_count), and has {mapped}"
        ));
    }
    if read("/proc/sys/vm/overcommit_memory").trim() == "2" {
        let machine = read("/proc/meminfo");
        let bytes = |name: &str| number_after(&machine, name).map_or(0, |kib| kib * 1024);
        return Some(format!(
            "all processes of this machine may ask for {} bytes (vm.overcommit_memory is 2), and have \
             asked for {}",
            bytes("CommitLimit:"),
            bytes("Committed_AS:")
        ));
    }
    None
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
}

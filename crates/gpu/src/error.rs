//! What can go wrong with a device.

use std::io;

/// The result of a call on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A native call failed.
    #[error("{call} failed: {code} ({name}){hint}")]
    Call {
        /// The call, e.g. `cuMemCreate`.
        call: &'static str,
        /// The library's code.
        code: i64,
        /// The library's name of the code.
        name: String,
        /// What to do, beginning with "; ", or empty.
        hint: String,
    },
    /// The kernel's code in the device module has other parameters than this program gives it.
    #[error(
        "kernel {kernel} in device module {module} was compiled with other parameters (layout {found:#x}, this program has {expected:#x}); rebuild the module with `cargo xtask ptx` (or `mscclrs kernel build` for a crate of your own)"
    )]
    KernelLayout {
        /// The kernel.
        kernel: &'static str,
        /// The module.
        module: &'static str,
        /// This program's hash.
        expected: u64,
        /// The module's hash.
        found: u64,
    },
    /// A launch would need more blocks at once than the device holds.
    #[error(
        "kernel {kernel}: {blocks} blocks of {threads} threads with {shared_bytes} bytes of shared memory have to be resident at once, but this device holds {resident}; use fewer blocks or threads"
    )]
    NotResident {
        /// The kernel.
        kernel: &'static str,
        /// Blocks asked for.
        blocks: u32,
        /// Threads a block.
        threads: u32,
        /// Shared memory a block.
        shared_bytes: u32,
        /// What fits.
        resident: u32,
    },
    /// An environment variable has a value that is not allowed.
    #[error(transparent)]
    Environment(#[from] mscclrs_env::Error),
    /// An argument is outside what is allowed.
    #[error("{what}: {value} is not allowed; {allowed}")]
    Invalid {
        /// What it is.
        what: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A device module could not be used.
    #[error("device module {module}: {why}")]
    Module {
        /// The module.
        module: &'static str,
        /// What is wrong and what to do.
        why: String,
    },
    /// No device of that kind.
    #[error("no {backend} device {ordinal}: {why}")]
    NoDevice {
        /// CUDA or CPU.
        backend: &'static str,
        /// The number asked for.
        ordinal: u32,
        /// Why, and what to do.
        why: String,
    },
    /// Memory ran out.
    #[error("{bytes} bytes of {kind} could not be allocated: {why}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// Kind of memory.
        kind: &'static str,
        /// The limit that was met.
        why: String,
    },
    /// The operating system said no.
    #[error("{call} failed: {source}{}", limit_hint(source))]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// Kernels of the CPU device wait for each other, or a lane panicked.
    #[error("the CPU device stopped: {report}")]
    Stopped {
        /// What each block waits for.
        report: String,
    },
    /// The back end, device or memory cannot do this.
    #[error("{what} is not possible here: {why}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Why, and what to do instead.
        why: String,
    },
}

/// What to do about an error that says too little, beginning with "; ", or empty: where a limit of
/// file descriptors was met, whose limit it is and how high.
pub fn limit_hint(error: &io::Error) -> String {
    const PROCESS: i32 = rustix::io::Errno::MFILE.raw_os_error();
    const SYSTEM: i32 = rustix::io::Errno::NFILE.raw_os_error();
    match error.raw_os_error() {
        Some(PROCESS) => format!("; {}", descriptor_limit()),
        Some(SYSTEM) => {
            let most = std::fs::read_to_string("/proc/sys/fs/file-max").unwrap_or_default();
            format!(
                "; all processes of this machine together may have {} files open: raise \
                 /proc/sys/fs/file-max",
                most.trim()
            )
        }
        _ => String::new(),
    }
}

/// How many file descriptors this process may have, and where that is set.
pub fn descriptor_limit() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let number = |limit: Option<u64>| limit.map_or("any number of".into(), |n| n.to_string());
    let (now, most) = (number(limit.current), number(limit.maximum));
    let how = match now == most {
        true => "only a privileged user can raise that".to_owned(),
        false => format!("raise that, to {most} at most without privileges"),
    };
    format!("this process may have {now} files and sockets open (`ulimit -n`): {how}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_descriptors_is_named_with_its_value() {
        let error = |errno: rustix::io::Errno| {
            Error::System { call: "memfd_create", source: errno.into() }.to_string()
        };
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or("any number of".to_owned(), |limit| limit.to_string());
        let text = error(rustix::io::Errno::MFILE);
        assert!(text.contains("`ulimit -n`") && text.contains(&format!(" {limit} ")), "{text}");
        let text = error(rustix::io::Errno::NFILE);
        assert!(text.contains("file-max") && !text.contains("ulimit"), "{text}");
        let text = error(rustix::io::Errno::NOENT);
        assert!(!text.contains(';'), "{text}");
    }
}

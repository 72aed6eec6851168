//! Where NCCL may be.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mscclrs_core::env;

/// The name by which the loader finds it.
pub(super) const FILE: &str = "libnccl.so.2";

/// How long Python may take to say where its packages are.
const PYTHON_LIMIT: Duration = Duration::from_secs(10);

/// Prints where a wheel of NCCL has the library, for the Python that is first in the path.
const PYTHON: &str = "import sys, os
for root in sys.path:
    path = os.path.join(root, 'nvidia', 'nccl', 'lib', 'libnccl.so.2')
    if os.path.exists(path):
        print(path)
        break";

/// Who named a path.
pub(super) enum Place {
    /// The user; nothing else is tried.
    Variable(PathBuf),
    /// The loader's search path.
    Loader,
}

/// Where to look first.
pub(super) fn first_place() -> Place {
    env::NCCL_LIBRARY.path().map_or(Place::Loader, Place::Variable)
}

/// The library of a wheel that Python has installed, if there is one.
pub(super) fn of_python() -> Option<PathBuf> {
    let mut child = Command::new("python3")
        .args(["-c", PYTHON])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let since = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if since.elapsed() > PYTHON_LIMIT {
            // It may be gone already; then there is nothing to end.
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    let path = path.trim_end_matches('\n');
    (!path.is_empty()).then(|| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_names_exists() {
        if let Some(path) = of_python() {
            assert!(path.exists(), "{path:?}");
        }
    }
}

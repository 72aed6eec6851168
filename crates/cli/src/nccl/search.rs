//! Where NCCL may be.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The variable that names the library.
pub(super) const VARIABLE: &str = "MSCCLRS_NCCL_LIBRARY";
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
#[derive(Debug, PartialEq)]
pub(super) enum Place {
    /// The user; nothing else is tried.
    Variable(PathBuf),
    /// The loader's search path.
    Loader,
}

/// Where to look first.
pub(super) fn first_place() -> Place {
    named(env::var_os(VARIABLE))
}

fn named(value: Option<std::ffi::OsString>) -> Place {
    match value {
        Some(path) if !path.is_empty() => Place::Variable(path.into()),
        _ => Place::Loader,
    }
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
    fn an_empty_variable_is_as_good_as_none() {
        assert_eq!(named(Some("".into())), Place::Loader);
        assert_eq!(named(None), Place::Loader);
        assert_eq!(named(Some("/x".into())), Place::Variable("/x".into()));
    }

    #[test]
    fn what_python_names_exists() {
        if let Some(path) = of_python() {
            assert!(path.exists(), "{path:?}");
        }
    }
}

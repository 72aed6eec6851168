//! NCCL's library: opened once a process and never closed, since its threads outlive communicators.

use std::ffi::{CStr, OsStr, c_int};
use std::sync::OnceLock;

use mscclrs_core::env::{self, Variable};

use super::search::{self, Place};
use super::sys::{self, EntryPoints};
use super::{Error, sys::Comm};

static NVLS: &Variable = &env::foreign::NCCL_NVLS_ENABLE;

/// Keeps NCCL from taking multicast objects, unless the user said otherwise. To be called before
/// [`Library::open`].
///
/// # Safety
/// No other thread runs that reads or writes the environment: called at the start of `main`.
pub(crate) unsafe fn prepare_environment() {
    if NVLS.raw().is_none() {
        // SAFETY: the caller's promise.
        unsafe { std::env::set_var(NVLS.name, "0") };
    }
}

/// NCCL, opened.
pub(crate) struct Library {
    pub(super) calls: EntryPoints,
    path: String,
    version: c_int,
}

impl Library {
    /// Opens the library that `MSCCLRS_NCCL_LIBRARY` names, or else the loader's, or else that of
    /// Python's packages. The same one for the whole process.
    pub(crate) fn open() -> Result<&'static Library, Error> {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        if NVLS.raw().is_none() {
            return Err(Error::Invalid {
                what: NVLS.name,
                value: "no value".into(),
                allowed: "it has to be set before NCCL is opened: 0 leaves multicast objects alone"
                    .into(),
            });
        }
        let library = Self::find()?;
        // A thread that was faster opened the same file.
        Ok(LIBRARY.get_or_init(|| library))
    }

    /// As [`open`](Self::open), each time anew, and without what has to be set before NCCL is used.
    pub(super) fn find() -> Result<Library, Error> {
        let mut looked = Vec::new();
        match search::first_place() {
            Place::Variable(path) => {
                return Self::load(path.as_os_str()).map_err(|why| {
                    let path = format!("{} ({})", path.display(), env::NCCL_LIBRARY.name);
                    Error::Unusable { path, why }
                });
            }
            Place::Loader => match Self::load(OsStr::new(search::FILE)) {
                Ok(library) => return Ok(library),
                Err(why) => looked.push(format!("{} by the loader: {why}", search::FILE)),
            },
        }
        match search::of_python() {
            Some(path) => Self::load(path.as_os_str())
                .map_err(|why| Error::Unusable { path: path.display().to_string(), why }),
            None => {
                looked.push("nvidia/nccl/lib in the packages of python3: not there".into());
                Err(Error::NotFound { looked: looked.join("; ") })
            }
        }
    }

    fn load(path: &OsStr) -> Result<Library, String> {
        // SAFETY: NCCL's initialisers have no preconditions.
        let library = unsafe { libloading::Library::new(path) }.map_err(in_full)?;
        // It is never closed: NCCL's threads may run its code until the process ends.
        let library = Box::leak(Box::new(library));
        // SAFETY: this call has had the same type since NCCL 2.3.
        let get_version = unsafe {
            library.get::<unsafe extern "C" fn(*mut c_int) -> sys::Status>(c"ncclGetVersion")
        }
        .map_err(in_full)?;
        let mut version = 0;
        // SAFETY: it writes one integer.
        let status = unsafe { get_version(&mut version) };
        if status != 0 {
            return Err(format!("ncclGetVersion gave {status}"));
        }
        if version < sys::OLDEST_VERSION {
            return Err(format!(
                "it is NCCL {}, and symmetric windows need 2.27 or later",
                version_text(version)
            ));
        }
        // SAFETY: the version is 2.27 or later, and the library is never closed.
        let calls = unsafe { EntryPoints::find(library) }.map_err(in_full)?;
        Ok(Library { calls, path: path.to_string_lossy().into_owned(), version })
    }

    /// What was opened.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Its version, e.g. 2.28.9.
    pub(crate) fn version(&self) -> String {
        version_text(self.version)
    }

    /// An error with NCCL's own words if `status` is one.
    pub(super) fn check(
        &self,
        call: &'static str,
        status: sys::Status,
        comm: Comm,
    ) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: both give null or a string that lives until the next call on this thread, and take
        // a null communicator.
        let (text, detail) = unsafe {
            (text((self.calls.get_error_string)(status)), text((self.calls.get_last_error)(comm)))
        };
        let detail = if detail.is_empty() { detail } else { format!("; {detail}") };
        let text = format!("{status} ({text})");
        Err(Error::Call { call, text, detail })
    }
}

/// The loader's own words are the error's source.
fn in_full(error: libloading::Error) -> String {
    match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// # Safety
/// `at` is null or a C string.
unsafe fn text(at: *const std::ffi::c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().trim().to_owned()
}

fn version_text(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_as_nccl_codes_it() {
        assert_eq!(version_text(22_809), "2.28.9");
        assert_eq!(version_text(23_203), "2.32.3");
    }

    #[test]
    fn an_installed_library_has_every_entry_point() {
        match Library::find() {
            Ok(library) => assert!(library.version().starts_with("2."), "{}", library.path()),
            Err(Error::NotFound { looked }) => assert!(looked.contains("python3"), "{looked}"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_missing_library_is_named_in_the_error() {
        let why = Library::load(OsStr::new("/nowhere/libnccl.so.2")).err().unwrap();
        assert!(why.contains("/nowhere/libnccl.so.2"), "{why}");
    }
}

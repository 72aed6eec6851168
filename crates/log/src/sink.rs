//! Where lines go.
//!
//! Invariant: a line is given to the system in one call, at the end of the file, whoever else adds to
//! it; and one thread of this process does so at a time. So lines of several ranks in one file are
//! whole: the system moves to the end and writes under the file's own lock. What a full disk cuts off
//! is lost.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::FilePattern;

/// The log's file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the log file {path:?} cannot be opened: {source}")]
pub struct OpenError {
    /// Its name.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// Where lines go.
#[derive(Debug)]
pub(crate) enum Sink {
    Files(Files),
    StandardError,
}

/// The files of a pattern, each opened when it is first written to.
#[derive(Debug)]
pub(crate) struct Files {
    pattern: FilePattern,
    host: String,
    /// Of this process when the log began: a file's name does not change with a fork.
    process: u32,
    /// By rank where the pattern names it. None for a file that could not be opened, which was told.
    open: Mutex<HashMap<Option<u32>, Option<File>>>,
}

impl Sink {
    /// Opens the file, unless it is not known yet for which ranks there will be some.
    pub(crate) fn new(
        pattern: Option<FilePattern>,
        host: &str,
        rank: Option<u32>,
    ) -> Result<Sink, OpenError> {
        let Some(pattern) = pattern else { return Ok(Sink::StandardError) };
        let known = rank.is_some() || !pattern.names_rank();
        let (host, process) = (host.to_owned(), std::process::id());
        let files = Files { pattern, host, process, open: Mutex::default() };
        if known {
            let key = files.key(rank);
            let file = open(&files.path(key))?;
            files.lock().insert(key, Some(file));
        }
        Ok(Sink::Files(files))
    }

    pub(crate) fn write(&self, line: &str, rank: Option<u32>) {
        match self {
            Sink::StandardError => say(line),
            Sink::Files(files) => files.write(line, rank),
        }
    }
}

impl Files {
    fn key(&self, rank: Option<u32>) -> Option<u32> {
        rank.filter(|_| self.pattern.names_rank())
    }

    fn path(&self, key: Option<u32>) -> PathBuf {
        self.pattern.path(&self.host, self.process, key)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Option<u32>, Option<File>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, line: &str, rank: Option<u32>) {
        let key = self.key(rank);
        let mut open_files = self.lock();
        let file = open_files.entry(key).or_insert_with(|| match open(&self.path(key)) {
            Ok(file) => Some(file),
            Err(error) => {
                say(&format!("{error}\n"));
                None
            }
        });
        if let Some(file) = file {
            // There is nobody to tell that the log cannot be written.
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// Standard error takes whole lines from one thread at a time. Who closed it does not want to know.
fn say(line: &str) {
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

fn open(path: &Path) -> Result<File, OpenError> {
    let fail = |source| OpenError { path: path.to_owned(), source };
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        // A pipe that nobody reads is an error, not a wait.
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(fail)?;
    // Later a reader that is slow for a moment loses nothing.
    let flags = fcntl_getfl(&file).map_err(|error| fail(error.into()))?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(|error| fail(error.into()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sink(pattern: &str, rank: Option<u32>) -> Result<Sink, OpenError> {
        Sink::new(Some(pattern.parse().unwrap()), "h", rank)
    }

    #[test]
    fn a_file_is_for_its_owner_alone_and_is_added_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let name = path.to_str().unwrap();
        for line in ["one\n", "two\n"] {
            sink(name, None).unwrap().write(line, Some(1));
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn each_rank_has_its_file_where_the_name_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().to_str().unwrap().to_owned();
        let sink = sink(&format!("{base}/%h-%p-%r"), None).unwrap();
        // Nothing was said yet, by nobody.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        sink.write("zero\n", Some(0));
        sink.write("one\n", Some(1));
        sink.write("nobody\n", None);
        let read = |rank: &str| {
            let name = format!("{base}/h-{}-{rank}", std::process::id());
            std::fs::read_to_string(name).unwrap()
        };
        assert_eq!(
            (read("0"), read("1"), read("none")),
            ("zero\n".into(), "one\n".into(), "nobody\n".into())
        );
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_told_at_once_in_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no/log");
        let error = sink(missing.to_str().unwrap(), None).unwrap_err().to_string();
        let expected =
            format!("the log file {missing:?} cannot be opened: No such file or directory");
        assert!(error.starts_with(&expected), "{error}");
        assert!(!error.contains('\n'));
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_an_error_and_no_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert!(sink(path.to_str().unwrap(), None).is_err());
    }
}

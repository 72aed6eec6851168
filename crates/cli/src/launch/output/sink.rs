//! Where output goes in the end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Stream;

/// This process's output or error, or both where they are one file.
pub(super) struct Sink {
    stream: Stream,
    /// Whether the last line that was written has no end yet.
    is_open: Mutex<bool>,
}

impl Sink {
    pub(super) fn new(stream: Stream) -> Sink {
        Sink { stream, is_open: Mutex::new(false) }
    }

    /// Writes whole lines; blocks as long as nobody reads.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let Some(last) = bytes.last() else { return Ok(()) };
        let mut is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        let (output, error) = (io::stdout(), io::stderr());
        let to = match self.stream {
            Stream::Error => error.as_fd(),
            Stream::Output => output.as_fd(),
        };
        if *is_open {
            write_all(to, b"\n")?;
        }
        *is_open = *last != b'\n';
        write_all(to, bytes)
    }
}

/// Whether output and error are the same terminal, pipe or file.
pub(super) fn are_one_file() -> bool {
    let identity =
        |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    match (identity(io::stdout().as_fd()), identity(io::stderr().as_fd())) {
        (Ok(output), Ok(error)) => output == error,
        _ => false,
    }
}

/// Past the buffer of the standard library, which would hold back the end of an open line.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // Whoever shares the file may have made it so.
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&to, PollFlags::OUT)], None)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

//! What happens to the sockets when the process exits or forks.
//!
//! A table of descriptors that both hooks can read without a lock: at exit a goodbye is written to
//! each, and nothing else is touched. A place is held while its goodbye is written, and a socket is
//! closed only after its place was given back, so that no goodbye goes to what has got the number of a
//! closed socket; who gives a place back waits for that one write, which never blocks. In the child of
//! a fork each is replaced by /dev/null, so that the connection ends with the parent and not with its
//! last child, and the numbers stay taken until the child drops their owners.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use super::frame::GOODBYE;

/// More connections than this have no goodbye at exit; leaving says it anyway.
const SLOTS: usize = 4096;
const FREE: i32 = -1;
/// A goodbye is being written.
const HELD: i32 = -2;

static TABLE: [AtomicI32; SLOTS] = [const { AtomicI32::new(FREE) }; SLOTS];
static OWNER: AtomicU32 = AtomicU32::new(0);

/// A socket's place in the table; to be dropped before the socket is closed.
pub(super) struct Slot(Option<(usize, i32)>);

impl Slot {
    pub(super) fn new(socket: &OwnedFd) -> Slot {
        let fd = socket.as_raw_fd();
        // From where the last one was found: a process of many ranks would else look at all of theirs.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let start = NEXT.fetch_add(1, Ordering::Relaxed);
        let free = (0..SLOTS).map(|i| start.wrapping_add(i) % SLOTS).find(|&at| {
            TABLE[at].compare_exchange(FREE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        Slot(free.map(|at| (at, fd)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((at, fd)) = self.0 {
            // In the child of a fork the place may have a new owner.
            while TABLE[at].compare_exchange(fd, FREE, Ordering::AcqRel, Ordering::Relaxed)
                == Err(HELD)
            {
                std::thread::yield_now();
            }
        }
    }
}

/// Installs the hooks, once.
pub(super) fn prepare() {
    static HOOKS: Once = Once::new();
    OWNER.store(std::process::id(), Ordering::Release);
    HOOKS.call_once(|| {
        // SAFETY: both hooks are functions that live as long as the program and only do what is
        // allowed at exit and in the child of a fork.
        unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
}

/// False in the child of a fork.
pub(super) fn is_our_process() -> bool {
    OWNER.load(Ordering::Acquire) == std::process::id()
}

extern "C" fn at_exit() {
    if !is_our_process() {
        return;
    }
    for slot in &TABLE {
        let fd = slot.load(Ordering::Relaxed);
        // Who is faster than this is about to close it, and has said goodbye or need not.
        if fd >= 0 && slot.compare_exchange(fd, HELD, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // SAFETY: `GOODBYE` is readable for its length, and the descriptor is the socket's as
            // long as its place is held.
            unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                libc::send(fd, GOODBYE.as_ptr().cast(), GOODBYE.len(), flags);
            }
            slot.store(fd, Ordering::Release);
        }
    }
}

unsafe extern "C" fn in_child() {
    // SAFETY: only calls that are allowed between fork and exec; the path is a C string.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for slot in &TABLE {
            let fd = slot.swap(FREE, Ordering::AcqRel);
            if fd >= 0 && null >= 0 {
                libc::dup3(null, fd, libc::O_CLOEXEC);
            }
        }
        if null >= 0 {
            libc::close(null);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_place_is_not_given_back_while_its_goodbye_is_written() {
        let (socket, _other) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let slot = Slot::new(&socket);
        let (at, fd) = slot.0.unwrap();
        assert_eq!(
            TABLE[at].compare_exchange(fd, HELD, Ordering::AcqRel, Ordering::Relaxed),
            Ok(fd)
        );
        let gives_back = thread::spawn(move || drop(slot));
        thread::sleep(Duration::from_millis(20));
        assert!(!gives_back.is_finished());
        TABLE[at].store(fd, Ordering::Release);
        gives_back.join().unwrap();
        // Another test's socket may have it by now, but not this one's.
        assert_ne!(TABLE[at].load(Ordering::Relaxed), fd);
    }
}

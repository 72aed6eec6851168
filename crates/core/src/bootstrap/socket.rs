//! TCP sockets with a deadline on everything; close-on-exec, without Nagle's delay.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, getpeername,
    getsockname, listen, recv, send, socket_with, sockopt,
};

/// A listening socket that does not block.
pub(super) fn listen_at(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let fd = socket(address.ip())?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, !address.ip().is_unspecified())?;
    }
    bind(&fd, &address)?;
    // Whole worlds connect at once.
    listen(&fd, 4096)?;
    let bound = local_address(fd.as_fd())?;
    Ok((fd, bound))
}

/// Connects, from an address of this host where one is given.
pub(super) fn connect_to(
    to: SocketAddr,
    from: Option<SocketAddr>,
    deadline: Instant,
) -> io::Result<OwnedFd> {
    let fd = socket(to.ip())?;
    if let Some(from) = from {
        bind(&fd, &from)?;
    }
    match connect(&fd, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            wait(fd.as_fd(), PollFlags::OUT, deadline)?;
            sockopt::socket_error(&fd)??;
        }
        Err(error) => return Err(error.into()),
    }
    // A port of this host that nobody listens at can be given to the very socket that asks for it.
    if local_address(fd.as_fd())? == peer_address(fd.as_fd())? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    sockopt::set_tcp_nodelay(&fd, true)?;
    Ok(fd)
}

pub(super) fn local_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(getsockname(fd)?)?)
}

pub(super) fn peer_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    match getpeername(fd)? {
        Some(address) => Ok(SocketAddr::try_from(address)?),
        None => Err(io::ErrorKind::NotConnected.into()),
    }
}

pub(super) fn send_all(fd: BorrowedFd<'_>, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::AGAIN) => wait(fd, PollFlags::OUT, deadline)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) fn recv_exact(
    fd: BorrowedFd<'_>,
    mut buffer: &mut [u8],
    deadline: Instant,
) -> io::Result<()> {
    while !buffer.is_empty() {
        match recv_now(fd, buffer)? {
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(count) => buffer = &mut buffer[count..],
            None => wait(fd, PollFlags::IN, deadline)?,
        }
    }
    Ok(())
}

/// What can be read at once: none if nothing can, 0 at the end.
pub(super) fn recv_now(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match recv(fd, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((count, _)) => return Ok(Some(count)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn wait(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = left.min(Duration::from_secs(3600));
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, flags)], Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn socket(ip: IpAddr) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

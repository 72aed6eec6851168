//! The connecting side of connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use super::handshake::{REFUSED, WELCOME};
use super::secret::{MAGIC, NONCE, Nonces, PROOF, Role, Secret, nonce};
use super::socket;

/// How long one try may take before the next address is tried.
const CONNECT: Duration = Duration::from_secs(3);
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Why a try failed.
pub(super) enum Failed {
    /// Nobody listens there.
    NobodyThere,
    /// The other side has another secret.
    Secret,
    /// The other side is no rank.
    Stranger,
    /// Anything else.
    Io(io::Error),
}

impl Failed {
    fn is_timeout(&self) -> bool {
        matches!(self, Failed::Io(error) if error.kind() == io::ErrorKind::TimedOut)
    }

    pub(super) fn text(&self) -> String {
        match self {
            Failed::NobodyThere => "nobody listens there".into(),
            Failed::Secret => "the secret differs".into(),
            Failed::Stranger => "what listens there is another program".into(),
            Failed::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                "it hung up during the handshake".into()
            }
            Failed::Io(error) => format!("{error}{}", mscclrs_gpu::limit_hint(error)),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Failed::NobodyThere,
            _ => Failed::Io(error),
        }
    }
}

/// Connects once, and proves the secret both ways.
pub(super) fn try_once(
    to: SocketAddr,
    from: Option<SocketAddr>,
    secret: &Secret,
    deadline: Instant,
) -> Result<OwnedFd, Failed> {
    let connected = socket::connect_to(to, from, deadline.min(Instant::now() + CONNECT))?;
    let deadline = deadline.min(Instant::now() + HANDSHAKE);
    let fd = connected.as_fd();
    let connecting = nonce().map_err(|error| Failed::Io(io::Error::other(error)))?;
    socket::send_all(fd, &[&MAGIC[..], &connecting].concat(), deadline)?;
    let mut accepting = [0; NONCE];
    socket::recv_exact(fd, &mut accepting, deadline)?;
    let nonces = Nonces { connecting, accepting };
    socket::send_all(fd, &secret.prove(Role::Connecting, &nonces), deadline)?;
    let mut answer = [0];
    socket::recv_exact(fd, &mut answer, deadline)?;
    match answer {
        [WELCOME] => {}
        [REFUSED] => return Err(Failed::Secret),
        _ => return Err(Failed::Stranger),
    }
    let mut proof = [0; PROOF];
    socket::recv_exact(fd, &mut proof, deadline)?;
    if !secret.verify(Role::Accepting, &nonces, &proof) {
        return Err(Failed::Secret);
    }
    Ok(connected)
}

/// Tries all addresses in turn until one answers or the deadline has passed; gives up at once on a
/// wrong secret. `failing` is called after each round of tries.
pub(super) fn until_deadline(
    addresses: &[SocketAddr],
    from: &[SocketAddr],
    secret: &Secret,
    deadline: Instant,
    mut failing: impl FnMut(&Failed),
) -> Result<OwnedFd, Failed> {
    let mut pause = Duration::from_millis(1);
    let mut last = None;
    loop {
        for &to in addresses {
            let from = from.iter().find(|from| from.is_ipv4() == to.is_ipv4()).copied();
            match try_once(to, from, secret, deadline) {
                Ok(connected) => return Ok(connected),
                Err(Failed::Secret) => return Err(Failed::Secret),
                // The last try is often cut short and then says little.
                Err(failed) => last = last.filter(|_| failed.is_timeout()).or(Some(failed)),
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(last.unwrap_or(Failed::NobodyThere));
        }
        if let Some(last) = &last {
            failing(last);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

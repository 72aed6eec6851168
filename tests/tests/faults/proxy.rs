//! A way to the rendezvous that tells when a rank has joined.
//!
//! Both sides take turns until a rank has proved the secret: hello, nonce, proof, welcome. What the rank
//! says next is that it joins, so the third time that it speaks it has.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const JOINS: u32 = 3;

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) joined: Receiver<()>,
}

impl Proxy {
    /// Passes one connection on to `to`, once somebody listens there.
    pub(crate) fn start(to: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (send, joined) = channel();
        thread::spawn(move || {
            let Ok((rank, _)) = listener.accept() else { return };
            let Some(root) = connect(to) else { return };
            let (from_root, to_rank) = (root.try_clone().unwrap(), rank.try_clone().unwrap());
            let rank_spoke = Arc::new(AtomicBool::new(false));
            let theirs = rank_spoke.clone();
            thread::spawn(move || {
                pass(from_root, to_rank, || theirs.store(false, Ordering::SeqCst), || ());
            });
            let turns = Cell::new(0);
            let count = || {
                if !rank_spoke.swap(true, Ordering::SeqCst) {
                    turns.set(turns.get() + 1);
                }
            };
            pass(rank, root, count, || {
                if turns.get() == JOINS {
                    // The test may have failed meanwhile.
                    let _ = send.send(());
                }
            });
        });
        Proxy { address, joined }
    }
}

fn connect(to: SocketAddr) -> Option<TcpStream> {
    let deadline = Instant::now() + crate::process::START;
    while Instant::now() < deadline {
        if let Ok(stream) = TcpStream::connect(to) {
            return Some(stream);
        }
        thread::sleep(Duration::from_millis(5));
    }
    None
}

/// Until the end of either side, which becomes that of the other. Of each piece, `before` is called
/// before it is handed over and `after` when it has been.
fn pass(mut from: TcpStream, mut to: TcpStream, before: impl Fn(), after: impl Fn()) {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        before();
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
        after();
    }
    // Closed already is as good.
    let _ = to.shutdown(std::net::Shutdown::Both);
}

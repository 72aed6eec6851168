//! Strangers who keep a rendezvous busy, and what they get for it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Bootstrap, TcpBootstrap, UniqueId};

const RANKS: u32 = 4;
/// Threads that connect.
const STRANGERS: u64 = 2;
/// Connections that each of them holds open, the oldest of which it then closes.
const HELD: usize = 200;

/// Ranks come to a rendezvous of which the last one comes only when so many connections without the secret
/// have been made; all of them meet, and no stranger got more than a nonce and a refusal.
pub(crate) fn meet_in(connections: u64) -> Result<()> {
    let lo: InterfaceFilter = "=lo".parse()?;
    let id = UniqueId::create(&lo)?;
    let at = *id.addresses().first().context("an id without an address")?;
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let rank = |rank: u32| {
            let config = Config {
                timeout: Some(Duration::from_secs(120)),
                ..Config::new(rank, RANKS, id.clone())
            };
            move || -> Result<()> {
                let bootstrap = TcpBootstrap::new(config)?;
                let all = bootstrap.all_gather(&[rank as u8])?;
                ensure!(all == [[0], [1], [2], [3]], "{all:?}");
                Ok(())
            }
        };
        let mut ranks: Vec<_> = (0..RANKS - 1).map(|number| scope.spawn(rank(number))).collect();
        let strangers: Vec<_> =
            (0..STRANGERS).map(|_| scope.spawn(|| disturb(at, connections, &made))).collect();
        let disturbed: Result<()> = strangers
            .into_iter()
            .try_for_each(|s| s.join().unwrap_or_else(|_| bail!("a stranger panicked")));
        // Not before the last of them, and also if one of them failed: the others wait for it.
        ranks.push(scope.spawn(rank(RANKS - 1)));
        let met = ranks
            .into_iter()
            .try_for_each(|rank| rank.join().unwrap_or_else(|_| bail!("a rank panicked")));
        disturbed.and(met)
    })
}

fn disturb(at: SocketAddr, connections: u64, made: &AtomicU64) -> Result<()> {
    let mut held = VecDeque::new();
    loop {
        let number = made.fetch_add(1, Ordering::Relaxed);
        if number >= connections {
            return Ok(());
        }
        let mut stream = connect(at).with_context(|| format!("connection {number}"))?;
        // Who is refused may be cut off in the middle of what it says.
        let _ = match number % 5 {
            // Says nothing.
            0 => Ok(()),
            1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
            // As far as the first words go.
            2 => stream.write_all(b"mscclrs\n"),
            3 => stream.write_all(&[0xff; 4096]),
            _ => {
                stream.write_all(b"mscclrs\n").and_then(|()| stream.write_all(&[number as u8; 64]))
            }
        };
        // Hearing what each gets would make a flood of few.
        if number % 100 == 4 {
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            let mut answer = Vec::new();
            let ended = stream.read_to_end(&mut answer);
            ensure!(answer.len() <= 33, "a stranger was told {} bytes ({ended:?})", answer.len());
        }
        held.push_back(stream);
        if held.len() > HELD {
            held.pop_front();
        }
    }
}

/// The kernel's queue of connections may be full for a moment, which is what a flood is for.
fn connect(at: SocketAddr) -> Result<TcpStream> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect_timeout(&at, Duration::from_secs(2)) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

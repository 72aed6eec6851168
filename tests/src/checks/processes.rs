//! Ranks that are processes, one of which is killed while the others' kernels wait for it.
//!
//! The program starts itself again once a rank. A rank ends when its standard input does, so that
//! none outlives the check.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mscclrs_collectives::{AllGather, AllReduce};
use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{TcpBootstrap, UniqueId};
use mscclrs_env::Variable;
use mscclrs_gpu::{BackendKind, Device};

use super::loss::LIMIT;
use crate::memory::Memory;
use crate::world::{self, Rank};

/// Rank, and the ids of the first group and of the one of those who are left.
static ROLE: &Variable = &mscclrs_env::internal::CONFORMANCE_ROLE;
const RANKS: u32 = 3;
const VICTIM: u32 = 1;
/// For a process to open its device and meet the others.
const START: Duration = Duration::from_secs(40);

pub(crate) fn killed(device: &Device) -> Result<()> {
    match ROLE.text() {
        Some(role) => be_a_rank(device.kind(), &role),
        None => watch(device.kind()),
    }
}

/// What a rank said, and when.
struct Said {
    rank: u32,
    at: Instant,
    text: String,
}

/// The ranks' processes, and their inputs, which waiting for them must not close; none outlives this.
struct Children(Vec<(Child, Option<ChildStdin>)>);

impl Drop for Children {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // One that has ended already is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn watch(kind: BackendKind) -> Result<()> {
    let filter = InterfaceFilter::default();
    let ids = [UniqueId::create(&filter)?, UniqueId::create(&filter)?];
    let (send, said) = channel();
    let mut children = Children(Vec::new());
    for rank in 0..RANKS {
        let role = format!("{rank} {} {}", ids[0], ids[1]);
        let mut child = start(kind, rank, &role, send.clone())?;
        let stdin = child.stdin.take();
        children.0.push((child, stdin));
    }
    drop(send);
    for _ in 0..RANKS {
        next(&said, START, "waits")?;
    }
    // Time for the kernels to begin to wait.
    std::thread::sleep(Duration::from_millis(300));
    let killed = Instant::now();
    children.0[VICTIM as usize].0.kill().context("killing a rank")?;
    for _ in 1..RANKS {
        let lost = next(&said, Duration::from_secs(20), "lost")?;
        let took = lost.at.saturating_duration_since(killed);
        let text = &lost.text;
        ensure!(text.contains("rank 1"), "rank {}: no word of rank 1: {text}", lost.rank);
        ensure!(took < LIMIT, "rank {} was told after {took:?}: {text}", lost.rank);
    }
    for _ in 1..RANKS {
        next(&said, START, "again")?;
    }
    let left = (0u32..).zip(&mut children.0).filter(|(rank, _)| *rank != VICTIM);
    for (rank, (child, _)) in left {
        let status = child.wait().context("waiting for a rank")?;
        ensure!(status.success(), "rank {rank} ended with {status}");
    }
    Ok(())
}

fn start(kind: BackendKind, rank: u32, role: &str, send: Sender<Said>) -> Result<Child> {
    let mut child = Command::new(std::env::current_exe().context("finding this program")?)
        .args(["--run", "processes::killed", "--device", kind.name()])
        .env(ROLE.name, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a rank")?;
    let from = child.stdout.take().context("the output of a rank")?;
    std::thread::spawn(move || {
        for text in BufReader::new(from).lines().map_while(Result::ok) {
            if send.send(Said { rank, at: Instant::now(), text }).is_err() {
                return;
            }
        }
    });
    Ok(child)
}

/// The next thing that a rank says, which begins with `word`.
fn next(said: &Receiver<Said>, limit: Duration, word: &str) -> Result<Said> {
    let said = said.recv_timeout(limit).with_context(|| format!("no rank said `{word}`"))?;
    ensure!(said.text.starts_with(word), "rank {}: {} instead of {word}", said.rank, said.text);
    Ok(said)
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", text.replace('\n', " "))?;
    Ok(out.flush()?)
}

fn be_a_rank(kind: BackendKind, role: &str) -> Result<()> {
    std::thread::spawn(|| {
        let mut all = Vec::new();
        // However it ends, whoever started this is gone.
        let _ = std::io::stdin().read_to_end(&mut all);
        std::process::exit(3);
    });
    let words: Vec<&str> = role.split(' ').collect();
    let [rank, first, second] = words[..] else { bail!("{} is `{role}`", ROLE.name) };
    let (number, first, second) =
        (rank.parse::<u32>()?, first.parse::<UniqueId>()?, second.parse::<UniqueId>()?);
    let device = Device::open(kind, world::ordinal(kind, number)?)?;
    {
        let rank = join(number, RANKS, first, &device)?;
        let collectives = rank.only(AllReduce::OneShotLl16, AllGather::Mesh)?;
        let memory = Memory::symmetric(&collectives, 4096)?;
        rank.reduces(&collectives, &memory, 1)?;
        rank.barrier()?;
        say("waits")?;
        if number == VICTIM {
            std::thread::sleep(Duration::from_secs(120));
            bail!("nobody killed this rank");
        }
        match rank.reduces(&collectives, &memory, 2) {
            Ok(()) => bail!("an allreduce without rank {VICTIM} came to a result"),
            Err(error) => say(&format!("lost {error:#}"))?,
        }
    }
    let number = number - (number > VICTIM) as u32;
    let rank = join(number, RANKS - 1, second, &device)?;
    let collectives = rank.only(AllReduce::OneShotLl16, AllGather::Mesh)?;
    let memory = Memory::symmetric(&collectives, 4096)?;
    (0..5).try_for_each(|seed| rank.reduces(&collectives, &memory, seed))?;
    say("again")?;
    rank.barrier()
}

fn join(rank: u32, ranks: u32, id: UniqueId, device: &Device) -> Result<Rank> {
    let config = Config::new(rank, ranks, id);
    Rank::new(Arc::new(TcpBootstrap::new(config)?), device)
}

//! Fuzz targets: all that a rank, the rendezvous or an acceptor reads before and after the proof of
//! the secret, and the texts that say where ranks meet.

use std::cell::{Cell, RefCell};
use std::io;
use std::str::FromStr;
use std::time::Duration;

use mscclrs_fuzz::Target;

use super::collective::message::{self, Failure, Kind};
use super::handshake::{Handshake, Line, MAX_FIRST, REFUSED, WELCOME};
use super::join::{
    JOIN, Join, MAIL, MAX_REPORT, MAX_VERDICT, MAX_WHY, Peer, Report, STREAM, Verdict, take_frame,
};
use super::letter::{self, Letter};
use super::mailbox::Key;
use super::office::First;
use super::secret::{MAGIC, NONCE, Nonces, PROOF, Role, Secret};
use super::wire::{Damaged, Reader};
use super::{Address, InterfaceFilter, RendezvousError, UniqueId};

pub(crate) const HANDSHAKE: Target =
    Target { name: "bootstrap_handshake", run: handshake, seeds: handshake_seeds };
pub(crate) const JOINS: Target = Target { name: "bootstrap_join", run: join, seeds: join_seeds };
pub(crate) const VERDICT: Target =
    Target { name: "bootstrap_verdict", run: verdicts, seeds: verdict_seeds };
pub(crate) const LETTERS: Target =
    Target { name: "bootstrap_letters", run: letters, seeds: letter_seeds };
pub(crate) const REPORTS: Target =
    Target { name: "bootstrap_report", run: reports, seeds: report_seeds };
pub(crate) const GATHER: Target =
    Target { name: "bootstrap_gather", run: gather, seeds: gather_seeds };
pub(crate) const ID: Target = Target { name: "unique_id", run: unique_id, seeds: id_seeds };
pub(crate) const ADDRESS: Target =
    Target { name: "address", run: address, seeds: || texts(&ADDRESSES) };
pub(crate) const FILTER: Target =
    Target { name: "interface_filter", run: filter, seeds: || texts(&FILTERS) };

const ADDRESSES: [&str; 7] = [
    "10.0.0.1:80",
    "node-7.cluster:65535",
    "[::1]:5000",
    "[fe80::1%eth0]:5000",
    "eth0:10.0.0.1:80",
    "eth0.7:[fe80::1%3]:5000",
    "[::ffff:1.2.3.4]:7",
];
const FILTERS: [&str; 5] = ["eth,ib0", "=eth0", "^docker,lo", "^=lo", "eth , =ib0"];

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A stranger, who says what the input says, in pieces.
struct Stranger<'a> {
    says: &'a [u8],
    said: Cell<usize>,
    piece: usize,
    pause: Cell<bool>,
    heard: RefCell<Vec<u8>>,
}

const ACCEPTING: [u8; NONCE] = [7; NONCE];
/// What is said before the proof, and with it.
const HELLO: usize = MAGIC.len() + NONCE;
const PROVED: usize = HELLO + PROOF;

impl Line for Stranger<'_> {
    fn recv_now(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if self.pause.replace(!self.pause.get()) {
            return Ok(None);
        }
        let rest = &self.says[self.said.get()..];
        let count = self.piece.min(rest.len()).min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.said.set(self.said.get() + count);
        Ok(Some(count))
    }

    fn reply(&self, bytes: &[u8]) -> io::Result<()> {
        self.heard.borrow_mut().extend_from_slice(bytes);
        Ok(())
    }

    fn nonce(&self) -> io::Result<[u8; NONCE]> {
        Ok(ACCEPTING)
    }
}

/// Whether the stranger knows the secret, the length of pieces, then what it says.
fn handshake(input: &[u8]) -> bool {
    let Some((&[knows, piece], said)) = input.split_first_chunk() else { return false };
    let secret = Secret::new("a secret");
    let mut says = said.to_vec();
    if knows & 1 == 1
        && let Some(hello) = said.first_chunk::<HELLO>()
    {
        let mut connecting = [0; NONCE];
        connecting.copy_from_slice(&hello[MAGIC.len()..]);
        let nonces = Nonces { connecting, accepting: ACCEPTING };
        says.splice(HELLO..HELLO, secret.prove(Role::Connecting, &nonces));
    }
    let line = Stranger {
        says: &says,
        said: Cell::new(0),
        piece: usize::from(piece).max(1),
        pause: Cell::new(false),
        heard: RefCell::default(),
    };
    let mut handshake = Handshake::new();
    let outcome = loop {
        match handshake.advance(&line, &secret) {
            Ok(None) => {}
            Ok(Some(first)) => break Some(first),
            Err(_) => break None,
        }
    };
    let (read, heard) = (line.said.get(), line.heard.into_inner());
    let welcome = heard.get(NONCE) == Some(&WELCOME);
    assert!(says.starts_with(&MAGIC) || (read <= HELLO && heard.is_empty()));
    assert!(welcome || read <= PROVED, "{read} bytes of a stranger were read");
    assert!(welcome || matches!(heard.get(NONCE..), None | Some([] | [REFUSED])));
    assert_eq!(handshake.is_stranger(), !welcome);
    let Some(first) = outcome else { return false };
    assert!(welcome && knows & 1 == 1, "a stranger was let in");
    assert!((1..=MAX_FIRST).contains(&first.len()));
    assert_eq!(first, says[PROVED + 4..read]);
    true
}

fn handshake_seeds() -> Vec<Vec<u8>> {
    let first = First { purpose: MAIL, from: 1, to: 0, label: 0 }.encode();
    let says = |piece| [&[1, piece], &MAGIC[..], &[3; NONCE], &first, b"more"].concat();
    vec![says(1), says(200)]
}

/// The first message of a connection.
fn join(input: &[u8]) -> bool {
    if input.first() != Some(&JOIN) {
        let Ok(first) = First::decode(input) else { return false };
        assert_eq!(first.encode()[4..], *input);
        return true;
    }
    let Ok(join) = Join::decode(input) else { return false };
    assert_eq!(Join::decode(&join.encode()).as_ref(), Ok(&join));
    true
}

fn join_seeds() -> Vec<Vec<u8>> {
    let join = |build| Join { build, rank: 1, world_size: 2, remaining_ms: 30_000 }.encode();
    let first = |purpose| First { purpose, from: 1, to: 0, label: 3 }.encode()[4..].to_vec();
    vec![
        join(super::build()),
        [&join("another".into())[..], b"what only that build knows"].concat(),
        first(MAIL),
        first(STREAM),
    ]
}

/// The length of pieces, then what a rank says after it joined.
fn reports(input: &[u8]) -> bool {
    frames(input, MAX_REPORT, |frame| Report::decode(frame).map(|report| report.encode()))
}

/// The length of pieces, then what the rendezvous answers.
fn verdicts(input: &[u8]) -> bool {
    frames(input, MAX_VERDICT, |frame| {
        let verdict = Verdict::decode(frame)?;
        if let Verdict::Failed(error) = &verdict {
            let length = error.to_string().len();
            assert!(length < usize::from(MAX_WHY) + 2048, "a sentence of any length");
        }
        Ok(verdict.encode())
    })
}

/// Takes a stream of messages apart as it comes, and writes it again.
fn frames(input: &[u8], most: usize, again: impl Fn(&[u8]) -> Result<Vec<u8>, Damaged>) -> bool {
    let Some((&piece, stream)) = input.split_first() else { return false };
    let (mut inbox, mut whole) = (Vec::new(), Vec::new());
    for piece in stream.chunks(usize::from(piece).max(1)) {
        inbox.extend_from_slice(piece);
        loop {
            match take_frame(&mut inbox, most).map(|frame| frame.map(|frame| again(&frame))) {
                Ok(Some(Ok(frame))) => whole.extend(frame),
                Ok(None) => break,
                Ok(Some(Err(Damaged))) | Err(Damaged) => return false,
            }
        }
    }
    assert_eq!([&whole[..], &inbox].concat(), stream);
    inbox.is_empty()
}

fn peer(addresses: &[&str]) -> Peer {
    let addresses = addresses.iter().filter_map(|address| address.parse().ok()).collect();
    Peer { addresses, host_id: 5, process_id: 6 }
}

fn report_seeds() -> Vec<Vec<u8>> {
    let reports = [
        Report::Reachable(peer(&["10.0.0.1:5", "[fe80::1%2]:6"])),
        Report::Connected,
        Report::Failed { peer: 1, why: "no route to host".into() },
    ];
    let stream = |piece: u8| {
        let frames = reports.iter().flat_map(Report::encode);
        std::iter::once(piece).chain(frames).collect()
    };
    vec![stream(1), stream(255)]
}

fn verdict_seeds() -> Vec<Vec<u8>> {
    let failures = [
        RendezvousError::BuildMismatch { rank: 1, build: "a".into(), expected: "b".into() },
        RendezvousError::DuplicateRank { rank: 2 },
        RendezvousError::MissingRanks {
            ranks: (0..40).collect(),
            world_size: 64,
            waited_ms: 7,
            refused: 8,
        },
        RendezvousError::RankLost { rank: 3 },
        RendezvousError::RankOutOfRange { rank: 9, world_size: 4 },
        RendezvousError::Unconnected { rank: 1, peer: 2, why: "no route to host".into() },
        RendezvousError::WorldSizeMismatch { rank: 1, world_size: 2, expected: 3 },
    ];
    let neighbours = Verdict::Neighbours(vec![
        (0, peer(&["10.0.0.1:5"])),
        (3, peer(&["[::1]:6", "1.2.3.4:7"])),
        (4, peer(&[])),
    ]);
    let admitted = [&[1], &neighbours.encode()[..], &Verdict::Go.encode()].concat();
    let failed = |error| [&[255], &Verdict::Failed(error).encode()[..]].concat();
    failures.into_iter().map(failed).chain([admitted]).collect()
}

/// The length of pieces, then messages of a rank.
fn letters(input: &[u8]) -> bool {
    let Some((&piece, stream)) = input.split_first() else { return false };
    let (mut letter, mut rest, mut whole) = (Letter::default(), stream, Vec::new());
    while !rest.is_empty() {
        let Ok(missing) = letter.missing() else { return false };
        assert!(missing > 0);
        let (now, later) = rest.split_at(usize::from(piece).max(1).min(missing).min(rest.len()));
        match letter.add(now) {
            Ok(Some((key, body))) => {
                whole.extend(letter::header(key, body.len()));
                whole.extend(body);
            }
            Ok(None) => {}
            Err(_) => return false,
        }
        rest = later;
    }
    assert!(stream.starts_with(&whole));
    letter.is_empty()
}

fn letter_seeds() -> Vec<Vec<u8>> {
    let letter = |key, body: &[u8]| [&letter::header(key, body.len()), body].concat();
    let (one, two) = (letter(Key::User(7), b"hello"), letter(Key::Collective, b""));
    vec![[&[1], &one[..], &two].concat(), [&[255], &two[..], &one].concat()]
}

/// The number of ranks, then a message of a collective call.
fn gather(input: &[u8]) -> bool {
    let Some((&ranks, bytes)) = input.split_first() else { return false };
    let mut reader = Reader(bytes);
    let Ok((Some(kind), number)) = message::read_head(&mut reader) else { return false };
    let Ok(outcome) = message::read_outcome(reader, kind, ranks.into()) else { return false };
    assert_eq!(message::write(kind, number, &outcome), bytes);
    let Ok(blocks) = outcome else { return true };
    assert!(blocks.len() <= usize::from(ranks));
    if let Ok(all) = message::by_rank(blocks, ranks.into()) {
        assert_eq!(all.len(), usize::from(ranks));
    }
    true
}

fn gather_seeds() -> Vec<Vec<u8>> {
    let blocks = vec![(1, b"one".to_vec()), (0, Vec::new()), (2, vec![0; 40])];
    let why = || "it left or ended".to_owned();
    let outcomes = [
        (Kind::Gather, Ok(blocks)),
        (Kind::Barrier, Ok(Vec::new())),
        (
            Kind::Barrier,
            Err(Failure::Deadline { rank: 0, peer: 2, waited: Duration::from_secs(30) }),
        ),
        (Kind::Gather, Err(Failure::Gone { rank: 1, peer: 2, why: why() })),
        (Kind::Gather, Err(Failure::Protocol { rank: 1, peer: 2, why: why() })),
    ];
    let seed = |(kind, outcome)| [&[3], &message::write(kind, 1, &outcome)[..]].concat();
    outcomes.into_iter().map(seed).collect()
}

/// Both forms: what has the length of the binary one is that.
fn unique_id(input: &[u8]) -> bool {
    if let Ok(bytes) = <&[u8; UniqueId::BYTES]>::try_from(input) {
        let Ok(id) = UniqueId::from_bytes(bytes) else { return false };
        assert_eq!(id.to_bytes(), *bytes);
        assert_eq!(UniqueId::from_str(&id.to_string()).as_ref().ok(), Some(&id));
        return true;
    }
    let Some(Ok(id)) = text(input).map(UniqueId::from_str) else { return false };
    assert_eq!(UniqueId::from_str(&id.to_string()).as_ref().ok(), Some(&id));
    assert_eq!(UniqueId::from_bytes(&id.to_bytes()).as_ref().ok(), Some(&id));
    true
}

fn id_seeds() -> Vec<Vec<u8>> {
    let secret = "30313233343536373839616263646566";
    let all = format!("mscclrs1:{secret}@10.0.0.1:4,[fe80::1%3]:5,[2001:db8::7]:6,[::1]:65535");
    let binary = UniqueId::from_str(&all).map(|id| id.to_bytes().to_vec());
    let mut seeds = texts(&[&all, &format!("mscclrs1:{secret}@127.0.0.1:80")]);
    seeds.extend(binary);
    seeds
}

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

fn address(input: &[u8]) -> bool {
    let Some(text) = text(input) else { return false };
    // As launchers give it, apart from its port.
    if let Ok(address) = Address::from_parts(text, 5) {
        assert_eq!(address.port, 5);
        assert_eq!(address.to_string().parse::<Address>().ok(), Some(address));
    }
    let Ok(address) = text.parse::<Address>() else { return false };
    assert_eq!(address.to_string().parse::<Address>().ok(), Some(address));
    true
}

fn filter(input: &[u8]) -> bool {
    let Some(Ok(filter)) = text(input).map(InterfaceFilter::from_str) else { return false };
    let shown = filter.to_string();
    let inside = shown.strip_prefix('"').and_then(|shown| shown.strip_suffix('"'));
    let again = inside.and_then(|text| text.parse().ok());
    assert_eq!(again, Some(filter), "{shown}");
    true
}

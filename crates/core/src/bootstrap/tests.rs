//! Groups over TCP, good ones and bad ones.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

type Outcome = std::result::Result<(), String>;

fn loopback() -> InterfaceFilter {
    "=lo".parse::<InterfaceFilter>().unwrap().with_family(Family::V4)
}

fn id() -> UniqueId {
    UniqueId::create(&loopback()).unwrap()
}

fn config(rank: u32, world_size: u32, rendezvous: impl Into<Rendezvous>) -> Config {
    let timeout = Some(Duration::from_secs(5));
    Config { timeout, interfaces: Some(loopback()), ..Config::new(rank, world_size, rendezvous) }
}

/// Runs each configuration on a thread.
fn join_all<T: Send>(
    configs: Vec<Config>,
    body: impl Fn(Result<TcpBootstrap>) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = configs
            .into_iter()
            .map(|config| scope.spawn(move || body(TcpBootstrap::new(config))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn world(n: u32, rendezvous: impl Into<Rendezvous>) -> Vec<Config> {
    let rendezvous = rendezvous.into();
    (0..n).map(|rank| config(rank, n, rendezvous.clone())).collect()
}

/// A port that nobody uses now, and that no other test is given meanwhile: below those that the system
/// gives out by itself, and not where another process of tests begins to look.
fn free_address() -> Address {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 18_000;
    static LOOKED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    loop {
        let looked = LOOKED.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (std::process::id().wrapping_mul(37).wrapping_add(looked)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port as u16)).is_ok() {
            return Address::from_parts("127.0.0.1", port as u16).unwrap();
        }
    }
}

fn failures(configs: Vec<Config>) -> Vec<RendezvousError> {
    join_all(configs, |outcome| match outcome.err().expect("must fail") {
        Error::Rendezvous(error) => error,
        other => panic!("{other}"),
    })
}

fn use_group(group: &TcpBootstrap) {
    let n = group.world_size();
    let rank = group.rank();
    for round in 0..3u8 {
        let mine = vec![rank as u8 ^ round; (rank as usize * 37) % 100];
        let all = group.all_gather(&mine).unwrap();
        for (r, data) in all.iter().enumerate() {
            assert_eq!(data, &vec![r as u8 ^ round; (r * 37) % 100]);
        }
        group.barrier().unwrap();
    }
    let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
    group.send(next, 7, b"second").unwrap();
    group.send(next, 6, b"first").unwrap();
    assert_eq!(group.recv(before, 6).unwrap(), b"first");
    assert_eq!(group.recv(before, 7).unwrap(), b"second");
    group.barrier().unwrap();
}

#[test]
fn two_to_sixteen_ranks_meet_by_unique_id() {
    for n in [1, 2, 3, 5, 8, 16] {
        join_all(world(n, id()), |group| use_group(&group.unwrap()));
    }
}

#[test]
fn ranks_meet_at_an_address_and_again_at_the_same_one() {
    let address = free_address();
    for _ in 0..5 {
        join_all(world(4, address.clone()), |group| use_group(&group.unwrap()));
    }
}

#[test]
fn ranks_meet_at_a_name_and_by_ipv6() {
    let mut named = free_address();
    named.host = Host::Name("localhost".into());
    join_all(world(3, named), |group| use_group(&group.unwrap()));
    if let Ok(listener) = TcpListener::bind("[::1]:0") {
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let address: Address = format!("lo:[::1]:{port}").parse().unwrap();
        join_all(world(3, address), |group| use_group(&group.unwrap()));
    }
}

#[test]
fn sixty_four_ranks_meet_within_seconds() {
    let started = Instant::now();
    let ids = join_all(world(64, id()), |group| {
        let group = group.unwrap();
        group.barrier().unwrap();
        let met = started.elapsed();
        use_group(&group);
        (met, group.peers_on_this_host().len(), group.process_id(0))
    });
    println!("64 ranks met and passed a barrier within {:?}", ids.iter().map(|i| i.0).max());
    assert!(ids.iter().all(|i| i.1 == 64 && i.2 == ids[0].2));
}

#[test]
fn large_messages_cross_without_a_receiver_waiting() {
    join_all(world(2, id()), |group| {
        let group = group.unwrap();
        let peer = 1 - group.rank();
        let data: Vec<u8> =
            (0..8 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        group.send(peer, 1, &data).unwrap();
        group.send(group.rank(), 1, b"").unwrap();
        assert!(group.recv(peer, 1).unwrap() == data);
        assert_eq!(group.recv(group.rank(), 1).unwrap(), b"");
        group.barrier().unwrap();
    });
}

#[test]
fn streams_connect_both_ways() {
    join_all(world(3, id()), |group| {
        let group = group.unwrap();
        for peer in (0..3).filter(|&peer| peer != group.rank()) {
            let mut stream = TcpStream::from(group.stream(peer, 4).unwrap());
            stream.write_all(&[group.rank() as u8]).unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            assert_eq!(u32::from(byte[0]), peer);
        }
    });
}

#[test]
fn a_wrong_number_of_ranks_is_the_same_error_everywhere() {
    let rendezvous = free_address();
    let mut configs = world(4, rendezvous);
    configs[2].world_size = 3;
    let errors = failures(configs);
    let expected = RendezvousError::WorldSizeMismatch { rank: 2, world_size: 3, expected: 4 };
    assert!(errors.iter().all(|error| *error == expected), "{errors:?}");
}

#[test]
fn another_build_is_the_same_error_everywhere() {
    let mut configs = world(3, id());
    configs[1].build = "9.9.9".into();
    let errors = failures(configs);
    assert!(matches!(errors[0], RendezvousError::BuildMismatch { .. }), "{errors:?}");
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

#[test]
fn a_rank_claimed_twice_is_the_same_error_everywhere() {
    let mut configs = world(4, id());
    configs[3].rank = 1;
    let errors = failures(configs);
    assert!(errors.iter().all(|e| *e == RendezvousError::DuplicateRank { rank: 1 }), "{errors:?}");
}

#[test]
fn a_rank_out_of_range_is_the_same_error_everywhere() {
    for wrong in [4, u32::MAX] {
        let mut configs = world(4, id());
        configs[3].rank = wrong;
        let expected = RendezvousError::RankOutOfRange { rank: wrong, world_size: 4 };
        assert!(failures(configs).iter().all(|error| *error == expected));
    }
}

#[test]
fn missing_ranks_are_named_on_every_rank() {
    for rendezvous in [Rendezvous::from(id()), Rendezvous::from(free_address())] {
        let mut configs = world(5, rendezvous);
        configs.remove(3);
        configs.remove(1);
        for config in &mut configs {
            config.timeout = Some(Duration::from_millis(400));
        }
        for error in failures(configs) {
            let RendezvousError::MissingRanks { ranks, world_size: 5, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(ranks, &[1, 3]);
            assert!(error.to_string().contains("2 of 5 ranks did not come"), "{error}");
        }
    }
}

#[test]
fn without_a_rendezvous_the_address_is_named() {
    let mut alone = config(1, 2, free_address());
    alone.timeout = Some(Duration::from_millis(200));
    let error = TcpBootstrap::new(alone).err().unwrap();
    assert!(matches!(error, Error::NoRendezvous { rank: 1, .. }), "{error}");
    assert!(error.to_string().contains("nobody listens"), "{error}");
}

#[test]
fn a_wrong_secret_is_refused_and_counted() {
    let mut configs = world(3, free_address());
    for config in &mut configs {
        config.secret = Some(Secret::new("right one"));
        config.timeout = Some(Duration::from_millis(600));
    }
    configs[2].secret = Some(Secret::new("wrong one"));
    let errors = join_all(configs, |outcome| outcome.err().unwrap());
    assert!(matches!(errors[2], Error::SecretRefused { .. }), "{}", errors[2]);
    for error in &errors[..2] {
        assert!(
            error.to_string().contains("1 connection was refused, whose secret differs"),
            "{error}"
        );
    }
}

#[test]
fn an_unknown_host_is_told_at_once_by_every_rank() {
    // No resolver is asked for a name whose label is longer than any can be.
    let mut address = free_address();
    address.host = Host::Name("x".repeat(64));
    let configs = (0..2).map(|rank| Config {
        timeout: Some(Duration::from_secs(60)),
        ..config(rank, 2, address.clone())
    });
    let started = Instant::now();
    for error in join_all(configs.collect(), |outcome| outcome.err().unwrap()) {
        assert!(matches!(error, Error::UnknownHost { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&address.to_string()) && text.contains("MASTER_ADDR"), "{text}");
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn a_public_address_needs_a_secret() {
    let error = TcpBootstrap::new(config(1, 2, "8.8.8.8:7".parse::<Address>().unwrap()));
    assert!(matches!(error.err().unwrap(), Error::Insecure { .. }));
}

#[test]
fn garbage_does_not_disturb() {
    let id = id();
    let at = id.addresses()[0];
    let mut strangers = Vec::new();
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"mscclrs\n", &[0xff; 4096], &[0; 40]] {
        let mut stranger = TcpStream::connect(at).unwrap();
        let _ = stranger.write_all(bytes);
        strangers.push(stranger);
    }
    // One that goes through the handshake as far as it can without the secret.
    let mut stranger = TcpStream::connect(at).unwrap();
    stranger.write_all(b"mscclrs\n").unwrap();
    stranger.write_all(&[7; 32 + 32]).unwrap();
    let mut answer = Vec::new();
    stranger.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    stranger.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 33, "a nonce and a refusal, no proof");
    join_all(world(3, id), |group| use_group(&group.unwrap()));
}

#[test]
fn a_flood_of_strangers_does_not_stop_a_rendezvous() {
    let id = id();
    let at = id.addresses()[0];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut held = std::collections::VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    let limit = Duration::from_millis(50);
                    if let Ok(stream) = TcpStream::connect_timeout(&at, limit) {
                        held.push_back(stream);
                    }
                    if held.len() > 200 {
                        held.pop_front();
                    }
                }
            });
        }
        thread::sleep(Duration::from_millis(100));
        let outcomes: Vec<Outcome> = join_all(world(4, id.clone()), |group| {
            group.and_then(|group| group.barrier()).map_err(|error| error.to_string())
        });
        stop.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(|outcome| outcome.is_ok()), "{outcomes:?}");
    });
}

#[test]
fn damaged_messages_behind_the_secret_do_no_harm() {
    let id = id();
    let secret = id.secret();
    let mut configs = world(2, id.clone());
    let deadline = Instant::now() + Duration::from_secs(5);
    let at: Vec<SocketAddr> = id.addresses().to_vec();
    for body in [&[0u8][..], &[1; 20], &[join::JOIN, 255, 255, 0], &[9; 60000]] {
        let fd = dial::until_deadline(&at, &[], &secret, deadline, |_| {}).ok().unwrap();
        let mut stream = TcpStream::from(fd);
        let mut message = (body.len() as u32).to_le_bytes().to_vec();
        message.extend_from_slice(body);
        stream.write_all(&message).unwrap();
    }
    for length in [0u32, u32::MAX, 1 << 20] {
        let fd = dial::until_deadline(&at, &[], &secret, deadline, |_| {}).ok().unwrap();
        TcpStream::from(fd).write_all(&length.to_le_bytes()).unwrap();
    }
    configs[0].timeout = Some(Duration::from_secs(3));
    join_all(configs, |group| use_group(&group.unwrap()));
}

/// A rank that does by hand what a rank says to the rendezvous.
struct Scripted(TcpStream);

impl Scripted {
    fn join(id: &UniqueId, rank: u32, world_size: u32) -> Scripted {
        let deadline = Instant::now() + Duration::from_secs(5);
        let fd = dial::until_deadline(id.addresses(), &[], &id.secret(), deadline, |_| {});
        let fd = fd.ok().unwrap();
        let join = join::Join { build: build(), rank, world_size, remaining_ms: 5000 };
        let mut stream = TcpStream::from(fd);
        stream.write_all(&join::framed(wire::Writer(join.encode()))).unwrap();
        Scripted(stream)
    }

    fn report(&mut self, report: &join::Report) {
        self.0.write_all(&report.encode()).unwrap();
    }

    fn hear(&mut self) -> join::Verdict {
        self.0.set_nonblocking(false).unwrap();
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut body).unwrap();
        join::Verdict::decode(&body).unwrap()
    }
}

#[test]
fn a_rank_that_ends_before_all_have_come_is_named() {
    let id = id();
    let rank = Scripted::join(&id, 2, 4);
    let errors = thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(150));
            drop(rank);
        });
        failures(world(4, id).into_iter().take(2).collect())
    });
    assert!(errors.iter().all(|e| *e == RendezvousError::RankLost { rank: 2 }), "{errors:?}");
}

#[test]
fn a_rank_that_ends_before_it_is_connected_is_named_at_once() {
    for scripted in 0..7 {
        let (id, started) = (id(), Instant::now());
        let mut configs = world(7, id.clone());
        configs.remove(scripted as usize);
        let mut rank = Scripted::join(&id, scripted, 7);
        // Others wait for it to connect, or for it to accept.
        let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = vec![deaf.local_addr().unwrap()];
        rank.report(&join::Report::Reachable(join::Peer { addresses, ..Default::default() }));
        let errors = thread::scope(|scope| {
            scope.spawn(move || {
                let verdict = rank.hear();
                assert!(matches!(&verdict, join::Verdict::Neighbours(peers) if !peers.is_empty()));
                thread::sleep(Duration::from_millis(20));
                drop((rank, deaf));
            });
            failures(configs)
        });
        let lost = RendezvousError::RankLost { rank: scripted };
        assert!(errors.iter().all(|error| *error == lost), "{errors:?}");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

#[test]
fn two_ranks_that_cannot_be_connected_are_the_same_error_everywhere() {
    let id = id();
    let mut configs = world(3, id.clone());
    configs.remove(2);
    let mut rank = Scripted::join(&id, 2, 3);
    rank.report(&join::Report::Reachable(join::Peer::default()));
    let errors = thread::scope(|scope| {
        let other = scope.spawn(move || {
            rank.hear();
            rank.report(&join::Report::Failed { peer: 0, why: "no route to host".into() });
            rank.hear()
        });
        let errors = failures(configs);
        assert!(
            matches!(other.join().unwrap(), join::Verdict::Failed(error) if error == errors[0])
        );
        errors
    });
    let found = RendezvousError::Unconnected { rank: 2, peer: 0, why: "no route to host".into() };
    assert!(errors.iter().all(|error| *error == found), "{errors:?}");
    assert!(found.to_string().starts_with("rank 2 cannot be connected with rank 0: no route"));
}

#[test]
fn a_rank_is_connected_with_its_neighbours_only() {
    join_all(world(40, id()), |group| {
        let group = group.unwrap();
        for round in 0..3u8 {
            group.all_gather(&[round]).unwrap();
            group.barrier().unwrap();
        }
        assert!(group.connections() <= 3, "{}", group.connections());
    });
}

#[test]
fn whoever_is_waited_for_the_rank_that_was_lost_is_named() {
    for victim in 0..6 {
        let (started, all_are_here) = (Instant::now(), std::sync::Barrier::new(6));
        join_all(world(6, id()), |group| {
            let group = group.unwrap();
            group.barrier().unwrap();
            all_are_here.wait();
            let rank = group.rank();
            if rank == victim {
                return group.die();
            }
            // In a ring, each waits for the next, and goes as soon as it is told.
            let error = match rank % 2 {
                0 => group.recv((rank + 1) % 6, 3).unwrap_err(),
                _ => group.all_gather(b"x").unwrap_err(),
            };
            assert!(matches!(error, Error::PeerGone { peer, .. } if peer == victim), "{error}");
            assert_eq!(group.lost().map(|loss| loss.rank), Some(victim));
            // Later calls need not wait to know.
            assert!(group.send((rank + 1) % 6, 3, b"x").is_err());
        });
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

#[test]
fn a_peer_that_left_is_named_at_once() {
    let started = Instant::now();
    join_all(world(3, id()), |group| {
        let group = group.unwrap();
        group.barrier().unwrap();
        if group.rank() == 2 {
            group.send(1, 1, b"bye").unwrap();
            return;
        }
        if group.rank() == 1 {
            assert_eq!(group.recv(2, 1).unwrap(), b"bye");
        }
        let error = group.recv(2, 1).unwrap_err();
        assert!(matches!(error, Error::PeerGone { peer: 2, .. }), "{error}");
        while group.send(2, 1, b"x").is_ok() {
            assert!(started.elapsed() < Duration::from_secs(4));
        }
    });
    assert!(started.elapsed() < Duration::from_secs(4));
}

#[test]
fn a_peer_that_left_is_known_across_one_that_left_before() {
    let (started, turns) = (Instant::now(), std::sync::Barrier::new(8));
    join_all(world(8, id()), |group| {
        let group = group.unwrap();
        let rank = group.rank();
        if rank == 0 {
            // The way that the word of rank 7 takes to rank 0 is by ranks 3 and 1.
            group.send(7, 1, b"hello").unwrap();
        }
        group.barrier().unwrap();
        turns.wait();
        match rank {
            3 => drop(group),
            0 => {
                let error = group.recv(7, 2).unwrap_err();
                assert!(matches!(error, Error::PeerGone { peer: 7, .. }), "{error}");
                assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
            }
            7 => {
                assert_eq!(group.recv(0, 1).unwrap(), b"hello");
                thread::sleep(Duration::from_millis(100));
            }
            _ => thread::sleep(Duration::from_millis(1500)),
        }
    });
}

#[test]
fn a_peer_that_is_late_is_named_at_the_deadline() {
    let mut configs = world(2, id());
    configs[0].timeout = Some(Duration::from_millis(300));
    configs[1].timeout = Some(Duration::from_millis(1000));
    join_all(configs, |group| {
        let group = group.unwrap();
        if group.rank() == 0 {
            let error = group.recv(1, 9).unwrap_err();
            assert!(matches!(error, Error::Deadline { peer: 1, rank: 0, .. }), "{error}");
            group.send(1, 1, b"done").unwrap();
        } else {
            group.recv(0, 1).unwrap();
        }
    });
}

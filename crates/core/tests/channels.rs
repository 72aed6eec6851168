//! Memory channels and semaphores between ranks that are threads.
#![allow(clippy::unwrap_used)]

mod common;

use common::{ChannelArgs, Rank, kernel, on_ranks};
use mscclrs_core::{Error, MemoryChannel, register_launch_tag};
use mscclrs_gpu::Buffer;

const BYTES: u64 = 4096;

fn pattern(rank: u32, length: u64) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + 7 + rank as u64 * 101) as u8).collect()
}

fn fill(rank: &Rank, data: &Buffer) {
    data.write(&rank.stream, 0, &pattern(rank.rank(), BYTES)).unwrap();
    rank.synchronize().unwrap();
    rank.comm.bootstrap().barrier().unwrap();
}

fn read(rank: &Rank, data: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; data.bytes() as usize];
    data.read(&rank.stream, 0, &mut bytes).unwrap();
    bytes
}

fn run(rank: &Rank, name: &str, channel: &MemoryChannel, shape: (u64, u64, u64, u64)) {
    let (to, from, bytes, flag) = shape;
    let guard = rank.comm.guard(register_launch_tag(name));
    let args = ChannelArgs { guard, channel: channel.device_handle(), to, from, bytes, flag };
    rank.launch(kernel(name), 32, &args).unwrap();
}

/// Offsets and lengths that meet every inner path of a copy.
const SHAPES: [(u64, u64, u64); 9] = [
    (0, 2048, 1024),
    (1, 2048, 1000),
    (2048, 3, 777),
    (2051, 3, 777),
    (2052, 8, 1201),
    (2048, 16, 0),
    (2049, 17, 1),
    (2063, 31, 1500),
    (2064, 32, 15),
];

fn moved(name: &'static str) {
    on_ranks(2, |rank| {
        let data = rank.buffer(BYTES);
        let peer = 1 - rank.rank();
        let channel = rank.channel(peer, &data);
        for (to, from, bytes) in SHAPES {
            fill(&rank, &data);
            run(&rank, name, &channel, (to, from, bytes, 0));
            rank.synchronize().unwrap();
            let mut expected = pattern(rank.rank(), BYTES);
            let theirs = pattern(peer, BYTES);
            expected[to as usize..][..bytes as usize]
                .copy_from_slice(&theirs[from as usize..][..bytes as usize]);
            assert!(read(&rank, &data) == expected, "{name} of {bytes} bytes at {from} to {to}");
        }
    });
}

#[test]
fn put_moves_any_alignment_and_length() {
    moved("put");
}

#[test]
fn get_moves_any_alignment_and_length() {
    moved("get");
}

#[test]
fn packets_arrive_and_their_memory_can_be_used_again() {
    for (name, unit) in [("packets8", 4), ("packets16", 8)] {
        on_ranks(2, |rank| {
            let data = rank.buffer(BYTES);
            let peer = 1 - rank.rank();
            let channel = rank.channel(peer, &data);
            for (flag, count) in [(1, 1), (2, 100), (3, 37), (u64::from(u32::MAX), 128)] {
                let bytes = unit * count;
                fill(&rank, &data);
                run(&rank, name, &channel, (2048, 4, bytes, flag));
                rank.synchronize().unwrap();
                let expected = &pattern(peer, BYTES)[4..][..bytes as usize];
                assert!(
                    &read(&rank, &data)[2048..][..bytes as usize] == expected,
                    "{name} {count}"
                );
            }
        });
    }
}

#[test]
fn words_are_written_to_and_read_from_the_peer() {
    on_ranks(2, |rank| {
        let data = rank.buffer(BYTES);
        let peer = 1 - rank.rank();
        let channel = rank.channel(peer, &data);
        fill(&rank, &data);
        let first = 1000 * (1 + rank.rank() as u64);
        run(&rank, "write_words", &channel, (1024, 0, 400, first));
        run(&rank, "read_words", &channel, (3072, 0, 400, 0));
        rank.synchronize().unwrap();
        let bytes = read(&rank, &data);
        for i in 0..100 {
            let word = u32::from_le_bytes(bytes[1024 + 4 * i..][..4].try_into().unwrap());
            assert_eq!(word as usize, 1000 * (1 + peer as usize) + i);
        }
        assert!(bytes[3072..][..400] == pattern(peer, BYTES)[..400]);
    });
}

#[test]
fn poll_sees_each_signal_once() {
    on_ranks(2, |rank| {
        let data = rank.buffer(BYTES);
        let channel = rank.channel(1 - rank.rank(), &data);
        let polled = || {
            run(&rank, "poll_once", &channel, (0, 0, 0, 0));
            rank.synchronize().unwrap();
            u32::from_le_bytes(read(&rank, &data)[..4].try_into().unwrap())
        };
        let barrier = || rank.comm.bootstrap().barrier().unwrap();
        assert_eq!(polled(), 0);
        barrier();
        rank.launch_semaphore("send_signals", channel.semaphore(), 2).unwrap();
        rank.synchronize().unwrap();
        barrier();
        assert_eq!([polled(), polled(), polled()], [1, 1, 0]);
    });
}

#[test]
fn signals_and_waits_pair_up_among_all_ranks() {
    for n in [2, 3, 5, 8] {
        on_ranks(n, |rank| {
            let connections: Vec<_> = rank.peers().map(|peer| (peer, 3)).collect();
            // All sends first: nobody waits for a peer that waits for him.
            let config = Default::default();
            let futures: Vec<_> = connections
                .iter()
                .map(|&(peer, tag)| rank.comm.connect(&config, peer, tag).unwrap())
                .collect();
            let connections: Vec<_> = futures.into_iter().map(|f| f.get().unwrap()).collect();
            let futures: Vec<_> = connections
                .iter()
                .map(|connection| rank.comm.build_semaphore(connection, 3).unwrap())
                .collect();
            let semaphores: Vec<_> = futures.into_iter().map(|f| f.get().unwrap()).collect();
            for semaphore in &semaphores {
                rank.launch_semaphore("send_signals", semaphore, 5).unwrap();
            }
            for semaphore in &semaphores {
                rank.launch_semaphore("wait_signals", semaphore, 5).unwrap();
            }
            rank.synchronize().unwrap();
        });
    }
}

#[test]
fn futures_of_one_tag_resolve_in_the_order_they_were_made() {
    on_ranks(2, |rank| {
        let peer = 1 - rank.rank();
        let sizes = [256u64, 512, 1024, 2048];
        let memories: Vec<_> = sizes
            .iter()
            .map(|&bytes| rank.comm.register_memory(&rank.buffer(bytes)).unwrap())
            .collect();
        for memory in &memories {
            rank.comm.send_memory(memory, peer, 5).unwrap();
        }
        let mut futures: Vec<_> =
            sizes.iter().map(|_| rank.comm.recv_memory(peer, 5).unwrap()).collect();
        // The last first, one never.
        let last = futures.pop().unwrap().get().unwrap();
        drop(futures.remove(1));
        let rest: Vec<u64> = futures.into_iter().map(|f| f.get().unwrap().bytes()).collect();
        assert_eq!((rest, last.bytes()), (vec![256, 1024], 2048));
        assert_eq!(last.rank(), peer);
        rank.comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_future_asked_while_another_thread_has_the_turn_can_be_asked_again() {
    on_ranks(2, |rank| {
        let peer = 1 - rank.rank();
        let memory = rank.comm.register_memory(&rank.buffer(256)).unwrap();
        rank.comm.send_memory(&memory, peer, 1).unwrap();
        let connection = rank.connect(peer, 2);
        let received = rank.comm.recv_memory(peer, 1).unwrap();
        let semaphore = rank.comm.build_semaphore(&connection, 1).unwrap();
        std::thread::scope(|scope| {
            let turn = rank.comm.enter().unwrap();
            let (received, semaphore) = (&received, &semaphore);
            let other = scope.spawn(move || {
                // The second resolves the first on its way.
                assert!(matches!(semaphore.get(), Err(Error::Busy { .. })));
                assert!(matches!(received.get(), Err(Error::Busy { .. })));
            });
            other.join().unwrap();
            drop(turn);
        });
        assert_eq!(received.get().unwrap().bytes(), 256);
        let semaphore = semaphore.get().unwrap();
        rank.launch_semaphore("send_signals", &semaphore, 1).unwrap();
        rank.launch_semaphore("wait_signals", &semaphore, 1).unwrap();
        rank.synchronize().unwrap();
        rank.comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_message_of_another_kind_is_an_error_that_names_both() {
    on_ranks(2, |rank| {
        let peer = 1 - rank.rank();
        let memory = rank.comm.register_memory(&rank.buffer(256)).unwrap();
        rank.comm.send_memory(&memory, peer, 1).unwrap();
        let connection = rank.connect(peer, 2);
        let error = rank.comm.build_semaphore(&connection, 1).unwrap().get().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("memory (send_memory)"), "{text}");
        assert!(text.contains("semaphore (build_semaphore)"), "{text}");
        rank.comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn serialized_memory_is_parsed_not_trusted() {
    on_ranks(2, |rank| {
        let memory = rank.comm.register_memory(&rank.buffer(256)).unwrap();
        let bytes = memory.serialize();
        let all = rank.comm.bootstrap().all_gather(&bytes).unwrap();
        let theirs = &all[1 - rank.rank() as usize];
        for length in 0..theirs.len() {
            assert!(rank.comm.deserialize_memory(&theirs[..length]).is_err());
        }
        for at in 0..theirs.len() {
            let mut changed = theirs.clone();
            changed[at] ^= 0x80;
            // Some bytes may differ without harm; none may end in anything but a result.
            let _ = rank.comm.deserialize_memory(&changed);
        }
        assert!(rank.comm.deserialize_memory(&bytes).is_err(), "its own");
        let remote = rank.comm.deserialize_memory(theirs).unwrap();
        assert_eq!((remote.bytes(), remote.is_local()), (256, false));
        rank.comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_reused_token_begins_at_zero_and_its_first_wait_blocks() {
    on_ranks(2, |rank| {
        let peer = 1 - rank.rank();
        let connection = rank.connect(peer, 1);
        for round in 0..1000 {
            let semaphore = rank.semaphore(&connection, 2);
            // A signal that nobody waits for stays in the token of every second round.
            if round % 2 == 0 {
                rank.launch_semaphore("send_signals", &semaphore, 1).unwrap();
            }
        }
        let semaphore = rank.semaphore(&connection, 2);
        rank.launch_semaphore("wait_signals", &semaphore, 1).unwrap();
        let done = rank.stream.synchronize_within(std::time::Duration::from_millis(50)).unwrap();
        assert!(!done, "the first wait of a fresh semaphore did not block");
        rank.comm.bootstrap().barrier().unwrap();
        // On a stream of its own: the one of before waits.
        let other =
            Rank { comm: rank.comm.clone(), stream: rank.comm.device().create_stream().unwrap() };
        let function = other.comm.device().function(kernel("send_signals")).unwrap();
        let args = common::SemaphoreArgs {
            guard: other.comm.guard(0),
            semaphore: semaphore.device_handle(),
            count: 1,
        };
        // SAFETY: the semaphore lives until the end of the test.
        unsafe { other.stream.launch(&function, mscclrs_gpu::Grid::new(1, 32), &args).unwrap() };
        rank.synchronize().unwrap();
        rank.comm.bootstrap().barrier().unwrap();
    });
}

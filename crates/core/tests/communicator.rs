//! The communicator itself: its turn, its order, its time limit, its end.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Rank, SemaphoreArgs, kernel, on_bootstraps, on_ranks, timeout};
use mscclrs_core::{Communicator, Error, LocalBootstrap, WaitCause};
use mscclrs_gpu::{BackendKind, Device, Grid, Stream};

/// Launches on `stream` without the communicator's order.
fn launch_apart(rank: &Rank, stream: &Stream, name: &str, semaphore: &mscclrs_core::Semaphore) {
    let function = rank.comm.device().function(kernel(name)).unwrap();
    let semaphore = semaphore.device_handle();
    let args = SemaphoreArgs { guard: rank.comm.guard(0), semaphore, count: 1 };
    // SAFETY: the semaphore outlives the launch in these tests.
    unsafe { stream.launch(&function, Grid::new(1, 32), &args).unwrap() };
}

#[test]
fn a_second_thread_gets_an_error_not_a_race() {
    on_ranks(1, |rank| {
        let turn = rank.comm.enter().unwrap();
        // The thread that has the turn may take it again.
        rank.comm.order(&rank.stream).unwrap();
        let other = |comm: &Communicator| {
            std::thread::scope(|scope| scope.spawn(|| comm.enter().map(|_| ())).join().unwrap())
        };
        assert!(matches!(other(&rank.comm), Err(Error::Busy { rank: 0 })));
        drop(turn);
        other(&rank.comm).unwrap();
    });
}

#[test]
fn an_operation_on_another_stream_waits_for_the_one_before() {
    on_ranks(2, |rank| {
        let semaphore = rank.semaphore(&rank.connect(1 - rank.rank(), 1), 1);
        let second = rank.comm.device().create_stream().unwrap();
        let apart = rank.comm.device().create_stream().unwrap();
        rank.launch_semaphore("wait_signals", &semaphore, 1).unwrap();
        rank.comm.order(&second).unwrap();
        let buffer = rank.buffer(64);
        buffer.fill(&second, 1).unwrap();
        assert!(!second.synchronize_within(Duration::from_millis(50)).unwrap());
        // Back on the first stream: nothing to wait for but the second.
        rank.comm.order(&rank.stream).unwrap();
        rank.comm.bootstrap().barrier().unwrap();
        launch_apart(&rank, &apart, "send_signals", &semaphore);
        rank.comm.synchronize(&second).unwrap();
        rank.synchronize().unwrap();
        rank.comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_capture_on_another_stream_begins_after_the_work_before() {
    on_ranks(1, |rank| {
        let second = rank.comm.device().create_stream().unwrap();
        let buffer = rank.buffer(1 << 20);
        rank.comm.order(&rank.stream).unwrap();
        buffer.fill(&rank.stream, 1).unwrap();
        let graph = second
            .capture(|stream| {
                rank.comm.order(stream)?;
                assert!(rank.stream.is_idle()?, "the work before has ended");
                buffer.fill(stream, 2)?;
                rank.comm.order(stream)
            })
            .unwrap();
        let graph = graph.instantiate().unwrap();
        for _ in 0..3 {
            rank.comm.order(&rank.stream).unwrap();
            buffer.fill(&rank.stream, 1).unwrap();
            rank.comm.launch_graph(&graph, &second).unwrap();
            rank.comm.synchronize(&second).unwrap();
            let mut byte = [0];
            buffer.read(&second, 0, &mut byte).unwrap();
            assert_eq!(byte, [2]);
        }
    });
}

#[test]
fn an_operation_outside_of_an_open_capture_is_refused() {
    on_ranks(1, |rank| {
        let second = rank.comm.device().create_stream().unwrap();
        rank.comm.order(&rank.stream).unwrap();
        rank.stream
            .capture(|stream| -> mscclrs_core::Result<()> {
                rank.comm.order(stream)?;
                assert!(matches!(rank.comm.order(&second), Err(Error::Order { .. })));
                Ok(())
            })
            .unwrap();
        rank.comm.order(&second).unwrap();
    });
}

#[test]
fn two_captures_at_once_are_refused_one_after_the_other_not() {
    on_ranks(1, |rank| {
        let second = rank.comm.device().create_stream().unwrap();
        let ordered = |stream: &Stream, work: &dyn Fn() -> mscclrs_core::Result<()>| {
            stream.capture(|stream| {
                rank.comm.order(stream)?;
                work()
            })
        };
        let refused = ordered(&rank.stream, &|| {
            let inner = second.capture(|second| rank.comm.order(second));
            match inner.err() {
                Some(Error::Order { what }) => {
                    assert!(what.contains("end that capture first"), "{what}");
                }
                other => panic!("{other:?}"),
            }
            // The one that was there first goes on.
            rank.comm.order(&rank.stream)
        });
        refused.unwrap();
        for stream in [&second, &rank.stream, &rank.stream] {
            ordered(stream, &|| Ok(())).unwrap();
        }
        // A capture that came to nothing is over too.
        let failed = ordered(&rank.stream, &|| Err(Error::Order { what: "a test".into() }));
        assert!(failed.is_err());
        ordered(&second, &|| Ok(())).unwrap();
    });
}

#[test]
fn streams_of_one_capture_are_ordered() {
    on_ranks(1, |rank| {
        let second = rank.comm.device().create_stream().unwrap();
        let event = rank.comm.device().create_event(false).unwrap();
        let buffer = rank.buffer(1 << 20);
        let graph = rank.stream.capture(|stream| {
            rank.comm.order(stream)?;
            stream.record(&event)?;
            second.wait(&event)?;
            for value in 1..=20u8 {
                let stream = if value % 2 == 0 { stream } else { &second };
                rank.comm.order(stream)?;
                buffer.fill(stream, value)?;
            }
            Ok::<_, Error>(())
        });
        let exec = graph.unwrap().instantiate().unwrap();
        for _ in 0..5 {
            rank.comm.launch_graph(&exec, &rank.stream).unwrap();
            rank.synchronize().unwrap();
            let mut bytes = vec![0; 1 << 20];
            buffer.read(&rank.stream, 0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 20));
        }
    });
}

#[test]
fn a_capture_that_comes_to_nothing_lets_go_of_what_was_dropped() {
    on_ranks(2, |rank| {
        let peer = 1 - rank.rank();
        let other = rank.comm.device().create_stream().unwrap();
        let event = rank.comm.device().create_event(false).unwrap();
        let data = rank.buffer(256);
        let channel = rank.channel(peer, &data);
        // Both have what the other offers.
        rank.comm.bootstrap().barrier().unwrap();
        let captured = rank.stream.capture(|stream| {
            rank.comm.order(stream)?;
            stream.record(&event)?;
            other.wait(&event)?;
            // Work that the capture does not join again.
            data.fill(&other, 1)?;
            drop(channel);
            // From here on only the graph would keep it.
            rank.comm.reclaim()
        });
        assert!(captured.is_err());
        assert_eq!(rank.stream.capture_id().unwrap(), None);
        rank.comm.reclaim().unwrap();
        rank.comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn a_graph_can_be_replayed_when_its_communicator_was_dropped_during_the_capture() {
    on_ranks(1, |rank| {
        let Rank { comm, stream } = rank;
        let device = comm.device().clone();
        let memory =
            comm.register_memory(&device.alloc(64, mscclrs_gpu::MemoryKind::Shareable).unwrap());
        let memory = memory.unwrap();
        let target = device.alloc(64, mscclrs_gpu::MemoryKind::Plain).unwrap();
        let mut comm = Some((comm, memory));
        let graph = stream.capture(|stream| {
            let (comm, memory) = comm.take().unwrap();
            comm.order(stream)?;
            // SAFETY: the graph keeps what is dropped while it is captured.
            unsafe { stream.copy(target.address(), memory.address(), 64)? };
            drop(memory);
            drop(comm);
            Ok::<_, Error>(())
        });
        let exec = graph.unwrap().instantiate().unwrap();
        for _ in 0..10 {
            let other = device.alloc(64, mscclrs_gpu::MemoryKind::Shareable).unwrap();
            other.fill(&stream, 0xee).unwrap();
            target.fill(&stream, 1).unwrap();
            exec.launch(&stream).unwrap();
            let mut bytes = [9; 64];
            target.read(&stream, 0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 64]);
        }
    });
}

#[test]
fn a_wait_that_takes_too_long_is_an_error_on_every_rank_and_says_who_waited() {
    let errors = on_ranks(3, |rank| {
        let peer = (rank.rank() + 1) % 3;
        let config = Default::default();
        let futures: Vec<_> =
            rank.peers().map(|p| rank.comm.connect(&config, p, 1).unwrap()).collect();
        let connections: Vec<_> = futures.into_iter().map(|f| f.get().unwrap()).collect();
        let futures: Vec<_> =
            connections.iter().map(|c| rank.comm.build_semaphore(c, 1).unwrap()).collect();
        let semaphores: Vec<_> = futures.into_iter().map(|f| f.get().unwrap()).collect();
        let semaphore = semaphores.iter().find(|s| s.peer() == peer).unwrap();
        // Only rank 0 has a limit; the others hear of it.
        rank.comm.set_timeout((rank.rank() == 0).then_some(Duration::from_millis(100)));
        rank.comm.bootstrap().barrier().unwrap();
        let start = Instant::now();
        rank.launch_semaphore("wait_signals", semaphore, 1).unwrap();
        let error = rank.synchronize().unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        assert!(rank.comm.check().is_err());
        let wait = rank.comm.early_wait().unwrap();
        assert_eq!((wait.kernel.as_str(), wait.block, wait.thread), ("wait_signals", 0, 0));
        assert_eq!((wait.peer, wait.kind), (Some(peer), "semaphore"));
        assert_eq!((wait.expected, wait.seen), (1, 0));
        assert_eq!(wait.cause == WaitCause::Timeout, rank.rank() == 0);
        error
    });
    let [first, others @ ..] = errors.as_slice() else { unreachable!() };
    assert!(matches!(first, Error::Wait { rank: 0, .. }), "{first}");
    assert!(first.to_string().contains("waited for a semaphore of rank 1"), "{first}");
    for error in others {
        assert!(matches!(error, Error::RankLost(lost) if lost.loss.rank == 0), "{error}");
        assert!(error.to_string().contains("waited for a semaphore of rank 1"), "{error}");
    }
}

#[test]
fn a_dropped_communicator_ends_its_kernels_and_frees_only_then() {
    on_ranks(2, |rank| {
        let semaphore = rank.semaphore(&rank.connect(1 - rank.rank(), 1), 1);
        rank.comm.bootstrap().barrier().unwrap();
        if rank.rank() == 0 {
            rank.launch_semaphore("wait_signals", &semaphore, 1).unwrap();
            // Poisoned, so that the drop does not wait for a peer that never signals.
            rank.comm.abort("the test wants it");
        }
        let Rank { comm, stream } = rank;
        drop(semaphore);
        drop(comm);
        assert!(stream.is_idle().unwrap());
    });
}

#[test]
fn several_ranks_share_a_device() {
    let bootstraps = LocalBootstrap::create(4, timeout());
    on_bootstraps(
        bootstraps,
        |rank| 100 + rank / 2,
        |rank| {
            assert!(rank.comm.shares_device());
            let peer = rank.rank() ^ 1;
            let semaphore = rank.semaphore(&rank.connect(peer, 1), 1);
            rank.launch_semaphore("send_signals", &semaphore, 2).unwrap();
            rank.launch_semaphore("wait_signals", &semaphore, 2).unwrap();
            rank.synchronize().unwrap();
            rank.comm.bootstrap().barrier().unwrap();
        },
    );
}

#[test]
fn a_process_has_several_communicators() {
    on_ranks(2, |rank| {
        let bootstraps = rank.comm.bootstrap().all_gather(&[]).unwrap();
        assert_eq!(bootstraps.len(), 2);
        let region = rank.comm.create_regions(&[64]).unwrap();
        rank.comm.bootstrap().barrier().unwrap();
        drop(region);
    });
    let [a, b] = [(); 2].map(|()| LocalBootstrap::create(2, timeout()));
    std::thread::scope(|scope| {
        for (a, b) in a.into_iter().zip(b) {
            scope.spawn(move || {
                let device = Device::open(BackendKind::Cpu, 200).unwrap();
                let one = Rank::new(Communicator::new(Arc::new(a), device.clone()).unwrap());
                let two = Rank::new(Communicator::new(Arc::new(b), device).unwrap());
                for rank in [&one, &two] {
                    let semaphore = rank.semaphore(&rank.connect(1 - rank.rank(), 1), 1);
                    rank.launch_semaphore("send_signals", &semaphore, 1).unwrap();
                    rank.launch_semaphore("wait_signals", &semaphore, 1).unwrap();
                    rank.synchronize().unwrap();
                }
                drop(one);
                two.comm.create_regions(&[64]).unwrap();
            });
        }
    });
}

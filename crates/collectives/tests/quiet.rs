//! What a call of a collective says in the log: nothing, whoever listens. Not even the question whether
//! somebody does is asked, so that it costs nothing either.
//!
//! One test: it listens to the whole process.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mscclrs_collectives::{Collectives, DataType, ReduceOp};
use mscclrs_core::{Bootstrap, Communicator, LocalBootstrap};
use mscclrs_gpu::{BackendKind, Device};
use mscclrs_log::tracing::span::{Attributes, Id, Record};
use mscclrs_log::tracing::subscriber::{Interest, set_global_default};
use mscclrs_log::tracing::{Event, Metadata, Subscriber};

/// Questions whether somebody listens, events and spans.
static HEARD: AtomicU64 = AtomicU64::new(0);

fn hear() {
    HEARD.fetch_add(1, Ordering::Relaxed);
}

/// Wants everything, and wants to be asked each time.
struct Everything;

impl Subscriber for Everything {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        hear();
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        hear();
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        hear();
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        hear();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {
        hear();
    }

    fn event(&self, _: &Event<'_>) {
        hear();
    }

    fn enter(&self, _: &Id) {
        hear();
    }

    fn exit(&self, _: &Id) {
        hear();
    }
}

#[test]
fn calls_captures_and_replays_say_nothing() {
    set_global_default(Everything).unwrap();
    let ranks = LocalBootstrap::create(2, Duration::from_secs(20));
    std::thread::scope(|scope| {
        for rank in ranks {
            scope.spawn(|| run(rank));
        }
    });
}

fn run(bootstrap: LocalBootstrap) {
    const COUNT: u64 = 64;
    let device = Device::open(BackendKind::Cpu, bootstrap.rank()).unwrap();
    let communicator = Communicator::new(Arc::new(bootstrap), device).unwrap();
    communicator.set_timeout(Some(Duration::from_secs(20)));
    let collectives = Collectives::new(&communicator).unwrap();
    let input = collectives.alloc(4 * COUNT).unwrap();
    let output = collectives.alloc(8 * COUNT).unwrap();
    let (input, output) = (input.buffer(), output.buffer());
    let stream = communicator.device().create_stream().unwrap();
    let call = |stream: &_| {
        let (float, sum) = (DataType::F32, ReduceOp::Sum);
        collectives.all_reduce(input, output, COUNT, float, sum, stream)?;
        collectives.all_gather(input, output, COUNT, float, stream)
    };
    let barrier = || communicator.bootstrap().barrier().unwrap();

    barrier();
    let before = HEARD.load(Ordering::Relaxed);
    assert!(before > 20, "set-up is told: {before}");
    barrier();
    for _ in 0..10 {
        call(&stream).unwrap();
    }
    communicator.synchronize(&stream).unwrap();
    let graph = stream.capture(|stream| call(stream)).unwrap().instantiate().unwrap();
    for _ in 0..10 {
        graph.launch(&stream).unwrap();
    }
    communicator.synchronize(&stream).unwrap();
    barrier();
    assert_eq!(HEARD.load(Ordering::Relaxed), before);
    // Leaving is told again.
    barrier();
}

//! Ranks that do not make the same call.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use mscclrs_collectives::{AllGather, AllReduce, Collectives, Shape, Tuning};
use mscclrs_core::{Communicator, LocalBootstrap};
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::{BackendKind, Device};

const LIMIT: Duration = Duration::from_secs(30);

/// What each of two ranks gets of a call, if one calls the one collective and one the other.
fn both(reduce: AllReduce, gather: AllGather) -> Vec<mscclrs_core::Result<()>> {
    let tuning = Tuning::only(reduce, gather, Shape { blocks: 1, threads: 32 });
    let rank = |(number, bootstrap): (u32, LocalBootstrap), tuning: Tuning| {
        let device = Device::open(BackendKind::Cpu, 0).unwrap();
        let stream = device.create_stream().unwrap();
        let communicator = Communicator::new(Arc::new(bootstrap), device).unwrap();
        communicator.set_timeout(Some(Duration::from_millis(300)));
        let collectives = Collectives::with_tuning(&communicator, tuning).unwrap();
        let [from, to] = [256, 512].map(|bytes| collectives.alloc(bytes).unwrap());
        let (from, to) = (from.buffer(), to.buffer());
        match number {
            0 => collectives.all_reduce(from, to, 64, DataType::U32, ReduceOp::Sum, &stream),
            _ => collectives.all_gather(from, to, 64, DataType::U32, &stream),
        }
        .unwrap();
        communicator.synchronize(&stream)
    };
    std::thread::scope(|scope| {
        let bootstraps = LocalBootstrap::create(2, LIMIT);
        let ranks: Vec<_> = (0..)
            .zip(bootstraps)
            .map(|of| {
                let tuning = tuning.clone();
                scope.spawn(move || rank(of, tuning))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_that_call_different_collectives_are_told_instead_of_getting_wrong_data() {
    for (reduce, gather) in [
        (AllReduce::OneShotLl8, AllGather::PacketLl8),
        (AllReduce::OneShotLl16, AllGather::PacketLl16),
    ] {
        let ends = both(reduce, gather);
        assert!(ends.iter().all(Result::is_err), "{reduce:?} and {gather:?}: {ends:?}");
    }
}

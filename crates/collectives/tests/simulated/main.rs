//! The library's kernels in simulations, by every mode: with seeds that are always the same, and with new
//! ones, which are printed.
//!
//! `MSCCLRS_TEST_SEEDS=0..1000` takes these seeds for each case of `algorithms` and `kernels`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod algorithms;
mod kernels;
mod orders;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mscclrs_collectives::{Collectives, Tuning};
use mscclrs_core::{Communicator, LocalBootstrap};
use mscclrs_gpu::simulation::{Mode, Simulation};
use mscclrs_gpu::{Buffer, CpuConfig, Stream};

const LIMIT: Duration = Duration::from_secs(60);

/// One of the ranks of a simulation.
struct Rank {
    collectives: Collectives,
    stream: Stream,
}

impl Rank {
    fn communicator(&self) -> &Communicator {
        self.collectives.communicator()
    }

    fn write(&self, to: &Buffer, data: &[u8]) {
        to.write(&self.stream, 0, data).unwrap();
    }

    fn read(&self, from: &Buffer) -> Vec<u8> {
        let mut found = vec![0; from.bytes() as usize];
        from.read(&self.stream, 0, &mut found).unwrap();
        found
    }

    /// Waits for all that this rank has enqueued, then for all ranks.
    fn finish(&self) -> Result<(), String> {
        let told = |error: mscclrs_core::Error| error.to_string();
        self.communicator().synchronize(&self.stream).map_err(told)?;
        self.communicator().bootstrap().barrier().map_err(told)
    }
}

fn config() -> CpuConfig {
    CpuConfig { threads: 256, ..CpuConfig::default() }
}

/// Runs ranks as threads; what each came to.
fn run_ranks(
    simulation: &Simulation,
    ranks: u32,
    tuning: &Tuning,
    run: impl Fn(&Rank) -> Result<(), String> + Sync,
) -> Vec<Result<(), String>> {
    std::thread::scope(|scope| {
        let start = |(rank, bootstrap): (u32, LocalBootstrap)| {
            let run = &run;
            scope.spawn(move || {
                let device = simulation.device(rank).unwrap();
                let stream = device.create_stream().unwrap();
                let communicator = Communicator::new(Arc::new(bootstrap), device).unwrap();
                communicator.set_timeout(Some(LIMIT));
                let collectives = Collectives::with_tuning(&communicator, tuning.clone()).unwrap();
                run(&Rank { collectives, stream })
            })
        };
        let ranks: Vec<_> = (0..).zip(LocalBootstrap::create(ranks, LIMIT)).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs ranks as threads, and panics if anything is found or wrong. Gives the names of the kernels that
/// ran.
fn simulate(
    mode: Mode,
    what: &str,
    ranks: u32,
    tuning: &Tuning,
    run: impl Fn(&Rank) -> Result<(), String> + Sync,
) -> BTreeSet<&'static str> {
    let simulation = Simulation::with_config(mode.clone(), config(), false).unwrap();
    let results = run_ranks(&simulation, ranks, tuning, run);
    if let Some(finding) = simulation.finding().unwrap() {
        panic!("{what}, MSCCLRS_SIM={mode}\n{finding}");
    }
    for (rank, result) in results.iter().enumerate() {
        assert_eq!(result, &Ok(()), "rank {rank} of {what}, MSCCLRS_SIM={mode}");
    }
    simulation.kernels().unwrap()
}

/// The seeds of a case: so many that are always the same and so many that no run had before, most likely,
/// which are printed; or those of `MSCCLRS_TEST_SEEDS`.
fn seeds(fixed: u64, new: u64) -> Vec<u64> {
    if let Ok(range) = std::env::var("MSCCLRS_TEST_SEEDS") {
        let (from, to) = range.split_once("..").expect("MSCCLRS_TEST_SEEDS is FROM..TO");
        println!("seeds {range}");
        return (from.parse().unwrap()..to.parse().unwrap()).collect();
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let first = now.as_nanos() as u64 % 1_000_000_000;
    println!("new seeds: {first} to {}", first + new - 1);
    (0..fixed).chain(first..first + new).collect()
}

//! Every algorithm in simulations: no order of lanes, and no lateness of what they write, makes a result
//! wrong, and nothing of it is a race.
//!
//! Each run has seeds that are always the same, and new ones, which are printed.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mscclrs_collectives::{AllGather, AllReduce, Collectives, Shape, Tuning};
use mscclrs_core::{Communicator, LocalBootstrap};
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::simulation::{Check, Departures, Exploration, Mode, Simulation, explore};
use mscclrs_gpu::{Buffer, CpuConfig, GraphExec, Stream};

const LIMIT: Duration = Duration::from_secs(60);
/// Calls in a graph.
const CALLS: u32 = 3;
/// Seeds that are always the same, and new ones, of each algorithm and check.
const FIXED: u64 = 6;
const NEW: u64 = 2;
/// Orders that are not chosen by a seed.
const ORDERS: u64 = 20;
/// Times that ranks with threads of their own come to the same decisions.
const REPEATS: u64 = 10;

#[derive(Clone, Copy, Debug)]
struct Case {
    all_reduce: AllReduce,
    all_gather: AllGather,
    ranks: u32,
    shape: Shape,
    /// Elements: a number that nothing divides, for tails.
    count: u64,
}

fn given(round: u32, rank: u32, index: u64) -> u32 {
    (round * 1_000_003).wrapping_add(rank * 65_537).wrapping_add(index as u32 * 7)
}

fn bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_le_bytes).collect()
}

struct Rank {
    collectives: Collectives,
    stream: Stream,
}

impl Rank {
    fn write(&self, to: &Buffer, round: u32, count: u64) {
        let rank = self.collectives.communicator().rank();
        let data = bytes((0..count).map(|index| given(round, rank, index)));
        to.write(&self.stream, 0, &data).unwrap();
    }

    fn read(&self, from: &Buffer) -> Vec<u8> {
        let mut found = vec![0; from.bytes() as usize];
        from.read(&self.stream, 0, &mut found).unwrap();
        found
    }

    /// Both collectives, launched and replayed as a graph.
    fn run(&self, case: Case) -> Result<(), String> {
        let Case { count, ranks, .. } = case;
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let (collectives, stream) = (&self.collectives, &self.stream);
        let communicator = collectives.communicator();
        let alloc = |elements: u64| collectives.alloc(4 * elements).unwrap();
        let [input, sums, mine] = [(); 3].map(|()| alloc(count));
        let all = alloc(count * u64::from(ranks));
        let calls = |stream: &Stream| -> mscclrs_collectives::Result<()> {
            let (from, to) = (input.buffer(), sums.buffer());
            // Twice each: what one call leaves in scratch meets the next call of its kind.
            for _ in 0..2 {
                collectives.all_reduce(from, to, count, DataType::U32, ReduceOp::Sum, stream)?;
            }
            for _ in 0..2 {
                let (from, to) = (mine.buffer(), all.buffer());
                collectives.all_gather(from, to, count, DataType::U32, stream)?;
            }
            Ok(())
        };
        let graph: GraphExec = stream
            .capture(|stream| (0..CALLS).try_for_each(|_| calls(stream)))
            .map_err(|error| told(&error))?
            .instantiate()
            .map_err(|error| told(&error))?;
        for round in 0..3 {
            self.write(input.buffer(), round, count);
            self.write(mine.buffer(), round + 10, count);
            if round == 1 {
                graph.launch(stream).map_err(|error| told(&error))?;
            } else {
                calls(stream).map_err(|error| told(&error))?;
            }
            communicator.synchronize(stream).map_err(|error| told(&error))?;
            let sum =
                |index| (0..ranks).fold(0, |sum: u32, r| sum.wrapping_add(given(round, r, index)));
            if self.read(sums.buffer()) != bytes((0..count).map(sum)) {
                return Err(format!("a wrong sum in round {round}"));
            }
            let gathered =
                (0..ranks).flat_map(|r| (0..count).map(move |i| given(round + 10, r, i)));
            if self.read(all.buffer()) != bytes(gathered) {
                return Err(format!("wrong gathered data in round {round}"));
            }
            communicator.bootstrap().barrier().map_err(|error| told(&error))?;
        }
        Ok(())
    }
}

fn config() -> CpuConfig {
    CpuConfig { threads: 256, ..CpuConfig::default() }
}

/// What each rank came to.
fn run(simulation: &Simulation, case: Case) -> Vec<Result<(), String>> {
    let tuning = Tuning::only(case.all_reduce, case.all_gather, case.shape);
    std::thread::scope(|scope| {
        let bootstraps = LocalBootstrap::create(case.ranks, LIMIT);
        let start = |(rank, bootstrap): (u32, LocalBootstrap)| {
            let tuning = tuning.clone();
            scope.spawn(move || {
                let device = simulation.device(rank).unwrap();
                let stream = device.create_stream().unwrap();
                let communicator = Communicator::new(Arc::new(bootstrap), device).unwrap();
                communicator.set_timeout(Some(LIMIT));
                let collectives = Collectives::with_tuning(&communicator, tuning).unwrap();
                Rank { collectives, stream }.run(case)
            })
        };
        let ranks: Vec<_> = (0..).zip(bootstraps).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn simulate(mode: Mode, case: Case) {
    let simulation = Simulation::with_config(mode.clone(), config(), false).unwrap();
    let results = run(&simulation, case);
    if let Some(finding) = simulation.finding() {
        panic!("{case:?} MSCCLRS_SIM={mode}\n{finding}");
    }
    for (rank, result) in results.iter().enumerate() {
        assert_eq!(result, &Ok(()), "rank {rank} of {case:?} with MSCCLRS_SIM={mode}");
    }
}

fn check_all(check: Check) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let first_new = now.as_nanos() as u64 % 1_000_000_000;
    println!("new seeds: {first_new} to {}", first_new + NEW - 1);
    for (at, all_reduce) in AllReduce::ALL.into_iter().enumerate() {
        let all_gather = AllGather::ALL[at % AllGather::ALL.len()];
        for seed in (0..FIXED).chain(first_new..first_new + NEW) {
            let ranks = 2 + (seed % 3) as u32;
            let shape = Shape { blocks: 1 + (seed % 2) as u32, threads: 32 << (seed % 2) };
            let count = [61, 257, 1009][(seed / 2 % 3) as usize];
            let case = Case { all_reduce, all_gather, ranks, shape, count };
            simulate(Mode::new(check, seed), case);
        }
    }
}

#[test]
fn no_algorithm_has_a_race_or_reads_what_nobody_wrote() {
    check_all(Check::Checked);
}

#[test]
fn no_algorithm_leans_on_writes_that_are_seen_at_once() {
    check_all(Check::Weak);
}

#[test]
fn few_departures_make_no_result_wrong() {
    for (check, all_reduce) in
        [(Check::Checked, AllReduce::ALL[0]), (Check::Weak, AllReduce::ALL[0])]
    {
        let all_gather = AllGather::ALL[0];
        let shape = Shape { blocks: 1, threads: 32 };
        let case = Case { all_reduce, all_gather, ranks: 2, shape, count: 3 };
        let decisions = || {
            let mode = Mode::departing(check, Departures::default());
            let simulation = Simulation::with_config(mode, config(), false).unwrap();
            run(&simulation, case);
            simulation.decisions()
        };
        let first = decisions();
        assert!(first.len() > 100);
        (0..REPEATS).for_each(|_| assert!(decisions() == first, "the ranks do not repeat"));
        let exploration = Exploration { check, departures: 1, runs: ORDERS };
        let explored = explore(&exploration, &config(), |simulation| {
            run(simulation, case).into_iter().collect::<Result<(), String>>()
        });
        let explored = explored.unwrap();
        println!("{case:?}, {check:?}: {explored}");
        assert_eq!(explored.found.map(|found| found.to_string()), None);
        assert_eq!(explored.runs, ORDERS);
    }
}

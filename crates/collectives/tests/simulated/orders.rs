//! Ranks with threads of their own repeat, and orders that no seed chooses make no result wrong.

use mscclrs_collectives::{AllGather, AllReduce, Shape, Tuning};
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::simulation::{Check, Departures, Exploration, Mode, Simulation, explore};

use super::{Rank, config, run_ranks};

/// Orders of each check.
const ORDERS: u64 = 20;
/// Times that ranks come to the same decisions.
const REPEATS: u64 = 10;
const COUNT: u64 = 3;

fn run(rank: &Rank) -> Result<(), String> {
    let collectives = &rank.collectives;
    let input = collectives.alloc(4 * COUNT).map_err(|error| error.to_string())?;
    let sums = collectives.alloc(4 * COUNT).map_err(|error| error.to_string())?;
    let bytes = |numbers: [u32; 3]| numbers.map(u32::to_le_bytes).concat();
    let own = collectives.communicator().rank();
    for round in 0..3 {
        rank.write(input.buffer(), &bytes([round, own, 7]));
        let (from, to) = (input.buffer(), sums.buffer());
        for _ in 0..2 {
            collectives
                .all_reduce(from, to, COUNT, DataType::U32, ReduceOp::Sum, &rank.stream)
                .map_err(|error| error.to_string())?;
        }
        rank.finish()?;
        if rank.read(to) != bytes([2 * round, 1, 14]) {
            return Err(format!("a wrong sum in round {round}"));
        }
    }
    Ok(())
}

#[test]
fn few_departures_make_no_result_wrong() {
    let shape = Shape { blocks: 1, threads: 32 };
    let tuning = Tuning::only(AllReduce::ALL[0], AllGather::ALL[0], shape);
    for check in [Check::Checked, Check::Weak] {
        let decisions = || {
            let mode = Mode::departing(check, Departures::default());
            let simulation = Simulation::with_config(mode, config(), false).unwrap();
            let results = run_ranks(&simulation, 2, &tuning, run);
            assert_eq!(results, [Ok(()), Ok(())]);
            simulation.decisions().unwrap()
        };
        let first = decisions();
        assert!(first.len() > 50, "{}", first.len());
        (0..REPEATS).for_each(|_| assert!(decisions() == first, "the ranks do not repeat"));
        let exploration = Exploration { check, departures: 1, runs: ORDERS };
        let explored = explore(&exploration, &config(), |simulation| {
            run_ranks(simulation, 2, &tuning, run).into_iter().collect::<Result<(), String>>()
        });
        let explored = explored.unwrap();
        println!("{check:?}: {explored}");
        assert_eq!(explored.found.map(|found| found.to_string()), None);
        assert_eq!(explored.runs, ORDERS);
    }
}

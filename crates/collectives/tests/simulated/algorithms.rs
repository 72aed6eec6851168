//! Every algorithm: no order of lanes, and no lateness of what they write, makes a result wrong, and
//! nothing of it is a race.

use mscclrs_collectives::{AllGather, AllReduce, Shape, Tuning};
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::simulation::{Check, Mode};
use mscclrs_gpu::{Buffer, GraphExec, Stream};

use crate::{Rank, seeds, simulate};

/// Calls of both collectives in turns.
const TURNS: u32 = 12;
/// Calls in a graph.
const CALLS: u32 = 3;
/// Seeds that are always the same, and new ones, of each algorithm and check.
const FIXED: u64 = 6;
const NEW: u64 = 2;

fn given(round: u32, rank: u32, index: u64) -> u32 {
    (round * 1_000_003).wrapping_add(rank * 65_537).wrapping_add(index as u32 * 7)
}

fn bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_le_bytes).collect()
}

fn write(rank: &Rank, to: &Buffer, round: u32, count: u64) {
    let number = rank.communicator().rank();
    rank.write(to, &bytes((0..count).map(|index| given(round, number, index))));
}

/// Both collectives, launched and replayed as a graph.
fn run(rank: &Rank, ranks: u32, count: u64) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let (collectives, stream) = (&rank.collectives, &rank.stream);
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
        write(rank, input.buffer(), round, count);
        write(rank, mine.buffer(), round + 10, count);
        if round == 1 {
            graph.launch(stream).map_err(|error| told(&error))?;
        } else {
            calls(stream).map_err(|error| told(&error))?;
        }
        rank.communicator().synchronize(stream).map_err(|error| told(&error))?;
        let sum =
            |index| (0..ranks).fold(0, |sum: u32, r| sum.wrapping_add(given(round, r, index)));
        if rank.read(sums.buffer()) != bytes((0..count).map(sum)) {
            return Err(format!("a wrong sum in round {round}"));
        }
        let gathered = (0..ranks).flat_map(|r| (0..count).map(move |i| given(round + 10, r, i)));
        if rank.read(all.buffer()) != bytes(gathered) {
            return Err(format!("wrong gathered data in round {round}"));
        }
        rank.finish()?;
    }
    Ok(())
}

fn check_all(check: Check) {
    let seeds = seeds(FIXED, NEW);
    for (at, all_reduce) in AllReduce::ALL.into_iter().enumerate() {
        let all_gather = AllGather::ALL[at % AllGather::ALL.len()];
        for &seed in &seeds {
            let ranks = 2 + (seed % 3) as u32;
            let shape = Shape { blocks: 1 + (seed % 2) as u32, threads: 32 << (seed % 2) };
            // Numbers that nothing divides, for tails.
            let count = [61, 257, 1009][(seed / 2 % 3) as usize];
            let tuning = Tuning::only(all_reduce, all_gather, shape);
            let mode = Mode::new(check, seed);
            let what = format!(
                "{all_reduce:?}, {all_gather:?}, {count} elements, {ranks} ranks, {shape:?}"
            );
            simulate(mode, &what, ranks, &tuning, |rank| run(rank, ranks, count));
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

/// Calls of both collectives in an order and with counts that follow from a seed, which all ranks have.
fn take_turns(rank: &Rank, ranks: u32, seed: u64) -> Result<(), String> {
    let told = |error: mscclrs_collectives::Error| error.to_string();
    let (collectives, stream, number) =
        (&rank.collectives, &rank.stream, rank.communicator().rank());
    let most = 300;
    let buffer = |elements: u64| collectives.alloc(4 * elements).unwrap();
    let inputs: Vec<_> = (0..TURNS).map(|_| buffer(most)).collect();
    let outputs: Vec<_> = (0..TURNS).map(|_| buffer(most * u64::from(ranks))).collect();
    let turn = |nth: u32| {
        let mixed = (seed ^ u64::from(nth)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (mixed & 1 == 0, [1, 31, 64, 150, most][(mixed / 2 % 5) as usize])
    };
    for (nth, input) in (0..).zip(&inputs) {
        write(rank, input.buffer(), nth, most);
    }
    for ((nth, input), output) in (0..).zip(&inputs).zip(&outputs) {
        let ((reduces, count), from, to) = (turn(nth), input.buffer(), output.buffer());
        match reduces {
            true => collectives.all_reduce(from, to, count, DataType::U32, ReduceOp::Sum, stream),
            false => collectives.all_gather(from, to, count, DataType::U32, stream),
        }
        .map_err(told)?;
    }
    rank.finish()?;
    for (nth, output) in (0..).zip(&outputs) {
        let (reduces, count) = turn(nth);
        let sum = |index| (0..ranks).fold(0, |sum: u32, r| sum.wrapping_add(given(nth, r, index)));
        let expected = match reduces {
            true => bytes((0..count).map(sum)),
            false => bytes((0..ranks).flat_map(|r| (0..count).map(move |i| given(nth, r, i)))),
        };
        if rank.read(output.buffer())[..expected.len()] != expected {
            return Err(format!("call {nth} of rank {number} is wrong"));
        }
    }
    rank.finish()
}

#[test]
fn calls_of_both_collectives_are_right_in_any_order() {
    let reduces = [AllReduce::OneShotLl8, AllReduce::OneShotLl16];
    let gathers = [AllGather::PacketLl8, AllGather::PacketLl16];
    for seed in seeds(4, 1) {
        for (at, check) in [Check::Checked, Check::Weak].into_iter().enumerate() {
            let (reduce, gather) = (reduces[seed as usize % 2], gathers[seed as usize / 2 % 2]);
            let shape = Shape { blocks: 1 + (seed % 2) as u32, threads: 32 };
            let ranks = 2 + (seed as u32 + at as u32) % 2;
            let tuning = Tuning::only(reduce, gather, shape);
            let what = format!("{reduce:?} and {gather:?} in turns, {ranks} ranks");
            simulate(Mode::new(check, seed), &what, ranks, &tuning, |rank| {
                take_turns(rank, ranks, seed)
            });
        }
    }
}

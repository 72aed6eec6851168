//! A seed is a run: of a kernel as programs have them, among four ranks.

use std::collections::HashSet;

use mscclrs_device::{
    EPOCH_START, Epochs, Global, Guard, Ll8, MAX_BLOCKS, Packet, ParamArray, block_dim, block_idx,
    epoch_flag, epoch_next, grid_dim, kernel_args, kernels, param_at, thread_idx,
};
use mscclrs_sim::{Check, Mode, Schedule, TestMemory};

use crate::common::MODULE;
use crate::world::Ranks;

const RANKS: u32 = 4;
const BLOCKS: u32 = 2;
const LANES: u32 = 64;
/// Packets to each peer, one a lane.
const PACKETS: u32 = BLOCKS * LANES;

kernel_args! {
    pub struct SumArgs {
        pub guard: Guard,
        pub epochs: Global<u64>,
        pub input: Global<u32>,
        pub output: Global<u32>,
        /// Each rank's packet memory: two halves of a slot a rank.
        pub packets: ParamArray<Global<u64>, 4>,
        pub rank: u32,
        pub ranks: u32,
    }
}

kernels! {
    module = MODULE;
    // Each rank sends its data to all others by packets, and adds up what it gets.
    pub fn sum<>(args: SumArgs) threads 64 for { "" = <> } {
        let epoch = Epochs(args.epochs).begin(&args.guard).check()?;
        let own = block_idx() * block_dim() + thread_idx();
        let slot = block_dim() * grid_dim();
        let half = (epoch & 1) as u32 * args.ranks * slot;
        let flag = epoch_flag(epoch);
        let mut total = args.input.at(own).load();
        for peer in (0..args.ranks).filter(|&peer| peer != args.rank) {
            let to = param_at!(args, SumArgs, packets, peer).at(half + args.rank * slot + own);
            Ll8::put(to, total, flag);
        }
        for peer in (0..args.ranks).filter(|&peer| peer != args.rank) {
            let from = param_at!(args, SumArgs, packets, args.rank).at(half + peer * slot + own);
            total += Ll8::take(&args.guard, from, flag, peer)?;
        }
        args.output.at(own).store(total);
        Epochs(args.epochs).advance(epoch_next(epoch));
        Ok(())
    }
}

/// Two calls; how many steps they took, and what stands for their order.
fn run(mode: Mode) -> (u64, u64) {
    let ranks = Ranks::new(mode.clone(), RANKS);
    let memory = |bytes: u32| (0..RANKS).map(|_| TestMemory::new(bytes as usize)).collect();
    let input: Vec<TestMemory> = memory(4 * PACKETS);
    let output: Vec<TestMemory> = memory(4 * PACKETS);
    let epochs: Vec<TestMemory> = memory(8 * MAX_BLOCKS);
    let packets: Vec<TestMemory> = memory(2 * RANKS * 8 * PACKETS);
    for rank in 0..RANKS as usize {
        let word = |at: u64| 100 * rank as u64 + at;
        let words: Vec<u64> =
            (0..u64::from(PACKETS) / 2).map(|at| word(2 * at) | word(2 * at + 1) << 32).collect();
        ranks.upload(rank, &input[rank], &words);
        ranks.upload(rank, &epochs[rank], &[EPOCH_START; MAX_BLOCKS as usize]);
        let args = SumArgs {
            guard: ranks.guard(),
            epochs: Global::from_address(epochs[rank].address()),
            input: Global::from_address(input[rank].address()),
            output: Global::from_address(output[rank].address()),
            packets: ParamArray::new(
                [0, 1, 2, 3].map(|rank| Global::from_address(TestMemory::address(&packets[rank]))),
            ),
            rank: rank as u32,
            ranks: RANKS,
        };
        for _call in 0..2 {
            crate::common::launch(&ranks.queues[rank], &sum, (BLOCKS, LANES, 0), &args);
        }
    }
    assert_eq!(ranks.finish().map(|finding| finding.to_string()), None);
    for output in &output {
        let word = |at: u64| 600 + 4 * at;
        let right = |at: u64| word(2 * at) | word(2 * at + 1) << 32;
        let all = 0..u64::from(PACKETS) / 2;
        assert!(all.into_iter().all(|at| output.get(at as usize) == right(at)), "{mode}");
    }
    ranks.world.trace_sum().unwrap()
}

#[test]
fn the_same_seed_is_the_same_run_in_every_mode() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        for schedule in Schedule::ALL {
            let mode = Mode { check, seed: 11, schedule: Some(schedule) };
            let first = run(mode.clone());
            assert!(first.0 > u64::from(2 * RANKS * PACKETS * 8), "{mode}: {} steps", first.0);
            assert_eq!(run(mode.clone()), first, "{mode}");
        }
    }
}

#[test]
fn other_seeds_are_other_runs() {
    let seeds = 0..8;
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        for schedule in [Schedule::Random, Schedule::SlowestLast, Schedule::OneFar] {
            let mode = |seed| Mode { check, seed, schedule: Some(schedule.clone()) };
            let runs: HashSet<_> = seeds.clone().map(|seed| run(mode(seed))).collect();
            assert_eq!(runs.len(), seeds.clone().count(), "{check:?}, {schedule:?}");
        }
    }
}

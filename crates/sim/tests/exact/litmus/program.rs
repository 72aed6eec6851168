//! Litmus programs: a few operations a lane, and a kernel that does them.

use std::collections::BTreeSet;
use std::convert::Infallible;

use mscclrs_device::{
    AcqRel, Acquire, Cta, Global, Gpu, ParamArray, Relaxed, Release, ScopeKind, Sys, block_idx,
    fence, kernel_args, kernels, thread_idx,
};
use mscclrs_sim::{Check, Exploration, Mode, TestMemory, explore};

use crate::common::{MODULE, launch_kernel};
use crate::world::{Ranks, ran};

/// An operation, on a location where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write(u8, u64),
    Read(u8),
    Add(u8, u64),
    Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Plain,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) order: Order,
}

/// What each lane does.
pub(super) type Lanes<'a> = &'a [&'a [Operation]];
/// What the reads see, lane after lane.
pub(super) type Outcome = Vec<u64>;

/// Where the lanes of a program are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    Block,
    Device,
    Devices,
}

/// Everywhere, with every scope, and whether the scope holds all lanes.
pub(super) const PLACES: [(Placement, ScopeKind, bool); 9] = [
    (Placement::Block, ScopeKind::Cta, true),
    (Placement::Block, ScopeKind::Gpu, true),
    (Placement::Block, ScopeKind::Sys, true),
    (Placement::Device, ScopeKind::Cta, false),
    (Placement::Device, ScopeKind::Gpu, true),
    (Placement::Device, ScopeKind::Sys, true),
    (Placement::Devices, ScopeKind::Cta, false),
    (Placement::Devices, ScopeKind::Gpu, false),
    (Placement::Devices, ScopeKind::Sys, true),
];

/// Most lanes, and most operations of one.
const LANES: usize = 4;
const OPERATIONS: usize = 4;
/// 8-byte words that a program has: locations, and what its reads see.
const LOCATIONS: usize = 4;
const WORDS: usize = LOCATIONS + LANES * OPERATIONS;
/// How often a launch does the program, each time in other memory.
const TIMES: u64 = 100;
/// More runs than any program has.
const RUNS: u64 = 20_000;

kernel_args! {
    pub struct LitmusArgs {
        pub memory: Global<u64>,
        pub scope: u64,
        pub times: u64,
        pub rank: u64,
        pub program: ParamArray<u64, 48>,
    }
}

kernels! {
    module = MODULE;
    pub fn litmus<>(args: LitmusArgs) threads 32 for { "" = <> } {
        let lane = args.rank as u32 + block_idx() + thread_idx();
        for time in 0..args.times {
            let memory = args.memory.at64(time * WORDS as u64);
            for nth in 0..OPERATIONS {
                let at = 3 * (OPERATIONS * lane as usize + nth);
                let code = &args.program.elements()[at..at + 3];
                let location = memory.at64(code[1] >> 32);
                let (kind, order, value) = (code[0], code[1] as u32, code[2]);
                let seen = memory.at((LOCATIONS + OPERATIONS * lane as usize + nth) as u32);
                match args.scope {
                    0 => step(Cta, (kind, order, value), location, seen),
                    1 => step(Gpu, (kind, order, value), location, seen),
                    _ => step(Sys, (kind, order, value), location, seen),
                }
            }
        }
        Ok(())
    }
}

fn step<S: mscclrs_device::atomic::Scope>(
    scope: S,
    (kind, order, value): (u64, u32, u64),
    at: Global<u64>,
    seen: Global<u64>,
) {
    match (kind, order) {
        (1, 0) => at.store(value),
        (1, 1) => at.store_atomic(Relaxed, scope, value),
        (1, _) => at.store_atomic(Release, scope, value),
        (2, 0) => seen.store(at.load()),
        (2, 1) => seen.store(at.load_atomic(Relaxed, scope)),
        (2, _) => seen.store(at.load_atomic(Acquire, scope)),
        (3, 1) => seen.store(at.fetch_add(Relaxed, scope, value)),
        (3, 2) => seen.store(at.fetch_add(Acquire, scope, value)),
        (3, 3) => seen.store(at.fetch_add(Release, scope, value)),
        (3, _) => seen.store(at.fetch_add(AcqRel, scope, value)),
        (4, _) => fence::<S>(),
        _ => {}
    }
}

fn encode(lanes: Lanes<'_>) -> ParamArray<u64, 48> {
    let mut program = ParamArray::new([0; 3 * LANES * OPERATIONS]);
    assert!(lanes.len() <= LANES && lanes.iter().all(|lane| lane.len() <= OPERATIONS));
    for (lane, operations) in lanes.iter().enumerate() {
        for (nth, operation) in operations.iter().enumerate() {
            let (kind, at, value) = match operation.kind {
                Kind::Write(at, value) => (1, at, value),
                Kind::Read(at) => (2, at, 0),
                Kind::Add(at, value) => (3, at, value),
                Kind::Fence => (4, 0, 0),
            };
            let first = 3 * (OPERATIONS * lane + nth);
            program.set(first, kind);
            program.set(first + 1, u64::from(at) << 32 | operation.order as u64);
            program.set(first + 2, value);
        }
    }
    program
}

/// The outcomes that weak mode makes with so many seeds.
pub(super) fn made(
    lanes: Lanes<'_>,
    placement: Placement,
    scope: ScopeKind,
    seeds: u64,
) -> BTreeSet<Outcome> {
    let mut outcomes = BTreeSet::new();
    for seed in 0..seeds {
        let (ranks, memory) = run(Mode::new(Check::Weak, seed), lanes, (placement, scope), TIMES);
        assert_eq!(ranks.finish().map(|finding| finding.to_string()), None);
        outcomes.extend((0..TIMES as usize).map(|time| seen(lanes, &memory, time)));
    }
    outcomes
}

/// The outcomes of all runs of weak mode with at most so many departures.
pub(super) fn explored(
    lanes: Lanes<'_>,
    placement: Placement,
    scope: ScopeKind,
    departures: u32,
) -> (BTreeSet<Outcome>, mscclrs_sim::Outcome) {
    let mut outcomes = BTreeSet::new();
    let exploration = Exploration { check: Check::Weak, departures, runs: RUNS };
    let outcome = explore(&exploration, |mode| {
        let (ranks, memory) = run(mode, lanes, (placement, scope), 1);
        let finding = ranks.finish();
        outcomes.insert(seen(lanes, &memory, 0));
        Ok::<_, Infallible>(ran(finding, true))
    });
    (outcomes, outcome.unwrap())
}

/// Enqueues the program, so often.
fn run(
    mode: Mode,
    lanes: Lanes<'_>,
    (placement, scope): (Placement, ScopeKind),
    times: u64,
) -> (Ranks, TestMemory) {
    let count = lanes.len() as u32;
    let devices = if placement == Placement::Devices { count } else { 1 };
    let ranks = Ranks::new(mode, devices);
    let memory = TestMemory::new(8 * WORDS * times as usize);
    for rank in 0..devices {
        let args = LitmusArgs {
            memory: Global::from_address(memory.address()),
            scope: scope as u64,
            times,
            rank: rank.into(),
            program: encode(lanes),
        };
        let (blocks, threads) = match placement {
            Placement::Block => (1, count),
            Placement::Device => (count, 1),
            Placement::Devices => (1, 1),
        };
        let kernel = litmus.instance("").unwrap();
        launch_kernel(&ranks.queues[rank as usize], kernel, (blocks, threads, 0), &args);
    }
    (ranks, memory)
}

/// What the reads of one time saw.
fn seen(lanes: Lanes<'_>, memory: &TestMemory, time: usize) -> Outcome {
    let mut outcome = Outcome::new();
    for (lane, operations) in lanes.iter().enumerate() {
        for (nth, operation) in operations.iter().enumerate() {
            if matches!(operation.kind, Kind::Read(_) | Kind::Add(..)) {
                outcome.push(memory.get(WORDS * time + LOCATIONS + OPERATIONS * lane + nth));
            }
        }
    }
    outcome
}

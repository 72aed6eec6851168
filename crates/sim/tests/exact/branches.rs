//! Nodes of a graph: those that do not wait for each other are not ordered, whichever ran first.

use std::sync::Arc;

use mscclrs_device::{Relaxed, Sys, thread_idx};
use mscclrs_sim::{Check, DeviceConfig, Finding, FindingKind, Graph, Mode, Node, TestMemory, Work};

use crate::common::launch_work;
use crate::parts::{Parts, parts};
use crate::world::Ranks;

/// Lanes of a launch that takes all the room that a device has.
const LANES: u32 = 32;

parts! {
    Writes "_writes" = |args| {
        (0..8).for_each(|word| args.memory.at(word).store(args.rank));
    }
    Reads "_reads" = |args| {
        let sum = (0..8).map(|word| args.memory.at(word).load()).sum();
        args.memory.at(16 + args.rank as u32).store(sum);
    }
    // A kernel that takes long.
    Works "_works" = |args| {
        (0..200).for_each(|_| args.memory.at(31).store(args.rank));
    }
    // One launch writes, the other one reads.
    Late "_late" = |args| {
        let (word, seen) = (args.memory.at(thread_idx()), args.memory.at(LANES + thread_idx()));
        if args.rank == 0 {
            word.store_atomic(Relaxed, Sys, 1);
        } else {
            seen.store(word.load_atomic(Relaxed, Sys));
        }
    }
}

/// What a node of these tests does.
#[derive(Clone, Copy, Debug)]
enum Do {
    Write,
    Read,
    Fill,
    Copy,
    Work,
}

impl Do {
    fn touches(self, other: Do) -> bool {
        let writes = |what| matches!(what, Do::Write | Do::Fill);
        let is_there = |what| !matches!(what, Do::Work);
        is_there(self) && is_there(other) && (writes(self) || writes(other))
    }
}

/// Runs a graph of such nodes, each after others, some times; what was found.
fn run(seed: u64, nodes: &[(Do, &[u32])], times: u32) -> Option<Finding> {
    let parts = Parts::new(Mode::new(Check::Checked, seed), 1, 32);
    let (queue, address) = (&parts.ranks.queues[0], parts.memory.address());
    let kernel =
        |name, node| launch_work(queue, part.instance(name).unwrap(), (1, 1, 0), &parts.args(node));
    let nodes = (0..).zip(nodes).map(|(node, (what, after))| {
        let work = match what {
            Do::Write => kernel("_writes", node),
            Do::Read => kernel("_reads", node),
            Do::Work => kernel("_works", node),
            Do::Fill => Work::Fill { to: address, byte: 1, bytes: 64 },
            Do::Copy => Work::Copy { to: address + 8 * (16 + node), from: address, bytes: 8 },
        };
        Node { work, after: after.to_vec() }
    });
    // SAFETY: the memory outlives the runs, which are waited for.
    let graph = Arc::new(unsafe { Graph::new(nodes.collect(), Vec::new()) });
    for _ in 0..times {
        queue.run(graph.clone());
    }
    parts.ranks.finish()
}

const ALL: [Do; 4] = [Do::Write, Do::Read, Do::Fill, Do::Copy];

#[test]
fn nodes_that_do_not_wait_for_each_other_race_whichever_ran_first() {
    for seed in 0..4 {
        for (a, b) in ALL.into_iter().flat_map(|a| ALL.map(|b| (a, b))) {
            // The second one runs long after the first has ended.
            let late: [(Do, &[u32]); 3] = [(a, &[]), (Do::Work, &[]), (b, &[1])];
            let early: [(Do, &[u32]); 2] = [(a, &[]), (b, &[])];
            for nodes in [&late[..], &early[..]] {
                let found = run(seed, nodes, 1).map(|finding| finding.kind);
                let expected = a.touches(b).then_some(FindingKind::Race);
                assert_eq!(found, expected, "{nodes:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn nodes_that_wait_for_each_other_and_runs_of_a_graph_are_ordered() {
    for seed in 0..4 {
        for (a, b) in ALL.into_iter().flat_map(|a| ALL.map(|b| (a, b))) {
            let straight: [(Do, &[u32]); 2] = [(a, &[]), (b, &[0])];
            // By way of another one, and of two that meet.
            let far: [(Do, &[u32]); 3] = [(a, &[]), (Do::Copy, &[0]), (b, &[1])];
            let diamond: [(Do, &[u32]); 5] =
                [(a, &[]), (Do::Read, &[0]), (Do::Copy, &[0]), (Do::Read, &[0]), (b, &[1, 2, 3])];
            for nodes in [&straight[..], &far[..], &diamond[..]] {
                let found = run(seed, nodes, 3).map(|finding| finding.to_string());
                assert_eq!(found, None, "{nodes:?}, seed {seed}");
            }
        }
    }
}

/// What the lanes of one launch saw of what those of another one wrote, if one block runs at a time; `ranks` are
/// those of two nodes.
fn seen(seed: u64, ranks: [u64; 2], are_ordered: bool) -> Vec<u64> {
    let config = DeviceConfig { multiprocessors: 1, threads: LANES, ..Default::default() };
    let world = Ranks::with(Mode::new(Check::Weak, seed), 1, config);
    let words = 2 * LANES as usize;
    let (memory, host) = (TestMemory::new(8 * words), TestMemory::of_host(64));
    world.upload(0, &memory, &vec![0; words]);
    let parts = Parts { ranks: world, memory, host };
    let queue = &parts.ranks.queues[0];
    let kernel = part.instance("_late").unwrap();
    let nodes = (0..).zip(ranks).map(|(node, rank)| {
        let work = launch_work(queue, kernel, (1, LANES, 0), &parts.args(rank));
        Node { work, after: (0..node).filter(|_| are_ordered).collect() }
    });
    // SAFETY: the memory outlives the run, which is waited for.
    queue.run(Arc::new(unsafe { Graph::new(nodes.collect(), Vec::new()) }));
    assert_eq!(parts.ranks.finish().map(|finding| finding.to_string()), None);
    (words / 2..words).map(|word| parts.memory.get(word)).collect()
}

#[test]
fn a_node_sees_late_what_another_wrote_that_has_ended() {
    // Where one lane saw what was written, all of it was.
    let mut runs = (0..20).flat_map(|seed| [[0, 1], [1, 0]].map(|ranks| seen(seed, ranks, false)));
    assert!(runs.any(|words| words.contains(&0) && words.contains(&1)));
    let mut ordered = (0..20).map(|seed| seen(seed, [0, 1], true));
    assert!(ordered.all(|words| words.iter().all(|&word| word == 1)));
}

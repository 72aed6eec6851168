//! Lanes that cannot go on are told with who they are and where they were.

use std::sync::Arc;

use mscclrs_device::{arch, thread_idx};
use mscclrs_sim::{Check, FindingKind, Graph, Mode, Work};

use crate::common::LIMIT;
use crate::parts::{Parts, parts};

parts! {
    Panics "_panics" = |args| {
        if args.rank == 1 && thread_idx() == 3 {
            let word = args.memory.load();
            assert!(word != 0, "a word is 0");
        }
    }
    Masks "_masks" = |args| {
        if args.rank == 1 {
            args.memory.load();
            // Lanes 0 and 1 wait for lane 2, which waits for lane 1 alone.
            match thread_idx() {
                0 | 1 => arch::warp_sync(0b0111),
                2 => arch::warp_sync(0b0110),
                _ => {}
            }
        }
    }
}

#[test]
fn after_a_finding_no_queue_of_the_world_works() {
    let parts = Parts::new(Mode::new(Check::Checked, 1), 2, 2);
    let before = parts.ranks.queues[0].device().create_queue();
    for rank in 0..2 {
        parts.launch(part.instance("_panics"), rank, (1, 4, 0));
    }
    let finding = parts.ranks.finish().expect("a finding").to_string();
    let after = parts.ranks.queues[0].device().create_queue();
    for queue in [&before, &after, &parts.ranks.queues[0]] {
        let work = Work::Fill { to: parts.memory.address(), byte: 7, bytes: 16 };
        // SAFETY: the memory outlives the work, which is waited for below.
        queue.run(Arc::new(unsafe { Graph::single(work) }));
        let error = queue.synchronize(LIMIT).expect_err("a queue that works");
        assert!(error.to_string().contains(&finding), "{error}");
    }
    assert_eq!(parts.memory.get(0), 0);
}

#[test]
fn a_lane_that_stops_is_named_with_its_place_or_its_last_access() {
    for (name, kind) in [("_panics", FindingKind::Panic), ("_masks", FindingKind::Warp)] {
        let parts = Parts::new(Mode::new(Check::Checked, 1), 2, 2);
        for rank in 0..2 {
            parts.launch(part.instance(name), rank, (1, 4, 0));
        }
        let finding = parts.ranks.finish().expect("a finding");
        println!("{finding}");
        assert_eq!(finding.kind, kind, "{finding}");
        let here = finding.here.as_ref().expect("a place");
        assert_eq!(here.device, 1, "{finding}");
        let after_access = kind == FindingKind::Panic;
        assert_eq!(here.line.contains("its last access"), after_access, "{finding}");
        assert!(here.line.contains("stops.rs"), "{finding}");
        if kind == FindingKind::Panic {
            assert!(here.lane == 3 && finding.what.contains("a word is 0"), "{finding}");
        }
    }
}

//! Shared memory of a block has a size, and its words have places, whatever is looked for.

use mscclrs_device::arch::{shared_load, shared_store};
use mscclrs_device::thread_idx;
use mscclrs_sim::{Check, FindingKind, Mode, TestMemory};

use crate::parts::{Parts, parts};
use crate::world::Ranks;

parts! {
    Outside "_outside" = |_args| {
        shared_store(64, 1);
    }
    Misaligned "_misaligned" = |_args| {
        shared_load(2);
    }
    RacesInShared "_races_in_shared" = |_args| {
        shared_store(12, thread_idx());
    }
    RacesInDevice "_races_in_device" = |args| {
        args.memory.at(1).cast::<u32>().at(1).store(thread_idx());
    }
    ReadsUnwritten "_reads_unwritten" = |args| {
        let word = args.memory.at(3).cast::<u32>();
        word.store(1);
        args.memory.at(2).store(word.at(1).load().into());
    }
}

#[test]
fn what_is_no_word_of_shared_memory_is_named() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        for (name, kind) in
            [("_outside", FindingKind::Outside), ("_misaligned", FindingKind::Misaligned)]
        {
            let parts = Parts::new(Mode::new(check, 1), 1, 2);
            parts.launch(part.instance(name), 0, (1, 1, 64));
            let finding = parts.ranks.finish().expect("a finding");
            assert_eq!(finding.kind, kind, "{finding}");
            assert!(finding.what.contains("shared memory"), "{finding}");
            assert!(finding.here.unwrap().line.contains("shared.rs"));
        }
    }
}

#[test]
fn a_finding_names_the_byte_and_the_piece_of_memory() {
    for (name, lanes, place) in [
        ("_races_in_shared", 2, "byte 0xc of memory 0 (shared memory of a block)"),
        ("_races_in_device", 2, "byte 0xc of memory 0 (32 bytes)"),
        ("_reads_unwritten", 1, "byte 0x1c of memory 0 (32 bytes)"),
    ] {
        let ranks = Ranks::new(Mode::new(Check::Checked, 1), 1);
        let [memory, host] = [TestMemory::new(32), TestMemory::of_host(16)];
        let parts = Parts { ranks, memory, host };
        parts.launch(part.instance(name), 0, (1, lanes, 64));
        let finding = parts.ranks.finish().expect("a finding");
        assert!(finding.what.contains(place), "{finding}");
    }
}

//! Shared memory of a block has a size, and its words have places, whatever is looked for.

use mscclrs_device::arch::{shared_load, shared_store};
use mscclrs_sim::{Check, FindingKind, Mode};

use crate::parts::{Parts, parts};

parts! {
    Outside "_outside" = |_args| {
        shared_store(64, 1);
    }
    Misaligned "_misaligned" = |_args| {
        shared_load(2);
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

//! Lanes of a warp that meet by masks which do not hold what they do.

use mscclrs_device::{ballot, shuffle_xor, thread_idx, warp_sync};
use mscclrs_sim::{Check, Finding, FindingKind, Mode, Site};

use crate::parts::{Parts, parts};

parts! {
    // The lower half asks the upper one, which takes no part.
    AsksOutside "_asks_outside" = |args| {
        let lane = thread_idx();
        if lane < 16 {
            args.memory.at(lane).store(shuffle_xor(0xffff, lane, 16).into());
        }
    }
    AsksInside "_asks_inside" = |args| {
        let lane = thread_idx();
        if lane < 16 {
            args.memory.at(lane).store(shuffle_xor(0xffff, lane, 8).into());
        }
    }
    // A lane's number has five bits, and a GPU takes no more of the mask.
    AsksFar "_asks_far" = |args| {
        let lane = thread_idx();
        args.memory.at(lane).store(shuffle_xor(u32::MAX, lane, 33).into());
    }
    Differs "_differs" = |_args| {
        if thread_idx() == 3 {
            ballot(u32::MAX, true);
        } else {
            warp_sync(u32::MAX);
        }
    }
    Masks "_masks" = |_args| {
        if thread_idx() == 0 {
            ballot(0x1_ffff, true);
        } else if thread_idx() < 16 {
            ballot(0xffff, true);
        }
    }
    OthersOnly "_others_only" = |args| {
        args.memory.at(thread_idx()).store(ballot(0x5555_5555, true).into());
    }
}

/// What was found, and what lane 1 got.
fn run(check: Check, name: &str) -> (Option<Finding>, u64) {
    let parts = Parts::new(Mode::new(check, 1), 1, 32);
    parts.launch(part.instance(name), 0, (1, 32, 0));
    (parts.ranks.finish(), parts.memory.get(1))
}

/// Whether a line of this file is named, and no place after an access.
fn is_here(site: &Site) -> bool {
    site.line.starts_with(file!())
}

const ALL: [Check; 3] = [Check::Ordered, Check::Checked, Check::Weak];

#[test]
fn a_value_of_a_lane_outside_of_the_mask_is_misuse() {
    let finding = run(Check::Checked, "_asks_outside").0.expect("misuse");
    assert_eq!(finding.kind, FindingKind::Warp, "{finding}");
    assert!(finding.what.contains("lane 0 of warp 0 asks by shuffle_xor"), "{finding}");
    assert!(finding.what.contains("lane 16, which is not in the mask 0xffff"), "{finding}");
    assert_eq!(finding.here.as_ref().map(is_here), Some(true), "{finding}");
}

#[test]
fn a_mask_without_the_lane_itself_is_misuse() {
    for check in ALL {
        let finding = run(check, "_others_only").0.expect("misuse");
        assert_eq!(finding.kind, FindingKind::Warp, "{finding}");
        assert!(finding.what.contains("is not in its own mask 0x55555555"), "{finding}");
        assert_eq!(finding.here.as_ref().map(is_here), Some(true), "{finding}");
    }
}

#[test]
fn lanes_that_do_not_do_the_same_are_both_told_with_their_lines() {
    for (name, what) in [("_differs", "different operations"), ("_masks", "different masks")] {
        let finding = run(Check::Checked, name).0.expect("misuse");
        assert_eq!(finding.kind, FindingKind::Warp, "{finding}");
        assert!(finding.what.contains(what), "{finding}");
        let (here, other) = (finding.here.as_ref().unwrap(), finding.other.as_ref().unwrap());
        assert!(is_here(here) && is_here(other) && here.line != other.line, "{finding}");
        assert_ne!(here.lane, other.lane, "{finding}");
    }
}

#[test]
fn values_of_lanes_in_the_mask_are_given() {
    for check in ALL {
        for (name, expected) in [("_asks_inside", 9), ("_asks_far", 0)] {
            let (finding, got) = run(check, name);
            assert_eq!((finding.map(|f| f.to_string()), got), (None, expected), "{name}");
        }
    }
}

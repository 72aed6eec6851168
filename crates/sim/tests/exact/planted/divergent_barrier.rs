//! A barrier in both branches of a condition that differs among the lanes of a block.
#![allow(clippy::if_same_then_else, reason = "the branches are the fault")]

use mscclrs_device::{block_sync, kernels, thread_idx};
use mscclrs_sim::{Check, FindingKind, Mode};

use super::pair::{Pair, PairArgs};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

kernels! {
    module = MODULE;
    pub fn turn<F: Form>(args: PairArgs) threads 64 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, own) = (thread_idx(), args.channel.local.cast::<u32>());
        let value = own.at(lane).load();
        if F::RIGHT {
            block_sync();
            own.at(63 - lane).store(value);
        } else if lane < 32 {
            block_sync();
            own.at(63 - lane).store(value);
        } else {
            block_sync();
            own.at(63 - lane).store(value);
        }
        block_sync();
        args.out.at(lane).store(own.at(lane).load());
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.launch(0, &turn, form, 64, &pair.args(0));
    let finding = pair.finish();
    let right = (0..64).all(|lane| pair.out(0, lane) == super::pair::datum(0, 63 - lane));
    Outcome { finding, right }
}

#[test]
fn a_barrier_in_two_branches_is_named_with_both_lines() {
    let finding = super::finding(Check::Checked, run);
    assert_eq!(finding.kind, FindingKind::DivergentBarrier);
    let (here, other) = (super::here(&finding), super::other(&finding));
    assert!(here.line.contains("divergent_barrier.rs"), "{finding}");
    assert!(other.line.contains("divergent_barrier.rs") && here.line != other.line, "{finding}");
    assert_ne!(here.lane < 32, other.lane < 32, "{finding}");
}

#[test]
fn one_barrier_for_all_lanes_is_right() {
    super::stays_right(run);
}

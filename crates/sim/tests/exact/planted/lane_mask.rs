//! A warp that is not full meets by the mask of a full one.

use mscclrs_device::{block_dim, kernels, shuffle_xor, thread_idx};
use mscclrs_sim::{Check, FindingKind, Mode};

use super::pair::{Pair, PairArgs, datum};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

/// A warp and 8 lanes of the next.
const LANES: u32 = 40;

kernels! {
    module = MODULE;
    pub fn swap<F: Form>(args: PairArgs) threads 64 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, own) = (thread_idx(), args.channel.local.cast::<u32>());
        let there = (block_dim() - (lane & !31)).min(32);
        let mask = if F::RIGHT { u32::MAX >> (32 - there) } else { u32::MAX };
        args.out.at(lane).store(shuffle_xor(mask, own.at(lane).load(), 1));
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.launch(0, &swap, form, LANES, &pair.args(0));
    let finding = pair.finish();
    let right = (0..LANES).all(|lane| pair.out(0, lane) == datum(0, lane ^ 1));
    Outcome { finding, right }
}

#[test]
fn a_mask_with_lanes_that_are_not_there_is_named() {
    let finding = super::finding(Check::Checked, run);
    assert_eq!(finding.kind, FindingKind::Warp);
    assert!(finding.what.contains("warp 1 meet by the mask 0xffffffff"), "{finding}");
    assert!(finding.what.contains("lane 8 has ended or does not exist"), "{finding}");
    let here = super::here(&finding);
    assert_eq!((here.kernel, here.device, here.block), ("swap_wrong", 0, 0), "{finding}");
    assert!((32..LANES).contains(&here.lane), "{finding}");
}

#[test]
fn a_mask_of_the_lanes_that_are_there_is_right() {
    super::stays_right(run);
}

//! Shared memory of a block that lanes write again while others may still have to read it: no barrier
//! is between.

use mscclrs_device::arch::{shared_load, shared_store};
use mscclrs_device::{block_dim, block_sync, kernels, thread_idx};
use mscclrs_sim::{Check, FindingKind, Mode};

use super::pair::{Pair, PairArgs, datum};
use super::{Form, Outcome, Right, Wrong};
use crate::common::{MODULE, launch_kernel};

const LANES: u32 = 64;

kernels! {
    module = MODULE;
    pub fn turn<F: Form>(args: PairArgs) threads 64 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, own) = (thread_idx(), args.channel.local.cast::<u32>());
        let other = block_dim() - 1 - lane;
        shared_store(4 * lane, own.at(lane).load());
        block_sync();
        let seen = shared_load(4 * other);
        if F::RIGHT {
            block_sync();
        }
        shared_store(4 * lane, seen);
        block_sync();
        args.out.at(lane).store(shared_load(4 * other));
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    let kernel = turn.instance(form).unwrap();
    launch_kernel(&pair.ranks.queues[0], kernel, (1, LANES, 4 * LANES), &pair.args(0));
    let finding = pair.finish();
    let right = (0..LANES).all(|lane| pair.out(0, lane) == datum(0, lane));
    Outcome { finding, right }
}

#[test]
fn shared_memory_written_again_without_a_barrier_is_a_race() {
    let finding = super::finding(Check::Checked, run);
    assert_eq!(finding.kind, FindingKind::Race);
    let (here, other) = (super::here(&finding), super::other(&finding));
    for site in [here, other] {
        assert!(site.line.contains("shared_race.rs") && site.block == 0, "{finding}");
    }
    assert_eq!(here.lane + other.lane, LANES - 1, "{finding}");
    assert!(finding.missing.as_ref().unwrap().contains("barrier"), "{finding}");
}

#[test]
fn shared_memory_written_again_without_a_barrier_gives_what_was_not_meant() {
    super::gives_wrong_results(Check::Ordered, run);
}

#[test]
fn shared_memory_after_a_barrier_is_right() {
    super::stays_right(run);
}

//! A put by all lanes of a block that one lane announces before the others are done.

use mscclrs_device::{Aborted, block_any, block_dim, block_sync, kernels, thread_idx};
use mscclrs_sim::{Check, Mode};

use super::pair::{Pair, PairArgs, WORDS};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

kernels! {
    module = MODULE;
    pub fn send<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, lanes) = (thread_idx(), block_dim());
        if args.rank == 0 {
            args.channel.put(0, 0, 4 * args.count, lane, lanes);
            if F::RIGHT {
                block_sync();
            }
            if lane == 0 {
                args.channel.signal();
            }
            return Ok(());
        }
        if block_any(lane == 0 && args.channel.wait(&args.guard).is_err()) {
            return Err(Aborted);
        }
        for word in (lane..args.count as u32).step_by(lanes as usize) {
            args.out.at(word).store(args.channel.local.cast::<u32>().at(word).load());
        }
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.launch_both(&send, form, 32);
    let finding = pair.finish();
    Outcome { finding, right: pair.got_the_data(1, WORDS) }
}

#[test]
fn a_signal_before_all_lanes_have_put_is_a_race_with_another_lane() {
    let finding = super::finding(Check::Checked, run);
    super::is_race_between_ranks(&finding, "missing_barrier.rs", "a release by the first lane");
    let sites = [super::here(&finding), super::other(&finding)];
    let sender = sites.into_iter().find(|site| site.device == 0).unwrap();
    assert_ne!(sender.lane, 0, "what the lane that signals has put is ordered: {finding}");
}

#[test]
fn a_signal_before_all_lanes_have_put_lets_old_data_be_seen() {
    super::gives_wrong_results(Check::Weak, run);
}

#[test]
fn a_signal_after_all_lanes_have_put_is_right() {
    super::stays_right(run);
}

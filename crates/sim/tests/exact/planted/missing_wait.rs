//! A rank that reads what the peer puts without waiting for its signal.

use mscclrs_device::{Aborted, block_any, block_dim, block_sync, kernels, thread_idx};
use mscclrs_sim::{Check, Mode};

use super::pair::{Pair, PairArgs, WORDS};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

kernels! {
    module = MODULE;
    pub fn receive<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, lanes) = (thread_idx(), block_dim());
        if args.rank == 0 {
            args.channel.put(0, 0, 4 * args.count, lane, lanes);
            block_sync();
            if lane == 0 {
                args.channel.signal();
            }
            return Ok(());
        }
        if F::RIGHT && block_any(lane == 0 && args.channel.wait(&args.guard).is_err()) {
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
    pair.launch_both(&receive, form, 32);
    let finding = pair.finish();
    Outcome { finding, right: pair.got_the_data(1, WORDS) }
}

#[test]
fn a_read_without_wait_is_a_race() {
    let finding = super::finding(Check::Checked, run);
    super::is_race_between_ranks(&finding, "missing_wait.rs", "a release by the first lane");
}

#[test]
fn a_read_without_wait_sees_old_data() {
    super::gives_wrong_results(Check::Weak, run);
    super::gives_wrong_results(Check::Ordered, run);
}

#[test]
fn a_read_after_a_wait_is_right() {
    super::stays_right(run);
}

//! Lanes without work leave before a barrier that the others come to.

use mscclrs_device::{Aborted, block_any, kernels, thread_idx};
use mscclrs_sim::{Check, FindingKind, Mode};

use super::pair::{Pair, PairArgs};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

const WORK: u32 = 40;

kernels! {
    module = MODULE;
    pub fn send<F: Form>(args: PairArgs) threads 64 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, busy) = (thread_idx(), thread_idx() < WORK);
        if !F::RIGHT && !busy {
            return Ok(());
        }
        let channel = &args.channel;
        if args.rank == 0 {
            if busy {
                channel.put(4 * u64::from(lane), 4 * u64::from(lane), 4, 0, 1);
            }
            mscclrs_device::block_sync();
            if lane == 0 {
                channel.signal();
            }
            return Ok(());
        }
        if block_any(lane == 0 && channel.wait(&args.guard).is_err()) {
            return Err(Aborted);
        }
        if busy {
            args.out.at(lane).store(channel.local.cast::<u32>().at(lane).load());
        }
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.launch_both(&send, form, 64);
    let finding = pair.finish();
    Outcome { finding, right: pair.got_the_data(1, WORK) }
}

#[test]
fn a_lane_that_left_before_a_barrier_is_named() {
    let finding = super::finding(Check::Checked, run);
    assert_eq!(finding.kind, FindingKind::MissingLane);
    let (here, gone) = (super::here(&finding), super::other(&finding));
    assert!(here.line.contains("early_exit.rs") && here.kernel == "send_wrong", "{finding}");
    assert!(here.lane < WORK && gone.lane >= WORK && here.device == gone.device, "{finding}");
}

#[test]
fn lanes_without_work_that_come_to_the_barrier_are_right() {
    super::stays_right(run);
}

//! A put whose offset is a header's size too large, so that its end leaves the peer's memory.

use mscclrs_device::{Aborted, block_any, block_dim, block_sync, kernels, thread_idx};
use mscclrs_sim::{Check, FindingKind, Mode};

use super::pair::{Pair, PairArgs, WORDS};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

kernels! {
    module = MODULE;
    pub fn put_half<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, lanes, channel) = (thread_idx(), block_dim(), &args.channel);
        let half = 2 * args.count;
        if args.rank == 0 {
            channel.put(0, 0, half, lane, lanes);
            let to = if F::RIGHT { half } else { half + 16 };
            channel.put(to, half, half, lane, lanes);
            block_sync();
            if lane == 0 {
                channel.signal();
            }
            return Ok(());
        }
        if block_any(lane == 0 && channel.wait(&args.guard).is_err()) {
            return Err(Aborted);
        }
        for word in (lane..args.count as u32).step_by(lanes as usize) {
            args.out.at(word).store(channel.local.cast::<u32>().at(word).load());
        }
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.launch_both(&put_half, form, 32);
    let finding = pair.finish();
    Outcome { finding, right: pair.got_the_data(1, WORDS) }
}

#[test]
fn a_put_past_the_peers_memory_is_outside() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        let finding = super::finding(check, run);
        assert_eq!(finding.kind, FindingKind::Outside);
        assert!(finding.what.contains("16 bytes at byte 256 of memory that has 256"), "{finding}");
        let here = super::here(&finding);
        assert_eq!((here.kernel, here.device, here.block), ("put_half_wrong", 0, 0), "{finding}");
        assert!(here.line.contains("outside_put.rs") && here.what == "plain store", "{finding}");
    }
}

#[test]
fn a_put_into_the_peers_memory_is_right() {
    super::stays_right(run);
}

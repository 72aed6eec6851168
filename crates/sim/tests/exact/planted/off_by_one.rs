//! A loop over a tail that goes one element too far.

use mscclrs_device::{block_dim, kernels, thread_idx};
use mscclrs_sim::{Check, FindingKind, Mode};

use super::pair::{Pair, PairArgs, WORDS};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

kernels! {
    module = MODULE;
    pub fn copy_out<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let own = args.channel.remote.cast::<u32>();
        let last = if F::RIGHT { args.count as u32 } else { args.count as u32 + 1 };
        let mut word = thread_idx();
        while word < last {
            args.out.at(word).store(own.at(word).load());
            word += block_dim();
        }
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.launch(0, &copy_out, form, 32, &pair.args(0));
    let finding = pair.finish();
    Outcome { finding, right: pair.got_the_data(0, WORDS) }
}

#[test]
fn an_element_too_many_is_outside_of_the_memory() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        let finding = super::finding(check, run);
        assert_eq!(finding.kind, FindingKind::Outside);
        assert!(finding.what.contains("4 bytes at byte 256 of memory that has 256"), "{finding}");
        let here = super::here(&finding);
        assert_eq!((here.what.as_str(), here.device, here.lane), ("plain load", 0, 0), "{finding}");
        assert!(here.line.contains("off_by_one.rs"), "{finding}");
    }
}

#[test]
fn all_elements_and_no_more_are_right() {
    super::stays_right(run);
}

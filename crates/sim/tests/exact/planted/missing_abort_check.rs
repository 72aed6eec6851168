//! A loop that polls a peer's word and looks at nothing else: when the peer is gone it has no end.

use mscclrs_device::{Aborted, Relaxed, Sys, kernels};
use mscclrs_sim::{Check, FindingKind, Mode};

use super::pair::{Pair, PairArgs};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

kernels! {
    module = MODULE;
    pub fn receive<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        args.out.store(1);
        if F::RIGHT {
            let ended = args.channel.wait(&args.guard);
            args.out.at(1).store(u32::from(ended == Err(Aborted)));
            return ended;
        }
        while args.channel.semaphore.inbound.load_atomic(Relaxed, Sys) == 0 {}
        Ok(())
    }
}

/// The peer never comes.
fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.ranks.abort();
    pair.launch(1, &receive, form, 1, &pair.args(1));
    let finding = pair.finish();
    Outcome { finding, right: (pair.out(1, 0), pair.out(1, 1)) == (1, 1) }
}

#[test]
fn a_poll_without_a_way_out_is_an_endless_poll() {
    let finding = super::finding(Check::Checked, run);
    assert_eq!(finding.kind, FindingKind::EndlessPoll);
    let here = super::here(&finding);
    assert!(here.line.contains("missing_abort_check.rs"), "{finding}");
    assert_eq!((here.device, here.block, here.lane), (1, 0, 0), "{finding}");
    assert!(finding.what.contains("a poll needs a guard"), "{finding}");
}

#[test]
fn a_wait_with_a_guard_ends_by_the_abort_word() {
    super::stays_right(run);
}

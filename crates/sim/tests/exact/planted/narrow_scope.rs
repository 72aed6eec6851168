//! A semaphore for the blocks of one GPU between two GPUs: it has GPU scope, which ends at the GPU.

use mscclrs_device::{DeviceSemaphore, kernels};
use mscclrs_sim::{Check, FindingKind, Mode};

use super::pair::{Pair, PairArgs};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

kernels! {
    module = MODULE;
    pub fn tell<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let channel = &args.channel;
        if args.rank == 0 {
            channel.write::<u32>(0, 42);
            if F::RIGHT {
                channel.signal();
            } else {
                DeviceSemaphore { count: channel.semaphore.remote }.release();
            }
        } else {
            if F::RIGHT {
                channel.wait(&args.guard)?;
            } else {
                DeviceSemaphore { count: channel.semaphore.inbound }.acquire(&args.guard)?;
            }
            args.out.store(channel.local.cast::<u32>().load());
        }
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.launch_both(&tell, form, 1);
    let finding = pair.finish();
    Outcome { finding, right: pair.out(1, 0) == 42 }
}

#[test]
fn gpu_scope_between_gpus_is_a_race_that_names_both_scopes() {
    let finding = super::finding(Check::Checked, run);
    super::is_race_between_ranks(&finding, ".rs", "a scope that holds both lanes: ");
    assert!(finding.missing.as_ref().unwrap().contains("GPU scope"), "{finding}");
    assert_eq!(finding.kind, FindingKind::Race);
}

#[test]
fn gpu_scope_between_gpus_orders_no_data() {
    super::gives_wrong_results(Check::Weak, run);
}

#[test]
fn system_scope_between_gpus_is_right() {
    super::stays_right(run);
}

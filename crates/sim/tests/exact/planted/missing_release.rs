//! A put that is announced by a signal without release: the peer may see the signal first.

use mscclrs_device::{Aborted, block_any, block_dim, block_sync, kernels, thread_idx};
use mscclrs_sim::{Check, LateLoad, Mode};

use super::pair::{Pair, PairArgs, WORDS};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

kernels! {
    module = MODULE;
    pub fn send<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, lanes) = (thread_idx(), block_dim());
        if args.rank == 0 {
            args.channel.put(0, 0, 4 * args.count, lane, lanes);
            block_sync();
            if lane == 0 {
                if F::RIGHT { args.channel.signal() } else { args.channel.signal_relaxed() }
            }
        } else {
            let ended = lane == 0 && args.channel.wait(&args.guard).is_err();
            if block_any(ended) {
                return Err(Aborted);
            }
            for word in (lane..args.count as u32).step_by(lanes as usize) {
                args.out.at(word).store(args.channel.local.cast::<u32>().at(word).load());
            }
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
fn a_signal_without_release_is_a_race() {
    let finding = super::finding(Check::Checked, run);
    super::is_race_between_ranks(&finding, "missing_release.rs", "a release: ");
}

#[test]
fn a_signal_without_release_lets_old_data_be_seen() {
    super::gives_wrong_results(Check::Weak, run);
    // The load is of the line above that reads, the store that of the put.
    let late = crate::world::late_loads();
    let LateLoad { load, missed, is_plain, times } = &late[0];
    let told = LateLoad::told(&late, true);
    println!("{told}");
    assert!(*is_plain && *times > 0 && load.line.contains("missing_release.rs"), "{told}");
    assert_eq!((load.device, missed.device), (1, 0), "{told}");
    assert!(missed.what.contains("store") && told.contains(", what was there before"), "{told}");
}

#[test]
fn a_signal_with_release_is_right() {
    super::stays_right(run);
}

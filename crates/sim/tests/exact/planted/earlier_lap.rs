//! Slots that were not written for a whole lap of 2^32 epochs hold a flag that looks right, unless they
//! were cleaned at the lap's end.

use mscclrs_device::{
    Epochs, Ll8, Packet, block_dim, clean_lap, epoch_flag, epoch_next, kernels, thread_idx,
};
use mscclrs_sim::{Check, Mode};

use super::pair::{HALF, Pair, PairArgs, datum};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

const LANES: u32 = 8;
const MANY: u64 = 32;
const FEW: u64 = 8;
/// Of the two calls with many packets.
const EPOCH: u64 = 5;

kernels! {
    module = MODULE;
    pub fn exchange<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, lanes, packets) = (thread_idx(), block_dim(), args.count as u32);
        let epoch = Epochs(args.epochs).begin(&args.guard).check()?;
        let (half, flag) = ((epoch & 1) * u64::from(HALF), epoch_flag(epoch));
        args.channel.put_packets::<Ll8>(half, 0, packets, flag, lane, lanes);
        let inbox = args.channel.inbox.at64(half);
        for at in (lane..packets).step_by(lanes as usize) {
            args.out.at(at).store(Ll8::take(&args.guard, inbox.at(at), flag, 0)?);
        }
        if F::RIGHT && Epochs::cleans(epoch) {
            clean_lap(inbox, 1, HALF, Ll8::WORDS, lane, lanes);
        }
        Epochs(args.epochs).advance(epoch_next(epoch));
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    let call = |count: u64, change: u32| {
        for rank in 0..2 {
            pair.set_data(rank, |word| datum(rank, word) + change);
            let args = PairArgs { count, ..pair.args(rank) };
            pair.launch(rank, &exchange, form, LANES, &args);
        }
    };
    let go_to = |epoch| (0..2).for_each(|rank| pair.set_epoch(rank, epoch));
    go_to(EPOCH);
    call(MANY, 0);
    // Long after.
    go_to(u64::from(u32::MAX) - 1);
    (0..5).for_each(|change| call(FEW, change));
    assert_eq!(after(u64::from(u32::MAX) - 1, 5), (1 << 32) + EPOCH);
    call(MANY, 100);
    let finding = pair.finish();
    let last = |rank: usize, word| datum(1 - rank, word) + 100;
    let words = 0..MANY as u32;
    let right =
        (0..2).all(|rank| words.clone().all(|word| pair.out(rank, word) == last(rank, word)));
    Outcome { finding, right }
}

fn after(epoch: u64, calls: u32) -> u64 {
    (0..calls).fold(epoch, |epoch, _| epoch_next(epoch))
}

#[test]
fn a_flag_of_an_earlier_lap_lets_old_packets_be_taken() {
    super::gives_wrong_results_with_a_seed(Check::Ordered, run);
    super::gives_wrong_results_with_a_seed(Check::Weak, run);
}

#[test]
fn slots_that_are_cleaned_at_the_end_of_a_lap_are_right() {
    super::stays_right(run);
}

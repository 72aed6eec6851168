//! A stream of chunks one way through two slots in turn. In an exchange the peer's own data says that a
//! slot may be written again; in a stream nothing does but a credit, which the receiver has to give.

use mscclrs_device::{Aborted, block_any, block_dim, block_sync, kernels, thread_idx};
use mscclrs_sim::{Check, Mode};

use super::pair::{Pair, PairArgs, datum};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

const CHUNK: u32 = 8;
const CHUNKS: u32 = 8;

kernels! {
    module = MODULE;
    pub fn stream<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, lanes, channel) = (thread_idx(), block_dim(), &args.channel);
        let bytes = 4 * u64::from(CHUNK);
        for chunk in 0..CHUNKS {
            let slot = u64::from(chunk & 1) * bytes;
            if args.rank == 0 {
                let credit = F::RIGHT && chunk >= 2;
                if block_any(credit && lane == 0 && channel.wait(&args.guard).is_err()) {
                    return Err(Aborted);
                }
                channel.put(slot, u64::from(chunk) * bytes, bytes, lane, lanes);
                block_sync();
                if lane == 0 {
                    channel.signal();
                }
            } else {
                if block_any(lane == 0 && channel.wait(&args.guard).is_err()) {
                    return Err(Aborted);
                }
                let from = channel.local.at64(slot).cast::<u32>();
                for word in (lane..CHUNK).step_by(lanes as usize) {
                    args.out.at(chunk * CHUNK + word).store(from.at(word).load());
                }
                block_sync();
                if F::RIGHT && lane == 0 {
                    channel.signal();
                }
            }
        }
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.launch_both(&stream, form, CHUNK);
    let finding = pair.finish();
    let right = (0..CHUNK * CHUNKS).all(|word| pair.out(1, word) == datum(0, word));
    Outcome { finding, right }
}

#[test]
fn parity_without_credits_is_a_race_of_a_put_with_a_read() {
    let finding = super::finding(Check::Checked, run);
    super::is_race_between_ranks(&finding, "parity_for_credits.rs", "a release by the first lane");
}

#[test]
fn parity_without_credits_loses_chunks() {
    super::gives_wrong_results(Check::Ordered, run);
    super::gives_wrong_results(Check::Weak, run);
}

#[test]
fn a_stream_with_credits_is_right() {
    super::stays_right(run);
}

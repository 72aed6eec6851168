//! A graph that is replayed, with the call's number among its arguments: every replay has the number of
//! the first, and the packets of the replay before look like its own.

use std::sync::Arc;

use mscclrs_device::{Epochs, Ll8, Packet, block_dim, epoch_flag, epoch_next, kernels, thread_idx};
use mscclrs_sim::{Check, Graph, Launch, Mode, Work};

use super::pair::{HALF, Pair, PairArgs, WORDS, datum};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

const LANES: u32 = 8;
const REPLAYS: u32 = 3;

kernels! {
    module = MODULE;
    pub fn exchange<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, lanes, packets) = (thread_idx(), block_dim(), args.count as u32);
        let begun = Epochs(args.epochs).begin(&args.guard).check()?;
        let epoch = if F::RIGHT { begun } else { args.epoch };
        let (half, flag) = ((epoch & 1) * u64::from(HALF), epoch_flag(epoch));
        args.channel.put_packets::<Ll8>(half, 0, packets, flag, lane, lanes);
        let inbox = args.channel.inbox.at64(half);
        for at in (lane..packets).step_by(lanes as usize) {
            args.out.at(at).store(Ll8::take(&args.guard, inbox.at(at), flag, 0)?);
        }
        Epochs(args.epochs).advance(epoch_next(begun));
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    let kernel = exchange.instance(form).unwrap();
    let graphs = [0, 1].map(|rank| {
        let args = PairArgs { epoch: 9, ..pair.args(rank) };
        // SAFETY: plain data.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(&args).cast::<u8>(), size_of_val(&args))
        };
        let config = pair.ranks.queues[rank].device().config();
        // SAFETY: the pair keeps its memory until its queues are done.
        let launch = unsafe { Launch::new(kernel, 1, LANES, 0, bytes, config) }.unwrap();
        // SAFETY: as above.
        Arc::new(unsafe { Graph::single(Work::Launch(launch)) })
    });
    for replay in 0..REPLAYS {
        for (rank, graph) in graphs.iter().enumerate() {
            pair.set_data(rank, |word| datum(rank, word) + 100 * replay);
            pair.ranks.queues[rank].run(graph.clone());
        }
    }
    let finding = pair.finish();
    let last = |rank: usize, word| datum(1 - rank, word) + 100 * (REPLAYS - 1);
    let right = (0..2).all(|rank| (0..WORDS).all(|word| pair.out(rank, word) == last(rank, word)));
    Outcome { finding, right }
}

#[test]
fn a_replay_with_the_same_epoch_takes_packets_of_the_replay_before() {
    super::gives_wrong_results(Check::Ordered, run);
    super::gives_wrong_results(Check::Weak, run);
}

#[test]
fn a_replay_with_epochs_of_the_device_is_right() {
    super::stays_right(run);
}

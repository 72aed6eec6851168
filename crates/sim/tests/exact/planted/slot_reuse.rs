//! An exchange by packets that writes a slot again one call early.
//!
//! Who has the peer's packets of call k knows that the peer has sent them, not that it has read this
//! rank's. With two halves in turn, the packets of call k + 1 say that; with one, they fall on it.

use mscclrs_device::{Epochs, Ll8, block_dim, epoch_flag, epoch_next, kernels, thread_idx};
use mscclrs_sim::{Check, FindingKind, Mode};

use super::pair::{HALF, Pair, PairArgs};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

const LANES: u32 = 8;
const CALLS: u32 = 6;

kernels! {
    module = MODULE;
    pub fn exchange<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, lanes, packets) = (thread_idx(), block_dim(), args.count as u32);
        let epoch = Epochs(args.epochs).begin(&args.guard).check()?;
        let half = if F::RIGHT { (epoch & 1) * u64::from(HALF) } else { 0 };
        let flag = epoch_flag(epoch);
        args.channel.put_packets::<Ll8>(half, 0, packets, flag, lane, lanes);
        let inbox = args.channel.inbox.at64(half);
        for at in (lane..packets).step_by(lanes as usize) {
            let payload = <Ll8 as mscclrs_device::Packet>::take(&args.guard, inbox.at(at), flag, 0)?;
            args.out.at(at).store(payload);
        }
        Epochs(args.epochs).advance(epoch_next(epoch));
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    for _ in 0..CALLS {
        for rank in 0..2 {
            let args = PairArgs { count: 32, ..pair.args(rank) };
            pair.launch(rank, &exchange, form, LANES, &args);
        }
    }
    let finding = pair.finish();
    Outcome { finding, right: (0..2).all(|rank| pair.got_the_data(rank, 32)) }
}

#[test]
fn a_slot_written_one_call_early_is_a_wait_that_never_ends() {
    for check in [Check::Checked, Check::Weak] {
        let finding = super::finding(check, run);
        assert_eq!(finding.kind, FindingKind::Deadlock);
        let waits = finding.steps.join("\n");
        assert!(waits.contains("kernel exchange_wrong block 0"), "{finding}");
        assert!(waits.contains("wait for a packet"), "{finding}");
        assert!(waits.contains("slot_reuse.rs"), "{finding}");
    }
}

#[test]
fn two_halves_in_turn_are_right() {
    super::stays_right(run);
}

//! A packet of 16 bytes whose flag is in one half only: the halves may come one after the other.

use mscclrs_device::{DeviceResult, Global, Guard, Ll16, Packet, WaitKind, kernels, poll};
use mscclrs_sim::{Check, Mode};

use super::pair::{Pair, PairArgs};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

/// What 16 bytes would carry if they were whole.
const DATA: (u32, u32) = (7, 8);

/// Waits for the second half alone.
#[track_caller]
fn take_trusting(guard: &Guard, at: Global<u64>, flag: u32) -> DeviceResult<(u32, u32)> {
    let wanted = u64::from(flag) << 32;
    poll(guard, at.at(1), wanted, WaitKind::Packet, 0, |word| word >> 32 == u64::from(flag))?;
    let (first, second) = at.load_pair();
    Ok((first as u32, second as u32))
}

kernels! {
    module = MODULE;
    pub fn send<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let flag = 3;
        if args.rank == 0 {
            Ll16::put(args.channel.outbox, DATA, flag);
            return Ok(());
        }
        let (inbox, guard) = (args.channel.inbox, &args.guard);
        let (first, second) = if F::RIGHT {
            Ll16::take(guard, inbox, flag, 0)?
        } else {
            take_trusting(guard, inbox, flag)?
        };
        args.out.store(first);
        args.out.at(1).store(second);
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    pair.launch_both(&send, form, 1);
    let finding = pair.finish();
    Outcome { finding, right: (pair.out(1, 0), pair.out(1, 1)) == DATA }
}

#[test]
fn a_half_without_a_flag_comes_late_in_weak_mode() {
    super::gives_wrong_results(Check::Weak, run);
    let late = crate::world::late_loads();
    assert!(!late[0].is_plain && late[0].load.line.contains("torn_pair.rs"), "{late:?}");
}

#[test]
fn a_flag_in_each_half_is_right() {
    super::stays_right(run);
}

//! A barrier of the grid in a launch of more blocks than the device holds at once.

use mscclrs_device::{
    DeviceSyncer, Global, Guard, block_dim, block_idx, grid_dim, kernel_args, kernels, thread_idx,
};
use mscclrs_sim::{Check, DeviceConfig, FindingKind, Mode, TestMemory};

use super::{Form, Outcome, Right, Wrong};
use crate::common::{MODULE, launch_kernel};
use crate::world::Ranks;

const LANES: u32 = 32;

kernel_args! {
    pub struct GridArgs {
        pub guard: Guard,
        pub syncer: DeviceSyncer,
        pub data: Global<u64>,
        pub out: Global<u64>,
    }
}

kernels! {
    module = MODULE;
    // The kernels are the same; the launches differ.
    pub fn turn<F: Form>(args: GridArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let own = block_idx() * block_dim() + thread_idx();
        args.data.at(own).store(own.into());
        args.syncer.sync(&args.guard)?;
        let last = grid_dim() * block_dim() - 1;
        args.out.at(own).store(args.data.at(last - own).load());
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let config = DeviceConfig { multiprocessors: 2, threads: LANES, ..Default::default() };
    let resident = config.resident_blocks(LANES, 0);
    let blocks = if form == "_right" { resident } else { resident + 1 };
    let ranks = Ranks::with(mode, 1, config);
    let [count, data, out] = [16, 1024, 1024].map(TestMemory::new);
    let args = GridArgs {
        guard: ranks.guard(),
        syncer: DeviceSyncer { count: Global::from_address(count.address()) },
        data: Global::from_address(data.address()),
        out: Global::from_address(out.address()),
    };
    launch_kernel(&ranks.queues[0], turn.instance(form).unwrap(), (blocks, LANES, 0), &args);
    let finding = ranks.finish();
    let lanes = u64::from(blocks * LANES);
    let right = (0..lanes).all(|lane| out.get(lane as usize) == lanes - 1 - lane);
    Outcome { finding, right }
}

#[test]
fn more_blocks_than_are_resident_wait_for_each_other() {
    for check in [Check::Checked, Check::Weak] {
        let finding = super::finding(check, run);
        assert_eq!(finding.kind, FindingKind::Deadlock);
        let waits = finding.steps.join("\n");
        assert!(waits.contains("kernel turn_wrong: 1 of 3 blocks have no place yet"), "{finding}");
        assert!(waits.contains("lane 0 waits for a grid barrier"), "{finding}");
        assert!(waits.contains("co_residency.rs"), "{finding}");
    }
}

#[test]
fn as_many_blocks_as_are_resident_are_right() {
    super::stays_right(run);
}

//! A launch that still has the address of memory that is mapped no more.

use mscclrs_device::{Global, block_dim, kernels, thread_idx};
use mscclrs_sim::{Check, FindingKind, MappedMemory, MemoryOwner, Mode};

use super::pair::{Pair, PairArgs, WORDS};
use super::{Form, Outcome, Right, Wrong};
use crate::common::MODULE;

kernels! {
    module = MODULE;
    // The kernels are the same; what differs is when the host gives the memory back.
    pub fn copy_out<F: Form>(args: PairArgs) threads 32 for { "_right" = <Right>, "_wrong" = <Wrong>, } {
        let (lane, lanes) = (thread_idx(), block_dim());
        args.channel.put(0, 0, 4 * args.count, lane, lanes);
        Ok(())
    }
}

fn run(mode: Mode, form: &str) -> Outcome {
    let pair = Pair::new(mode);
    // The peer's memory, as this rank has mapped it.
    let words = vec![0_u128; WORDS as usize / 4];
    let address = words.as_ptr() as u64;
    let (bytes, object) = (4 * u64::from(WORDS), MappedMemory::new_object());
    let mapped = MappedMemory::new(address, bytes, object, MemoryOwner::Device);
    let mut args = pair.args(0);
    args.channel.remote = Global::from_address(address);
    pair.launch(0, &copy_out, form, 32, &args);
    if form == "_wrong" {
        drop(mapped);
        return Outcome { finding: pair.finish(), right: false };
    }
    let finding = pair.finish();
    drop(mapped);
    // SAFETY: the launch has ended, and the vector has these bytes.
    let first = unsafe { (address as *const u32).read_volatile() };
    Outcome { finding, right: first == super::pair::datum(0, 0) }
}

#[test]
fn memory_that_was_given_back_is_named() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        let finding = super::finding(check, run);
        assert_eq!(finding.kind, FindingKind::Released);
        assert!(finding.what.contains("of 256 bytes that have been released"), "{finding}");
        let here = super::here(&finding);
        assert_eq!((here.kernel, here.device), ("copy_out_wrong", 0), "{finding}");
        assert!(here.line.contains("use_after_unmapping.rs"), "{finding}");
    }
}

#[test]
fn memory_that_is_given_back_after_the_work_is_right() {
    super::stays_right(run);
}

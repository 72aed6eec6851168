//! One piece of memory that ranks reach at addresses of their own, as a peer's memory is mapped, and memory that
//! comes where other memory was: what happened to a word does not depend on where it lies.

use std::collections::BTreeSet;
use std::convert::Infallible;

use mscclrs_device::{Global, Relaxed, Sys};
use mscclrs_sim::{
    Check, Exploration, MappedMemory, MemoryOwner, Mode, Outcome, TestMemory, explore,
};

use crate::common::launch_kernel;
use crate::parts::{PartArgs, Parts, parts};
use crate::world::ran;

const PAGE: usize = 4096;

parts! {
    // What the second one sees tells how often, and where, the first one was held up.
    Moments "_moments" = |args| {
        let memory = args.memory;
        if args.rank == 0 {
            (0..2).for_each(|word| memory.at(word).store_atomic(Relaxed, Sys, 1));
        } else {
            let seen = [0, 0, 1, 1].map(|word| memory.at(word).load_atomic(Relaxed, Sys));
            let seen = seen.iter().fold(0, |seen, word| seen * 2 + word);
            args.host.at(1).store_atomic(Relaxed, Sys, seen);
        }
    }
    Adds "_adds" = |args| {
        (0..2).for_each(|_| args.memory.reduce_add(Relaxed, Sys, 1));
    }
}

/// A page of memory that is mapped twice.
struct Twice {
    addresses: [u64; 2],
    _known: [MappedMemory; 2],
}

impl Twice {
    fn new() -> Twice {
        let object = MappedMemory::new_object();
        // SAFETY: a new file, which nobody else has, and places that the system chooses.
        let addresses = unsafe {
            let file = libc::memfd_create(c"twice".as_ptr(), libc::MFD_CLOEXEC);
            assert!(file >= 0 && libc::ftruncate(file, PAGE as i64) == 0);
            let addresses = [(); 2].map(|()| {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let place = std::ptr::null_mut();
                let at = libc::mmap(place, PAGE, access, libc::MAP_SHARED, file, 0);
                assert_ne!(at, libc::MAP_FAILED);
                at as u64
            });
            libc::close(file);
            addresses
        };
        let known =
            addresses.map(|at| MappedMemory::new(at, PAGE as u64, object, MemoryOwner::Device));
        Twice { addresses, _known: known }
    }
}

impl Drop for Twice {
    fn drop(&mut self) {
        for address in self.addresses {
            // SAFETY: mapped above, and no kernel runs any more.
            unsafe { libc::munmap(address as *mut libc::c_void, PAGE) };
        }
    }
}

/// Both ranks at once, each with its address of the memory; the second word of host memory, if nothing was
/// found.
fn run(mode: Mode, name: &str, addresses: [u64; 2]) -> (Option<mscclrs_sim::Finding>, u64) {
    let parts = Parts::new(mode, 2, 2);
    for (rank, address) in (0..).zip(addresses) {
        let memory = Global::from_address(address);
        let args = PartArgs { memory, ..parts.args(rank) };
        let kernel = part.instance(name).expect("a part of this name");
        launch_kernel(&parts.ranks.queues[rank as usize], kernel, (1, 1, 0), &args);
    }
    let finding = parts.ranks.finish();
    (finding, parts.host.get(1))
}

fn every_run(check: Check, mut run: impl FnMut(Mode) -> Option<mscclrs_sim::Finding>) -> Outcome {
    let exploration = Exploration { check, departures: 8, runs: 20_000 };
    let outcome = explore(&exploration, |mode| Ok::<_, Infallible>(ran(run(mode), true))).unwrap();
    assert_eq!(outcome.found.as_ref().map(ToString::to_string), None);
    assert!(outcome.exhausted, "{outcome}");
    outcome
}

#[test]
fn all_orders_of_memory_that_is_mapped_twice_are_seen() {
    for check in [Check::Ordered, Check::Checked, Check::Weak] {
        let seen = |is_mapped_twice| {
            let mut seen = BTreeSet::new();
            every_run(check, |mode| {
                let memory = Twice::new();
                let [first, second] = memory.addresses;
                let second = if is_mapped_twice { second } else { first };
                let (finding, saw) = run(mode, "_moments", [first, second]);
                seen.insert(saw);
                finding
            });
            seen
        };
        let once = seen(false);
        assert!(once.len() > 4, "{once:?}");
        assert_eq!(seen(true), once, "{check:?}");
    }
}

#[test]
fn memory_that_comes_where_other_memory_was_has_no_history() {
    let mut place = 0;
    every_run(Check::Ordered, |mode| {
        let parts = Parts::new(mode, 2, 2);
        let launch = |rank: u64, memory: &TestMemory| {
            let memory = Global::from_address(memory.address());
            let args = PartArgs { memory, ..parts.args(rank) };
            let kernel = part.instance("_adds").expect("a part of this name");
            launch_kernel(&parts.ranks.queues[rank as usize], kernel, (1, 1, 0), &args);
        };
        let first = TestMemory::new(PAGE);
        launch(0, &first);
        parts.ranks.begin();
        assert_eq!(parts.ranks.queues[0].synchronize(crate::common::LIMIT), Ok(true));
        // In every second run the new memory lies where the first was.
        place += 1;
        let kept = if place % 2 == 0 {
            drop(first);
            None
        } else {
            Some(first)
        };
        let second = TestMemory::new(PAGE);
        let hold = parts.ranks.world.hold();
        (0..2).for_each(|rank| launch(rank, &second));
        drop(hold);
        let finding = parts.ranks.finish();
        drop(kept);
        finding
    });
}

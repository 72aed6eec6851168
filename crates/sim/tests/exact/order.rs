//! What orders accesses and what does not, where it is easily mistaken.

use mscclrs_device::{
    Acquire, Cta, Global, Gpu, Guard, Relaxed, Release, Sys, WaitKind, block_sync, kernel_args,
    kernels, poll_acquire, thread_idx,
};
use mscclrs_sim::{Check, FindingKind, Mode, TestMemory};

use crate::common::MODULE;
use crate::world::Ranks;

kernel_args! {
    pub struct OrderArgs {
        pub guard: Guard,
        pub memory: Global<u64>,
        pub rank: u64,
    }
}

kernels! {
    module = MODULE;
    // Ranks 0 and 1 have a flag each, side by side in 8 bytes, and send a word to rank 2.
    pub fn two_flags<>(args: OrderArgs) threads 32 for { "" = <> } {
        let (rank, memory) = (args.rank as u32, args.memory);
        let flags = memory.cast::<u32>();
        if rank < 2 {
            memory.at(2 + rank).store(40 + u64::from(rank));
            flags.at(rank).store_atomic(Release, Sys, 1);
            return Ok(());
        }
        for from in 0..2 {
            while flags.at(from).load_atomic(Relaxed, Sys) == 0 {}
            flags.at(from).load_atomic(Acquire, Sys);
            memory.at(4 + from).store(memory.at(2 + from).load());
        }
        Ok(())
    }

    // As `two_flags`, and the third rank polls both flags as one word.
    pub fn wide_poll<>(args: OrderArgs) threads 32 for { "" = <> } {
        let (rank, memory) = (args.rank as u32, args.memory);
        if rank < 2 {
            memory.cast::<u32>().at(rank).store_atomic(Release, Sys, 1);
        } else {
            let both = |word: u64| word == 1 << 32 | 1;
            mscclrs_device::poll(&args.guard, memory, 0, WaitKind::Semaphore, 0, both)?;
        }
        Ok(())
    }

    // A plain read, then an atomic one by the same lane; the peer's atomic store races with the first.
    pub fn plain_then_atomic<>(args: OrderArgs) threads 32 for { "" = <> } {
        if args.rank == 0 {
            let plain = args.memory.load();
            args.memory.at(2).store(plain + args.memory.load_atomic(Relaxed, Sys));
        } else {
            args.memory.store_atomic(Relaxed, Sys, 1);
        }
        Ok(())
    }

    // Within a device, a relaxed flag and none but its order is missing.
    pub fn relaxed_flag<>(args: OrderArgs) threads 64 for { "" = <> } {
        if thread_idx() == 0 {
            args.memory.at(2).store(1);
            args.memory.store_atomic(Relaxed, Gpu, 1);
        } else {
            while args.memory.load_atomic(Acquire, Gpu) == 0 {}
            args.memory.at(4).store(args.memory.at(2).load());
        }
        Ok(())
    }

    // A flag of block scope between two blocks' lanes would do within one block only.
    pub fn block_scope<>(args: OrderArgs) threads 64 for { "" = <> } {
        if thread_idx() == 0 {
            args.memory.at(2).store(1);
            args.memory.store_atomic(Release, Cta, 1);
        } else {
            poll_acquire(&args.guard, args.memory, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
            args.memory.at(4).store(args.memory.at(2).load());
        }
        block_sync();
        Ok(())
    }
}

fn run(
    mode: Mode,
    kernel: &'static mscclrs_device::Family<OrderArgs>,
    ranks: u32,
    lanes: u32,
) -> (Option<mscclrs_sim::Finding>, [u64; 2]) {
    let world = Ranks::new(mode, ranks);
    let memory = TestMemory::new(64);
    world.upload(0, &memory, &[0; 8]);
    for rank in 0..ranks {
        let memory = Global::from_address(memory.address());
        let args = OrderArgs { guard: world.guard(), memory, rank: rank.into() };
        crate::common::launch(&world.queues[rank as usize], kernel, (1, lanes, 0), &args);
    }
    (world.finish(), [memory.get(4), memory.get(5)])
}

#[test]
fn flags_that_share_a_word_keep_their_own_order() {
    for seed in 0..50 {
        for check in [Check::Checked, Check::Weak] {
            let (finding, seen) = run(Mode::new(check, seed), &two_flags, 3, 1);
            assert_eq!((finding.map(|finding| finding.to_string()), seen), (None, [40, 41]));
        }
    }
}

#[test]
fn atomics_of_other_sizes_race_with_each_other() {
    let run = |seed| run(Mode::new(Check::Checked, seed), &wide_poll, 3, 1).0;
    let finding = (0..20).find_map(run).expect("a race");
    assert_eq!(finding.kind, FindingKind::Race, "{finding}");
    assert!(finding.missing.as_ref().unwrap().starts_with("accesses of one size"), "{finding}");
}

#[test]
fn an_atomic_read_does_not_hide_a_plain_one_before_it() {
    for seed in 0..20 {
        let (finding, _) = run(Mode::new(Check::Checked, seed), &plain_then_atomic, 2, 1);
        let finding = finding.expect("a race in every order of the accesses");
        assert_eq!(finding.kind, FindingKind::Race, "{finding}");
        let sites = [finding.here.as_ref().unwrap(), finding.other.as_ref().unwrap()];
        assert!(sites.iter().any(|site| site.what == "plain load"), "{finding}");
    }
}

#[test]
fn what_is_missing_is_the_release_where_scopes_hold_both() {
    let found =
        (0..20).find_map(|seed| run(Mode::new(Check::Checked, seed), &relaxed_flag, 1, 2).0);
    let finding = found.expect("a race");
    let missing = finding.missing.as_ref().unwrap();
    assert!(missing.starts_with("a release: the acquire load (GPU scope)"), "{finding}");
}

#[test]
fn block_scope_is_enough_within_a_block() {
    for seed in 0..50 {
        for check in [Check::Checked, Check::Weak] {
            let (finding, seen) = run(Mode::new(check, seed), &block_scope, 1, 2);
            assert_eq!((finding.map(|finding| finding.to_string()), seen[0]), (None, 1));
        }
    }
}

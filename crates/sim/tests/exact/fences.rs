//! Fences after fences: a narrower one takes nothing from a wider one.

use mscclrs_device::{
    Acquire, Cta, Gpu, Relaxed, Release, Sys, WaitKind, fence, poll, poll_acquire,
};
use mscclrs_sim::{Check, FindingKind, Mode};

use crate::parts::{Parts, parts};

parts! {
    // Rank 0 writes word 2 and tells of it by word 0.
    Released "_released" = |args| {
        let memory = args.memory;
        if args.rank == 0 {
            memory.at(2).store(7);
            fence::<Sys>();
            fence::<Cta>();
            memory.store_atomic(Relaxed, Sys, 1);
        } else {
            poll_acquire(&args.guard, memory, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
            memory.at(4).store(memory.at(2).load());
        }
    }
    Acquired "_acquired" = |args| {
        let memory = args.memory;
        if args.rank == 0 {
            memory.at(2).store(7);
            memory.store_atomic(Release, Sys, 1);
        } else {
            poll(&args.guard, memory, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
            fence::<Gpu>();
            fence::<Sys>();
            memory.at(4).store(memory.at(2).load());
        }
    }
    // What comes after the wide fence, only the narrow one releases.
    Between "_between" = |args| {
        let memory = args.memory;
        if args.rank == 0 {
            fence::<Sys>();
            memory.at(2).store(7);
            fence::<Cta>();
            memory.store_atomic(Relaxed, Sys, 1);
        } else {
            poll_acquire(&args.guard, memory, 1, WaitKind::Semaphore, 0, |word| word == 1)?;
            memory.at(4).store(memory.at(2).load());
        }
    }
    // A lane that released many words releases them again by its later stores.
    ManyWords "_many_words" = |args| {
        let memory = args.memory;
        if args.rank == 0 {
            memory.at(2).store(7);
            (8..20).for_each(|word| memory.at(word).store_atomic(Release, Sys, 1));
            (8..20).for_each(|word| memory.at(word).store_atomic(Relaxed, Sys, 2));
        } else {
            let first = memory.at(8);
            poll(&args.guard, first, 2, WaitKind::Semaphore, 0, |word| word == 2)?;
            first.load_atomic(Acquire, Sys);
            memory.at(4).store(memory.at(2).load());
        }
    }
}

#[test]
fn a_narrower_fence_undoes_no_wider_one() {
    for name in ["_released", "_acquired", "_many_words"] {
        for check in [Check::Checked, Check::Weak] {
            for seed in 0..30 {
                let parts = Parts::new(Mode::new(check, seed), 2, 32);
                let (finding, memory) = parts.run(part.instance(name));
                let text = finding.map(|finding| finding.to_string());
                assert_eq!((text, memory.get(4)), (None, 7), "{name}");
            }
        }
    }
}

#[test]
fn a_narrow_fence_releases_no_more_for_a_wide_one_before_it() {
    let run =
        |check, seed| Parts::new(Mode::new(check, seed), 2, 32).run(part.instance("_between"));
    let finding = (0..30).find_map(|seed| run(Check::Checked, seed).0).expect("a race");
    assert_eq!(finding.kind, FindingKind::Race, "{finding}");
    assert!((0..100).any(|seed| run(Check::Weak, seed).1.get(4) == 0), "never late");
}

//! Regions, registrations and symmetric memory.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Rank, on_ranks};
use mscclrs_core::Error;
use mscclrs_device::{EPOCH_START, MAX_BLOCKS};

fn read_words(rank: &Rank, address: u64, count: usize) -> Vec<u64> {
    let bytes = 8 * count as u64;
    let target = rank.buffer(bytes);
    // SAFETY: the tests ask for mapped ranges of at least that many words.
    unsafe { rank.stream.copy(target.address(), address, bytes).unwrap() };
    let mut data = vec![0; bytes as usize];
    target.read(&rank.stream, 0, &mut data).unwrap();
    data.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
}

fn write_word(rank: &Rank, address: u64, value: u64) {
    let source = rank.buffer(8);
    source.write(&rank.stream, 0, &value.to_le_bytes()).unwrap();
    // SAFETY: as above.
    unsafe { rank.stream.copy(address, source.address(), 8).unwrap() };
    rank.synchronize().unwrap();
}

#[test]
fn regions_are_mapped_by_all_ranks_and_begin_with_fresh_epochs() {
    for n in [1, 2, 3, 5, 8] {
        on_ranks(n, |rank| {
            let regions = rank.comm.create_regions(&[1000, 0, 4096]).unwrap();
            assert_eq!(regions.iter().map(|r| r.bytes()).collect::<Vec<_>>(), [1000, 0, 4096]);
            for region in &regions {
                let epochs = read_words(&rank, region.epochs(), MAX_BLOCKS as usize);
                assert!(epochs.iter().all(|&word| word == EPOCH_START));
                assert_eq!(region.of(rank.rank()), region.local());
                assert_eq!(region.local() % 256, 0);
            }
            // Every rank writes a word of its own into every rank's last region.
            let last = &regions[2];
            for peer in 0..n {
                write_word(&rank, last.of(peer) + 8 * rank.rank() as u64, 100 + rank.rank() as u64);
            }
            rank.comm.bootstrap().barrier().unwrap();
            let words = read_words(&rank, last.local(), n as usize);
            assert_eq!(words, (0..n as u64).map(|r| 100 + r).collect::<Vec<_>>());
            rank.comm.bootstrap().barrier().unwrap();
        });
    }
}

#[test]
fn different_sizes_are_the_same_error_on_every_rank() {
    let errors = on_ranks(3, |rank| {
        let bytes = if rank.rank() == 1 { 512 } else { 256 };
        let regions = rank.comm.create_regions(&[64, bytes]).unwrap_err();
        let register = rank.comm.register(&rank.buffer(bytes)).unwrap_err();
        let alloc = rank.comm.alloc(bytes).unwrap_err();
        for error in [&regions, &register, &alloc] {
            assert!(matches!(error, Error::Disagreement { .. }), "{error}");
        }
        // The communicator is of use as before.
        rank.comm.create_regions(&[64]).unwrap();
        rank.comm.check().unwrap();
        format!("{regions}\n{register}\n{alloc}")
    });
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    assert!(
        errors[0].contains("ranks 0, 2 gave 256 bytes, rank 1 gave 512 bytes"),
        "{}",
        errors[0]
    );
}

#[test]
fn registered_memory_is_reached_by_all_ranks() {
    on_ranks(3, |rank| {
        let buffer = rank.buffer(4096);
        let first = rank.comm.register(&buffer).unwrap();
        let second = rank.comm.alloc(64).unwrap();
        assert_eq!((first.id(), second.registration().id()), (0, 1));
        assert!(first.is_mapped(), "{:?}", first.why_not_mapped());
        assert_eq!((first.bytes(), first.local()), (4096, buffer.address()));
        for registration in [&first, second.registration()] {
            for peer in 0..3 {
                let at = registration.of(peer) + 8 * rank.rank() as u64;
                write_word(&rank, at, 7 + rank.rank() as u64);
            }
        }
        rank.comm.bootstrap().barrier().unwrap();
        assert_eq!(read_words(&rank, first.local(), 3), [7, 8, 9]);
        assert_eq!(read_words(&rank, second.buffer().address(), 3), [7, 8, 9]);
        rank.comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn registering_memory_again_uses_the_mapping_that_is_there() {
    on_ranks(2, |rank| {
        let peer = 1 - rank.rank();
        let buffer = rank.buffer(1 << 16);
        let first = rank.comm.register(&buffer).unwrap();
        let second = rank.comm.register(&buffer).unwrap();
        assert_eq!(first.of(peer), second.of(peer));
        drop(first);
        let third = rank.comm.register(&buffer).unwrap();
        assert_eq!(third.of(peer), second.of(peer));
        rank.comm.bootstrap().barrier().unwrap();
    });
}

#[test]
fn memory_that_one_rank_cannot_give_is_registered_but_not_mapped_on_any() {
    on_ranks(3, |rank| {
        let kind = match rank.rank() {
            1 => mscclrs_gpu::MemoryKind::Plain,
            _ => mscclrs_gpu::MemoryKind::Shareable,
        };
        let device = rank.comm.device();
        let registration = rank.comm.register(&device.alloc(512, kind).unwrap()).unwrap();
        let all = rank.comm.bootstrap().all_gather(&[registration.is_mapped() as u8]).unwrap();
        assert!(all.iter().all(|mapped| *mapped == all[0]), "{all:?}");
        if device.handle_kinds(mscclrs_gpu::MemoryKind::Plain).is_empty() {
            assert!(!registration.is_mapped());
            let why = registration.why_not_mapped().unwrap();
            assert!(why.contains("rank 1"), "{why}");
        }
    });
}

#[test]
fn regions_outlive_their_communicator() {
    on_ranks(2, |rank| {
        let region = rank.comm.create_regions(&[64]).unwrap().remove(0);
        rank.comm.bootstrap().barrier().unwrap();
        let stream = rank.stream.clone();
        let peer = 1 - rank.rank();
        drop(rank);
        let mut word = [0; 8];
        let device = stream.device().clone();
        let target = device.alloc(8, mscclrs_gpu::MemoryKind::Shareable).unwrap();
        // SAFETY: the region holds the peer's memory mapped.
        unsafe { stream.copy(target.address(), region.of(peer), 8).unwrap() };
        target.read(&stream, 0, &mut word).unwrap();
        assert_eq!(word, [0; 8]);
    });
}

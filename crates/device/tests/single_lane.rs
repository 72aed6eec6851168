//! Device code run as one lane, without a simulator.

use mscclrs_device::{
    Access, Aligned, Any, Control, EPOCH_START, Epochs, Global, Guard, Ll8, Ll16, Packet,
    Semaphore, WaitKind, Word16, copy_bytes, epoch_flag, epoch_next,
};
use proptest::prelude::*;

fn global<T>(data: &mut [T]) -> Global<T> {
    Global::from_address(data.as_mut_ptr() as u64)
}

/// A guard that ends waits after a millisecond.
fn guard(control: &mut Control, claim: &mut u32) -> Guard {
    Guard {
        control: Global::from_address(std::ptr::from_mut(control) as u64),
        claim: Global::from_address(std::ptr::from_mut(claim) as u64),
        timeout_ns: 1_000_000,
        launch: 7,
    }
}

#[test]
fn a_packet_is_taken_only_with_its_flag() {
    let (mut control, mut claim) = (Control::default(), 0);
    let guard = guard(&mut control, &mut claim);
    let mut slot = [0u64; 2];
    let at = global(&mut slot);
    Ll8::put(at, 42, 5);
    assert_eq!(Ll8::take(&guard, at, 5, 0), Ok(42));
    assert!(Ll8::take(&guard, at, 6, 3).is_err());
    let record = control.record;
    assert_eq!((record.valid, record.peer, record.cause, record.launch), (1, 3, 2, 7));
    assert_eq!(WaitKind::from_code(record.kind), Some(WaitKind::Packet));
    assert_eq!((record.expected >> 32, record.seen), (6, 5 << 32 | 42));
}

#[test]
fn an_ll16_packet_needs_both_flags() {
    let (mut control, mut claim) = (Control::default(), 0);
    let guard = guard(&mut control, &mut claim);
    let mut slot = [0u64; 2];
    let at = global(&mut slot);
    Ll16::put(at, (1, 2), 9);
    assert_eq!(Ll16::take(&guard, at, 9, 0), Ok((1, 2)));
    Ll8::put(at.at(1), 3, 10);
    assert!(Ll16::take(&guard, at, 10, 0).is_err());
    assert_eq!(control.record.address, at.address(), "the half without the flag is named");
}

#[test]
fn an_abort_ends_a_wait_and_only_the_first_is_recorded() {
    let (mut control, mut claim) = (Control { abort: 1, ..Control::default() }, 0);
    let guard = Guard { timeout_ns: 0, ..guard(&mut control, &mut claim) };
    let (mut inbound, mut expected) = ([0u64], [0u64]);
    let semaphore = Semaphore {
        remote: Global::null(),
        inbound: global(&mut inbound),
        expected: global(&mut expected),
        peer: 4,
    };
    assert!(semaphore.wait(&guard).is_err());
    assert_eq!((control.record.cause, control.record.peer), (1, 4));
    let again = Semaphore { peer: 5, ..semaphore };
    assert!(again.wait(&guard).is_err());
    assert_eq!(control.record.peer, 4);
}

#[test]
fn a_semaphore_pairs_signals_and_waits() {
    let (mut control, mut claim) = (Control::default(), 0);
    let guard = guard(&mut control, &mut claim);
    let (mut inbound, mut expected) = ([0u64], [0u64]);
    let semaphore = Semaphore {
        remote: global(&mut inbound),
        inbound: global(&mut inbound),
        expected: global(&mut expected),
        peer: 0,
    };
    assert!(!semaphore.poll());
    semaphore.signal();
    semaphore.signal_relaxed();
    assert!(semaphore.poll());
    assert_eq!(semaphore.wait(&guard), Ok(()));
    assert!(!semaphore.poll());
    assert!(semaphore.wait_relaxed(&guard).is_err());
}

#[test]
fn epochs_skip_flag_zero_and_keep_their_parity() {
    let mut epoch = u32::MAX as u64 - 2;
    let mut flags = Vec::new();
    for _ in 0..6 {
        let next = epoch_next(epoch);
        assert_ne!(epoch & 1, next & 1, "halves alternate over the lap");
        assert_ne!(epoch_flag(next), 0);
        flags.push(epoch_flag(next));
        epoch = next;
    }
    assert_eq!(flags, [u32::MAX - 1, u32::MAX, 2, 3, 4, 5]);
    let cleaned: Vec<u32> = [u32::MAX - 2, u32::MAX - 1, u32::MAX, 2]
        .into_iter()
        .filter(|e| Epochs::cleans(*e as u64))
        .collect();
    assert_eq!(cleaned, [u32::MAX - 1, u32::MAX], "each half once a lap");
    assert!(!Epochs::cleans(EPOCH_START));
}

proptest! {
    #[test]
    fn copies_move_every_byte_and_no_other(
        to in 0usize..40, from in 0usize..40, bytes in 0usize..300, lanes in 1u32..40,
    ) {
        let source: Vec<u8> = (0..400).map(|i| (i * 7 + 1) as u8).collect();
        // 16-byte aligned memory, so that offsets decide the alignment.
        let mut memory = vec![Word16::default(); 50];
        let mut target = vec![Word16::default(); 50];
        // SAFETY: both are 800 bytes of plain data.
        let (memory, target) = unsafe {(
            std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<u8>(), 800),
            std::slice::from_raw_parts_mut(target.as_mut_ptr().cast::<u8>(), 800),
        )};
        memory[..400].copy_from_slice(&source);
        let (t, f) = (global(target).at(to as u32), global(memory).at(from as u32));
        for lane in 0..lanes {
            copy_bytes(t, f, bytes as u64, lane, lanes);
        }
        prop_assert_eq!(&target[to..to + bytes], &source[from..from + bytes]);
        prop_assert!(target[..to].iter().chain(&target[to + bytes..]).all(|b| *b == 0));
    }

    #[test]
    fn any_access_reads_zeros_past_the_end_and_writes_nothing_there(
        offset in 0usize..8, halves in 1usize..40, index in 0u32..8,
    ) {
        let (offset, bytes) = (2 * offset, 2 * halves as u64);
        let mut memory: Vec<u16> = (1..120).collect();
        let base = global(&mut memory).cast::<u8>().at(offset as u32);
        let expected = |k: usize| {
            let at = index as usize * 16 + 4 * k;
            let half = |at: usize| if (at as u64) < bytes { memory[(offset + at) / 2] } else { 0 };
            half(at) as u32 | (half(at + 2) as u32) << 16
        };
        let wanted = [expected(0), expected(1), expected(2), expected(3)];
        let unit: Word16 = Any::load(base, index, bytes);
        prop_assert_eq!([unit.x, unit.y, unit.z, unit.w], wanted);
        let before = memory.clone();
        Any::store(base, index, bytes, Word16 { x: u32::MAX, y: u32::MAX, z: u32::MAX, w: u32::MAX });
        for (i, (old, new)) in before.iter().zip(&memory).enumerate() {
            let at = 2 * i as i64 - offset as i64;
            let first = index as i64 * 16;
            let inside = at >= first && at < first + 16 && at < bytes as i64 && at >= 0;
            prop_assert_eq!(*new, if inside { u16::MAX } else { *old });
        }
    }
}

#[test]
fn aligned_access_is_one_unit() {
    let mut memory = [1u64, 2, 3, 4];
    let base = global(&mut memory).cast::<u8>();
    assert_eq!(Aligned::load::<(u32, u32)>(base, 2, 32), (3, 0));
    Aligned::store(base, 3, 32, (7u32, 1u32));
    assert_eq!(memory[3], 1 << 32 | 7);
}

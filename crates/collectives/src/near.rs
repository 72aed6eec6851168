//! Where a rank receives small messages: at places of its scratch that its peer reaches fast.
//!
//! On two H200s the same allreduce of up to 2 KiB took 1.82 us with its slots at some multiples of 4 KiB,
//! and 1.95 to 2.0 us at others; where its epochs, its input and its output lay made no difference. It
//! looks like the parts of the second-level cache, some nearer than others; that was not seen directly.
//! So each of two ranks times hops to its places once and tells the other where to send. More ranks would
//! need one place that is near for all their peers' slots at once; they take them as they come.

use mscclrs_core::{Communicator, Region, register_launch_tag};
use mscclrs_device::Global;
use mscclrs_gpu::{BackendKind, Grid};
use mscclrs_kernels::near::{NearArgs, near};

use crate::Result;

/// Bytes from place to place.
const STEP: u64 = 4 << 10;
/// Places among which a slot may begin.
const CHOICES: u64 = 64;
/// Places of a slot that are weighed: those of messages of up to 4 KiB.
const WEIGHED: u64 = 2;
/// Places of a half that are measured.
const PLACES: u64 = CHOICES + WEIGHED - 1;

/// Bytes of each slot, where those of both halves have `bytes` together.
pub(crate) const fn slot_bytes(bytes: u64, ranks: u32) -> u64 {
    bytes / slots(ranks) / STEP * STEP
}

/// Bytes of a region that holds the slots wherever they begin, and what is measured.
pub(crate) const fn region_bytes(slot: u64, ranks: u32) -> u64 {
    // The first place begins within the first step.
    (1 + CHOICES) * STEP + slots(ranks) * slot + 2 * PLACES * 4
}

/// Slots of both halves: one for each peer in each.
const fn slots(ranks: u32) -> u64 {
    if ranks < 2 { 2 } else { 2 * (ranks as u64 - 1) }
}

/// The fastest choice, by the cycles of each place of the first half and then of the second: calls
/// use the halves in turn. The first place of a slot is the only one of the smallest messages.
fn choose(cycles: &[u32]) -> u64 {
    let of = |half: u64, place: u64| {
        cycles.get((half * PLACES + place) as usize).map_or(0, |&cycles| cycles as u64)
    };
    let both = |place: u64| of(0, place) + of(1, place);
    let cost =
        |choice: u64| WEIGHED * both(choice) + (1..WEIGHED).map(|i| both(choice + i)).sum::<u64>();
    (0..CHOICES).min_by_key(|&choice| cost(choice)).unwrap_or(0)
}

/// Bytes by which each rank's slots are shifted in the region. Collective, where the ranks' peer is
/// another GPU; blocks until the hops are measured.
pub(crate) fn shifts(communicator: &Communicator, region: &Region, slot: u64) -> Result<Vec<u64>> {
    let ranks = communicator.world_size();
    let device = communicator.device();
    let mut message = device.uuid().to_vec();
    message.push(u8::from(device.kind() == BackendKind::Cuda));
    let all = communicator.bootstrap().all_gather(&message)?;
    let two_gpus = ranks == 2 && all[0] != all[1] && all.iter().all(|m| m.last() == Some(&1));
    if !two_gpus {
        return Ok(vec![0; ranks as usize]);
    }
    let first = |rank: u32| region.of(rank).next_multiple_of(STEP);
    let cycles = measure(communicator, [first(0), first(1)], slot)?;
    let me = communicator.rank();
    let shift = first(me) - region.of(me) + choose(&cycles) * STEP;
    let all = communicator.bootstrap().all_gather(&shift.to_le_bytes())?;
    let shift = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
    Ok(all.iter().map(|bytes| shift(bytes).min(CHOICES * STEP)).collect())
}

/// Cycles of a round trip by way of each of this rank's places, which begin at `first` of each rank.
fn measure(communicator: &Communicator, first: [u64; 2], slot: u64) -> Result<Vec<u32>> {
    let device = communicator.device();
    let rank = communicator.rank();
    let (here, there) = (first[rank as usize], first[1 - rank as usize]);
    // The results lie behind whatever the choice, as the region has it.
    let results = CHOICES * STEP + slots(2) * slot;
    let results_bytes = 2 * PLACES * 4;
    let kernel = near.instance("").ok_or_else(|| mscclrs_gpu::Error::Invalid {
        what: "kernel instance",
        value: "none of `near`".into(),
        allowed: "the one".into(),
    })?;
    let function = device.function(kernel)?;
    let stream = device.create_stream()?;
    // SAFETY: the region holds places and results, and nobody else uses it yet.
    let memory = unsafe { device.adopt(here, results + results_bytes)? };
    // This is set-up, which always has a deadline, where a collective may have none.
    let mut guard = communicator.guard(register_launch_tag(kernel.name));
    if guard.timeout_ns == 0 {
        guard.timeout_ns = communicator.bootstrap().timeout().as_nanos() as u64;
    }
    for measures in 0..2 {
        let args = NearArgs {
            guard,
            here: Global::from_address(here),
            there: Global::from_address(there),
            cycles: Global::from_address(here + results),
            count: PLACES as u32,
            step: (STEP / 8) as u32,
            half: (slot / 8) as u32,
            _pad: 0,
            rank,
            measures,
        };
        // SAFETY: as above, on both ranks, whose memory is mapped.
        unsafe { stream.launch(&function, Grid::new(1, 32), &args)? };
    }
    communicator.synchronize(&stream)?;
    let mut bytes = vec![0; results_bytes as usize];
    memory.read(&stream, results, &mut bytes)?;
    // Slots are zero at first. All that the peer sent was waited for.
    let zero = vec![0; (PLACES * STEP) as usize];
    memory.write(&stream, 0, &zero)?;
    memory.write(&stream, slot, &zero)?;
    communicator.synchronize(&stream)?;
    let words = bytes.chunks_exact(4).filter_map(|word| word.try_into().ok());
    Ok(words.map(u32::from_le_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_lies_in_the_region() {
        for ranks in 1..=8 {
            let slot = slot_bytes(1 << 20, ranks);
            assert!(
                slot >= PLACES * STEP || ranks != 2,
                "the measured places of two halves overlap"
            );
            assert!(slot >= WEIGHED * STEP && slot.is_multiple_of(STEP), "{ranks} ranks");
            let last = CHOICES * STEP + slots(ranks) * slot;
            assert!(last + 2 * PLACES * 4 <= region_bytes(slot, ranks), "{ranks} ranks");
        }
    }

    fn cycles(fast: &[(u64, u64, u32)]) -> Vec<u32> {
        let mut cycles = vec![2000; 2 * PLACES as usize];
        for &(half, place, value) in fast {
            cycles[(half * PLACES + place) as usize] = value;
        }
        cycles
    }

    #[test]
    fn fast_places_are_chosen() {
        assert_eq!(choose(&cycles(&[(0, 7, 1800), (0, 8, 1800), (1, 7, 1800), (1, 8, 1800)])), 7);
        assert_eq!(choose(&cycles(&[(0, 63, 1700), (1, 63, 1700)])), 63);
    }

    #[test]
    fn both_halves_count_and_the_first_place_counts_more() {
        assert_eq!(choose(&cycles(&[(0, 3, 1800), (0, 20, 1850), (1, 20, 1850)])), 20);
        assert_eq!(choose(&cycles(&[(0, 5, 1800), (1, 5, 1800), (0, 31, 1750), (1, 30, 1750)])), 5);
    }

    #[test]
    fn no_choice_is_made_of_nothing() {
        assert_eq!(choose(&[]), 0);
    }
}

//! Where a rank receives small messages: at places of its scratch that its peer reaches fast.
//!
//! On two H200s the same allreduce of up to 2 KiB took 1.82 us with its slots at some multiples of 4 KiB,
//! and 1.95 to 2.0 us at others; where its epochs, its input and its output lay made no difference. It
//! looks like the parts of the second-level cache, some nearer than others; that was not seen directly.
//! A round trip to a place takes about 2,640 cycles or about 2,940, the same each time. So two ranks time
//! round trips to their places once, and both choose, from the figures of both, where each one's slots
//! begin and how far the second half lies from the first: that distance is one for all ranks, and places
//! that lie half a mebibyte apart are rarely both fast. More ranks would need one place that is fast for
//! all their peers' slots at once; they take them as they come.

use mscclrs_core::{Communicator, Region, register_launch_tag};
use mscclrs_device::Global;
use mscclrs_gpu::{BackendKind, Grid};
use mscclrs_kernels::near::{NearArgs, near};

use crate::Result;

/// Bytes from place to place.
const STEP: u64 = 4 << 10;
/// Places among which the slots of the first half may begin, and distances to those of the second.
const CHOICES: u64 = 32;
/// Places of a slot that are weighed: those of messages of up to 4 KiB.
const WEIGHED: u64 = 2;
/// Places of a half that are measured.
const PLACES: u64 = 2 * CHOICES - 1 + WEIGHED - 1;

/// Bytes of each slot, where those of both halves have `bytes` together.
pub(crate) const fn slot_bytes(bytes: u64, ranks: u32) -> u64 {
    bytes / slots(ranks) / STEP * STEP
}

/// Bytes of a region that holds the slots wherever they begin, and what is measured.
pub(crate) const fn region_bytes(slot: u64, ranks: u32) -> u64 {
    // The first place begins within the first step.
    (1 + 2 * CHOICES) * STEP + slots(ranks) * slot + 2 * PLACES * 4
}

/// Slots of both halves: one for each peer in each.
const fn slots(ranks: u32) -> u64 {
    if ranks < 2 { 2 } else { 2 * (ranks as u64 - 1) }
}

/// Where slots lie in the region.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Bytes before the slots, of each rank.
    pub(crate) shifts: Vec<u64>,
    /// Bytes from the first half to the second, on every rank.
    pub(crate) half: u64,
}

/// Where two ranks' slots begin, and how much further than a slot the second half lies, in steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Choice {
    first: [u64; 2],
    distance: u64,
}

/// The fastest choice, by the cycles of each place of both ranks, those of the first half before those
/// of the second: calls use the halves in turn. The first place of a slot is the only one of the
/// smallest messages; larger ones are as slow as the slowest of their places.
fn choose(cycles: [&[u32]; 2]) -> Choice {
    let of = |rank: usize, half: u64, place: u64| {
        cycles[rank].get((half * PLACES + place) as usize).map_or(0, |&cycles| cycles as u64)
    };
    let slot = |rank, half, place| {
        let rest = (0..WEIGHED).map(|i| of(rank, half, place + i)).max();
        of(rank, half, place) + rest.unwrap_or(0)
    };
    let cost = |rank, first, distance: u64| slot(rank, 0, first) + slot(rank, 1, first + distance);
    let best = |rank, distance| {
        (0..CHOICES).map(|first| (cost(rank, first, distance), first)).min().unwrap_or((0, 0))
    };
    let at = |distance| {
        let [a, b] = [best(0, distance), best(1, distance)];
        // A call ends when the slower rank has what it waits for.
        ((a.0.max(b.0), a.0 + b.0), Choice { first: [a.1, b.1], distance })
    };
    (0..CHOICES).map(at).min_by_key(|&(cost, _)| cost).map_or(Choice::default(), |(_, c)| c)
}

/// Where the slots of every rank lie. Collective, where the ranks' peer is another GPU; blocks until the
/// round trips are measured.
pub(crate) fn places(communicator: &Communicator, region: &Region, slot: u64) -> Result<Places> {
    let ranks = communicator.world_size();
    let device = communicator.device();
    let mut message = device.uuid().to_vec();
    message.push(u8::from(device.kind() == BackendKind::Cuda));
    let all = communicator.bootstrap().all_gather(&message)?;
    let two_gpus = ranks == 2 && all[0] != all[1] && all.iter().all(|m| m.last() == Some(&1));
    if !two_gpus {
        return Ok(Places { shifts: vec![0; ranks as usize], half: slots(ranks) / 2 * slot });
    }
    // The same on both ranks, who see a region at different addresses: mappings begin at pages, and a
    // page is a multiple of a step.
    let before = |rank: u32| region.of(rank).next_multiple_of(STEP) - region.of(rank);
    let first = |rank: u32| region.of(rank) + before(rank);
    let mine = measure(communicator, [first(0), first(1)], slot)?;
    let mine: Vec<u8> = mine.into_iter().flat_map(u32::to_le_bytes).collect();
    let all = communicator.bootstrap().all_gather(&mine)?;
    let cycles = [words(&all[0]), words(&all[1])];
    let choice = choose([&cycles[0], &cycles[1]]);
    let rank = communicator.rank() as usize;
    mscclrs_log::debug!(
        COLL,
        rank,
        first = choice.first[rank],
        distance = choice.distance,
        fastest = cycles[rank].iter().min().copied().unwrap_or(0),
        slowest = cycles[rank].iter().max().copied().unwrap_or(0),
        "slots of small messages placed where round trips take the fewest cycles"
    );
    let shift = |rank: u32| before(rank) + choice.first[rank as usize] * STEP;
    Ok(Places { shifts: vec![shift(0), shift(1)], half: slot + choice.distance * STEP })
}

/// The little-endian words of a message.
fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).filter_map(|word| word.try_into().ok()).map(u32::from_le_bytes).collect()
}

/// Cycles of a round trip by way of each of this rank's places, which begin at `first` of each rank.
fn measure(communicator: &Communicator, first: [u64; 2], slot: u64) -> Result<Vec<u32>> {
    let device = communicator.device();
    let rank = communicator.rank();
    let (here, there) = (first[rank as usize], first[1 - rank as usize]);
    // The results lie behind whatever the choice, as the region has it.
    let results = 2 * CHOICES * STEP + slots(2) * slot;
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
    Ok(words(&bytes))
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
            let last = 2 * (CHOICES - 1) * STEP + slots(ranks) * slot;
            let results = 2 * CHOICES * STEP + slots(ranks) * slot;
            assert!(last <= results, "slots reach into what is measured: {ranks} ranks");
            assert!(STEP + results + 2 * PLACES * 4 <= region_bytes(slot, ranks), "{ranks} ranks");
        }
    }

    fn cycles(fast: &[(u64, u64, u32)]) -> Vec<u32> {
        let mut cycles = vec![2900; 2 * PLACES as usize];
        for &(half, place, value) in fast {
            cycles[(half * PLACES + place) as usize] = value;
        }
        cycles
    }

    #[test]
    fn halves_that_are_fast_at_different_places_are_set_apart() {
        let all = cycles(&[(0, 7, 2600), (0, 8, 2600), (1, 20, 2600), (1, 21, 2600)]);
        assert_eq!(choose([&all, &all]), Choice { first: [7, 7], distance: 13 });
        let last = 2 * CHOICES - 2;
        let all = cycles(&[(0, CHOICES - 1, 2600), (1, last, 2600), (1, last + 1, 2600)]);
        let choice = Choice { first: [CHOICES - 1; 2], distance: CHOICES - 1 };
        assert_eq!(choose([&all, &all]), choice);
    }

    #[test]
    fn the_slower_rank_counts() {
        // Each rank has a place of its own where it is fast, at the distance that suits it; another
        // distance suits both less.
        let a = cycles(&[(0, 3, 2600), (1, 4, 2600), (0, 9, 2700), (1, 18, 2700)]);
        let b = cycles(&[(0, 5, 2700), (1, 14, 2700)]);
        assert_eq!(choose([&a, &b]), Choice { first: [9, 5], distance: 9 });
    }

    #[test]
    fn a_slot_is_as_slow_as_its_slowest_place_and_the_first_place_counts_more() {
        let a = cycles(&[(0, 3, 2600), (1, 3, 2600), (0, 6, 2600), (1, 6, 2600), (0, 7, 2700)]);
        assert_eq!(choose([&a, &a]).first, [6, 6]);
        let b = cycles(&[(0, 3, 2600), (1, 3, 2600), (0, 11, 2600), (1, 11, 2600)]);
        assert_eq!(choose([&b, &b]).first, [3, 3]);
    }

    #[test]
    fn no_choice_is_made_of_nothing() {
        assert_eq!(choose([&[], &[]]), Choice::default());
    }
}

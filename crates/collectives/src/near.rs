//! Where a rank receives small messages: at places of its scratch that its peer reaches fast.
//!
//! A large GPU has a second-level cache of several parts; which part an address belongs to changes every
//! 4 KiB, and a part may be near or far. On two H200s an allreduce of up to 2 KiB took 1.82 us where the
//! packets came in near and 1.95 to 2.0 us where they came in far, whatever else was done. So each of two
//! ranks times hops to its places once and tells the other where to send. More ranks would need one
//! place that is near for all their peers' slots at once; they take them as they come.

use mscclrs_core::{Communicator, Region, register_launch_tag};
use mscclrs_device::Global;
use mscclrs_gpu::{BackendKind, Grid};
use mscclrs_kernels::near::{NearArgs, near};

use crate::Result;

/// Bytes from place to place: what lies in one part of the cache.
const STEP: u64 = 4 << 10;
/// Places among which the scratch may begin.
const CHOICES: u64 = 64;
/// Places of a slot that are weighed: those of messages of up to 4 KiB.
const WEIGHED: u64 = 2;

/// Slots that may be shifted within a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) ranks: u32,
    /// Bytes a slot; two halves of one for each peer.
    pub(crate) slot: u64,
}

impl Layout {
    /// Bytes of each slot, if all slots have `bytes` together.
    pub(crate) const fn slot(bytes: u64, ranks: u32) -> u64 {
        bytes / slots(ranks) / STEP * STEP
    }

    /// Bytes of a region that holds the slots wherever they begin, and what is measured.
    pub(crate) fn bytes(self) -> u64 {
        // The first place begins within the first step.
        (1 + self.places()) * STEP + self.places() * 4
    }

    fn places(self) -> u64 {
        slots(self.ranks) * self.slot / STEP + CHOICES
    }

    /// The choice whose places are the fastest, by the cycles of each place; the worst of a choice's
    /// places counts, since a message is complete when its last packet is.
    fn choose(self, cycles: &[u32]) -> u64 {
        let cost = |choice: u64| {
            let worst = |place: u64| {
                let at = |slot: u64| (slot * self.slot / STEP + choice + place) as usize;
                (0..slots(self.ranks))
                    .filter_map(|slot| cycles.get(at(slot)))
                    .max()
                    .copied()
                    .unwrap_or(0)
            };
            // The first place of a slot is the only one of the smallest messages.
            let first = worst(0);
            (first, (1..WEIGHED).map(worst).max().unwrap_or(0))
        };
        let sum = |(first, rest): (u32, u32)| 2 * first as u64 + rest as u64;
        (0..CHOICES).min_by_key(|&choice| sum(cost(choice))).unwrap_or(0)
    }
}

/// Slots of both halves.
const fn slots(ranks: u32) -> u64 {
    if ranks < 2 { 2 } else { 2 * (ranks as u64 - 1) }
}

/// Bytes by which each rank's slots are shifted in the region. Collective, where the ranks' peer is
/// another GPU; blocks until the hops are measured.
pub(crate) fn shifts(
    communicator: &Communicator,
    region: &Region,
    layout: Layout,
) -> Result<Vec<u64>> {
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
    let cycles = measure(communicator, [first(0), first(1)], layout)?;
    let me = communicator.rank();
    let shift = first(me) - region.of(me) + layout.choose(&cycles) * STEP;
    let all = communicator.bootstrap().all_gather(&shift.to_le_bytes())?;
    let shift = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
    Ok(all.iter().map(|bytes| shift(bytes).min(CHOICES * STEP)).collect())
}

/// Cycles of a round trip by way of each of this rank's places, which begin at `first` of each rank.
fn measure(communicator: &Communicator, first: [u64; 2], layout: Layout) -> Result<Vec<u32>> {
    let device = communicator.device();
    let rank = communicator.rank();
    let (here, there) = (first[rank as usize], first[1 - rank as usize]);
    let places = layout.places();
    let kernel = near.instance("").ok_or_else(|| mscclrs_gpu::Error::Invalid {
        what: "kernel instance",
        value: "none of `near`".into(),
        allowed: "the one".into(),
    })?;
    let function = device.function(kernel)?;
    let stream = device.create_stream()?;
    // SAFETY: the region holds places and results, and nobody else uses it yet.
    let memory = unsafe { device.adopt(here, layout.bytes() - STEP)? };
    for measures in 0..2 {
        let args = NearArgs {
            guard: communicator.guard(register_launch_tag(kernel.name)),
            here: Global::from_address(here),
            there: Global::from_address(there),
            cycles: Global::from_address(here + places * STEP),
            count: places as u32,
            step: (STEP / 8) as u32,
            rank,
            measures,
        };
        // SAFETY: as above, on both ranks, whose memory is mapped.
        unsafe { stream.launch(&function, Grid::new(1, 32), &args)? };
    }
    communicator.synchronize(&stream)?;
    let mut bytes = vec![0; places as usize * 4];
    memory.read(&stream, places * STEP, &mut bytes)?;
    // Slots are zero at first. All that the peer sent was waited for.
    memory.write(&stream, 0, &vec![0; (places * STEP) as usize])?;
    communicator.synchronize(&stream)?;
    let words = bytes.chunks_exact(4).filter_map(|word| word.try_into().ok());
    Ok(words.map(u32::from_le_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Layout = Layout { ranks: 2, slot: 512 << 10 };

    #[test]
    fn every_choice_lies_in_the_region() {
        for ranks in 1..=8 {
            let slot = Layout::slot(1 << 20, ranks);
            assert!(slot >= WEIGHED * STEP && slot.is_multiple_of(STEP), "{ranks} ranks");
            let layout = Layout { ranks, slot };
            let last = CHOICES * STEP + slots(ranks) * slot;
            assert!(last <= layout.bytes() - layout.places() * 4, "{ranks} ranks");
        }
    }

    #[test]
    fn fast_places_are_chosen() {
        let mut cycles = vec![600; TWO.places() as usize];
        // The halves are 128 places apart.
        for place in [7, 8, 128 + 7, 128 + 8] {
            cycles[place] = 300;
        }
        assert_eq!(TWO.choose(&cycles), 7);
    }

    #[test]
    fn the_slowest_place_counts() {
        let mut cycles = vec![600; TWO.places() as usize];
        // One of choice 3 is fast; both of choice 5 are a little.
        cycles[3] = 100;
        cycles[5] = 500;
        cycles[128 + 5] = 500;
        assert_eq!(TWO.choose(&cycles), 5);
    }

    #[test]
    fn no_choice_is_made_of_nothing() {
        assert_eq!(TWO.choose(&[]), 0);
    }
}

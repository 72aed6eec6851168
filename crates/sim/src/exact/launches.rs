//! Launches and their blocks: lanes get their numbers and slots, and give them back.

use std::rc::Rc;

use super::clock::{Clock, Known, join, set};
use super::watch::{BlockInfo, LaneState, LaunchInfo, Watch, Who};

impl Watch {
    /// Lanes of a block begin; gives the first one's number. They come after all that is in `known`.
    pub(crate) fn begin_block(
        &self,
        (launch, index): (u32, u32),
        (first_slot, count): (u32, u32),
        known: &Known,
    ) -> u32 {
        let state = &mut *self.state.borrow_mut();
        let block = state.blocks.len() as u32;
        let device = state.launches[launch as usize].device;
        state.blocks.push(BlockInfo { launch, index, device, first_slot });
        let first = state.free_lanes.get_mut(&count).and_then(Vec::pop).unwrap_or_else(|| {
            let first = state.lanes.len();
            state.lanes.resize_with(first + count as usize, LaneState::default);
            first as u32
        });
        let step = u64::from(state.launches[launch as usize].lanes);
        for lane in 0..count {
            let slot = first_slot + lane;
            let time = state.slots[slot as usize] + 1;
            let (who, clock) = (Who { block, lane }, Clock::new(slot, time, known.clone()));
            state.lanes[(first + lane) as usize] =
                LaneState { who, clock, step, ..Default::default() };
            let LaunchInfo { kernel, device, .. } = state.launches[launch as usize];
            if let Some(decisions) = &mut state.decisions {
                decisions.begin_lane(first + lane, (kernel, device), (launch, index, lane));
            }
        }
        first
    }

    /// Lanes of a block have ended, and its shared memory is gone; adds what they did to `known`.
    pub(crate) fn end_block(&self, first: u32, lanes: u32, shared_object: u64, known: &mut Known) {
        let state = &mut *self.state.borrow_mut();
        let mut last = Known::default();
        for number in first..first + lanes {
            let lane = std::mem::take(&mut state.lanes[number as usize]);
            let (slot, time) = (lane.clock.slot, lane.clock.time);
            let knows = lane.clock.known();
            // Lanes that met last at a barrier know the same.
            if !Rc::ptr_eq(&last, knows) {
                join(known, knows);
                last.clone_from(knows);
            }
            set(known, slot, time);
            state.slots[slot as usize] = time + 1;
        }
        state.free_lanes.entry(lanes).or_default().push(first);
        state.cells.forget(shared_object);
        self.stored();
    }

    pub(crate) fn begin_launch(&self, kernel: &'static str, device: u32, lanes: u32) -> u32 {
        let state = &mut *self.state.borrow_mut();
        state.launches.push(LaunchInfo { kernel, device, lanes });
        state.kernels.insert(kernel);
        state.launches.len() as u32 - 1
    }

    /// So many slots or more, for what comes after all that is in `known`: some of a queue's own, if it
    /// may have them.
    pub(crate) fn take_slots(&self, own: &mut Vec<SlotRun>, count: u32, known: &Known) -> SlotRun {
        let state = &mut *self.state.borrow_mut();
        let slots = &mut state.slots;
        // What has a slot is taken to know of all that was done in it.
        let is_known = |slot: u32| {
            let last = slots[slot as usize];
            known.get(slot as usize).copied().unwrap_or(0) + 1 >= last
        };
        let knows = |run: &SlotRun| (run.first..run.first + run.count).all(is_known);
        let free = take_run(own, count, knows);
        free.or_else(|| take_run(&mut state.free_slots, count, knows)).unwrap_or_else(|| {
            let first = slots.len() as u32;
            slots.resize((first + count) as usize, 0);
            SlotRun { first, count }
        })
    }

    /// Slots whose lanes have ended, and whose queue is gone.
    pub(crate) fn give_slots(&self, runs: impl IntoIterator<Item = SlotRun>) {
        self.state.borrow_mut().free_slots.extend(runs);
    }
}

/// Slots that follow each other: a block's, or a queue's one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRun {
    pub(crate) first: u32,
    count: u32,
}

/// Takes the shortest one that is long enough and that may be taken; of several the last.
fn take_run(
    free: &mut Vec<SlotRun>,
    count: u32,
    may: impl Fn(&SlotRun) -> bool,
) -> Option<SlotRun> {
    let fits = free.iter().enumerate().rev().filter(|(_, run)| run.count >= count && may(run));
    let (at, _) = fits.min_by_key(|(_, run)| run.count)?;
    Some(free.remove(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_that_fits_best_is_taken_and_no_other() {
        let run = |first, count| SlotRun { first, count };
        let mut free = vec![run(0, 64), run(64, 8), run(72, 32), run(104, 32)];
        assert_eq!(take_run(&mut free, 128, |_| true), None);
        assert_eq!(take_run(&mut free, 20, |_| true), Some(run(104, 32)));
        assert_eq!(take_run(&mut free, 20, |run| run.first != 72), Some(run(0, 64)));
        assert_eq!(free, [run(64, 8), run(72, 32)]);
    }
}

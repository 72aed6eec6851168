//! Launches and their blocks: lanes get their numbers and slots, and give them back.

use std::rc::Rc;

use super::clock::{Clock, Known, join, set};
use super::watch::{BlockInfo, LaneState, LaunchInfo, Watch, Who};

impl Watch {
    /// Lanes of a block begin; gives the first one's number. They come after all that is in `known`.
    pub(crate) fn begin_block(&self, launch: u32, index: u32, slots: &[u32], known: &Known) -> u32 {
        let state = &mut *self.state.borrow_mut();
        let block = state.blocks.len() as u32;
        let device = state.launches[launch as usize].device;
        state.blocks.push(BlockInfo { launch, index, device });
        let count = slots.len() as u32;
        let first = state.free_lanes.get_mut(&count).and_then(Vec::pop).unwrap_or_else(|| {
            let first = state.lanes.len();
            state.lanes.resize_with(first + slots.len(), LaneState::default);
            first as u32
        });
        for (lane, &slot) in (0..).zip(slots) {
            let time = state.slots[slot as usize] + 1;
            let (who, clock) = (Who { block, lane }, Clock::new(slot, time, known.clone()));
            state.lanes[(first + lane) as usize] = LaneState { who, clock, ..Default::default() };
            let LaunchInfo { kernel, device } = state.launches[launch as usize];
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

    pub(crate) fn begin_launch(&self, kernel: &'static str, device: u32) -> u32 {
        let state = &mut *self.state.borrow_mut();
        state.launches.push(LaunchInfo { kernel, device });
        state.kernels.insert(kernel);
        state.launches.len() as u32 - 1
    }

    /// So many slots, for lanes that come after all that is in `known`.
    pub(crate) fn take_slots(&self, count: usize, known: &Known, taken: &mut Vec<u32>) {
        let state = &mut *self.state.borrow_mut();
        let slots = &mut state.slots;
        let until = taken.len() + count;
        if count == 0 {
            return;
        }
        state.free_slots.retain(|&slot| {
            // A lane is taken to know of all that was done in its slot.
            let last = slots[slot as usize];
            let knows = known.get(slot as usize).is_some_and(|&known| known + 1 >= last);
            let take = knows && taken.len() < until;
            if take {
                taken.push(slot);
            }
            !take
        });
        while taken.len() < until {
            taken.push(slots.len() as u32);
            slots.push(0);
        }
    }

    /// Slots whose lanes have ended, and whose queue is gone.
    pub(crate) fn give_slots(&self, slots: Vec<u32>) {
        self.state.borrow_mut().free_slots.extend(slots);
    }
}

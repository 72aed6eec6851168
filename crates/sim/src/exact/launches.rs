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
        // Blocks of ever other sizes can have the same.
        let room = count.next_power_of_two();
        let first = state.free_lanes.get_mut(&room).and_then(Vec::pop).unwrap_or_else(|| {
            let first = state.lanes.len();
            state.lanes.resize_with(first + room as usize, LaneState::default);
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
        state.free_lanes.entry(lanes.next_power_of_two()).or_default().push(first);
        state.cells.forget(shared_object);
        self.stored();
    }

    pub(crate) fn begin_launch(&self, kernel: &'static str, device: u32, lanes: u32) -> u32 {
        let state = &mut *self.state.borrow_mut();
        state.launches.push(LaunchInfo { kernel, device, lanes, ended: None });
        state.kernels.insert(kernel);
        state.launches.len() as u32 - 1
    }

    pub(crate) fn end_launch(&self, launch: u32) {
        let state = &mut *self.state.borrow_mut();
        state.launches[launch as usize].ended = Some(state.launches.len() as u32);
    }
}

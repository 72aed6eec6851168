//! Which blocks are resident where.
//!
//! Invariant: what the blocks of a multiprocessor hold of lanes and shared memory never exceeds what
//! it has; a place is freed exactly once, when its block ends.

use crate::DeviceConfig;
use crate::block::WARP;
use crate::work::Launch;

/// What a resident block holds, and where.
pub(crate) struct Place {
    multiprocessor: usize,
    lanes: u32,
    shared_bytes: u32,
}

struct Room {
    lanes: u32,
    shared_bytes: u32,
}

pub(crate) struct Residency(Vec<Room>);

impl Residency {
    pub(crate) fn new(config: &DeviceConfig) -> Self {
        let room = || Room { lanes: config.threads, shared_bytes: config.shared_bytes };
        Residency((0..config.multiprocessors).map(|_| room()).collect())
    }

    /// A place on the multiprocessor with the most lanes free.
    pub(crate) fn take(&mut self, launch: &Launch) -> Option<Place> {
        let (lanes, shared_bytes) = (launch.threads.next_multiple_of(WARP), launch.shared_bytes);
        let fits = |room: &Room| room.lanes >= lanes && room.shared_bytes >= shared_bytes;
        let (multiprocessor, room) =
            self.0
                .iter_mut()
                .enumerate()
                .filter(|(_, room)| fits(room))
                .max_by_key(|(index, room)| (room.lanes, std::cmp::Reverse(*index)))?;
        room.lanes -= lanes;
        room.shared_bytes -= shared_bytes;
        Some(Place { multiprocessor, lanes, shared_bytes })
    }

    pub(crate) fn give(&mut self, place: &Place) {
        let room = &mut self.0[place.multiprocessor];
        room.lanes += place.lanes;
        room.shared_bytes += place.shared_bytes;
    }
}

/// Blocks of this shape that a whole device holds at once.
pub(crate) fn resident_blocks(config: &DeviceConfig, threads: u32, shared_bytes: u32) -> u32 {
    let by_lanes = config.threads / threads.max(1).next_multiple_of(WARP);
    let by_shared = config.shared_bytes.checked_div(shared_bytes).unwrap_or(u32::MAX);
    config.multiprocessors * by_lanes.min(by_shared)
}

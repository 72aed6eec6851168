//! What the work of a device's queues knows of what happened before it, where accesses are watched.
//!
//! The lanes of a launch know what the queue's earlier work did. What a host thread submits knows of all
//! work that had ended by then, whoever waited for it, and so does what comes after a wait for an event:
//! so some races between launches are not seen, but none is invented.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::block::Block;
use crate::exact::{Known, SlotRun, Watch, join, take_run};
use crate::work::{Launch, Work};

#[derive(Default)]
struct QueueKnowledge {
    known: Known,
    /// Slots of lanes that have ended.
    free: Vec<SlotRun>,
    /// The slot of its moves of bytes, once it has had one.
    mover: Option<SlotRun>,
}

/// What a launch knows, and what is known after it.
pub(super) struct LaunchKnowledge {
    launch: u32,
    before: Known,
    after: Known,
    slots: Vec<SlotRun>,
}

pub(super) struct Knowledge {
    device: u32,
    watch: Rc<Watch>,
    queues: BTreeMap<u64, QueueKnowledge>,
}

impl Knowledge {
    pub(super) fn new(device: u32, watch: Rc<Watch>) -> Knowledge {
        Knowledge { device, watch, queues: BTreeMap::new() }
    }

    /// Whether something was found.
    pub(super) fn has_failed(&self) -> bool {
        self.watch.has_failed()
    }

    /// The queue got an item, or passed a wait for an event.
    pub(super) fn submitted(&mut self, queue: u64) {
        self.watch.host_tells(&mut self.queues.entry(queue).or_default().known);
    }

    /// The queue begins to move bytes; gives the move's number.
    pub(super) fn begin_move(&mut self, queue: u64, work: &Work) -> u32 {
        let QueueKnowledge { known, mover, .. } = self.queues.entry(queue).or_default();
        let slot = mover.get_or_insert_with(|| self.watch.take_slots(1, known)).first;
        self.watch.begin_move(slot, self.device, work.name())
    }

    /// A move has moved so many bytes, after as many as `at`.
    pub(super) fn moved(&mut self, (queue, number): (u64, u32), work: &Work, at: u64, bytes: u64) {
        let known = &self.queues.entry(queue).or_default().known;
        let (to, from) = (work.target().0 + at, work.source().map(|from| from + at));
        self.watch.moved(number, known, (from, to), bytes);
    }

    /// What comes after the move in the queue knows of it.
    pub(super) fn end_move(&mut self, queue: u64, number: u32) {
        let known = &mut self.queues.entry(queue).or_default().known;
        self.watch.end_move(number, known);
    }

    pub(super) fn begin_launch(&mut self, queue: u64, launch: &Launch) -> LaunchKnowledge {
        let before = self.queues.entry(queue).or_default().known.clone();
        let lanes = launch.blocks.saturating_mul(launch.threads);
        let launch = self.watch.begin_launch(launch.kernel.name, self.device, lanes);
        LaunchKnowledge { launch, before, after: Known::default(), slots: Vec::new() }
    }

    pub(super) fn begin_block(
        &mut self,
        queue: u64,
        launch: &mut LaunchKnowledge,
        block: u32,
        lanes: u32,
    ) -> (Rc<Watch>, u32) {
        let free = &mut self.queues.entry(queue).or_default().free;
        let own = take_run(free, lanes, |_| true);
        let slots = own.unwrap_or_else(|| self.watch.take_slots(lanes, &launch.before));
        launch.slots.push(slots);
        let (block, lanes) = ((launch.launch, block), (slots.first, lanes));
        let first = self.watch.begin_block(block, lanes, &launch.before);
        (self.watch.clone(), first)
    }

    pub(super) fn end_block(&self, launch: &mut LaunchKnowledge, block: &Block) {
        if let Some((first, count)) = block.watched_lanes() {
            self.watch.end_block(first, count, block.shared_object(), &mut launch.after);
        }
    }

    pub(super) fn end_launch(&mut self, queue: u64, launch: LaunchKnowledge) {
        let of_queue = self.queues.entry(queue).or_default();
        join(&mut of_queue.known, &launch.after);
        // In the order in which they were taken, so that runs of a seed are the same.
        of_queue.free.extend(launch.slots.into_iter().rev());
        self.watch.host_learns(&launch.after);
    }
    /// The queue has done all that it had, and gets no more.
    pub(super) fn closed(&mut self, queue: u64) {
        if let Some(of_queue) = self.queues.remove(&queue) {
            self.watch.give_slots(of_queue.free);
            self.watch.give_slots(of_queue.mover);
        }
    }
}

//! What the work of a device's queues knows of what happened before it, where accesses are watched.
//!
//! The lanes of a launch know what the queue's earlier work did, and in a graph what the nodes did that
//! they wait for, whatever of the others may have run before. What comes after a wait for an event
//! knows what came before its record. What a host thread submits knows of all that host threads had
//! seen to be done by then, whichever of them it was, since they may have told each other; and of
//! nothing that only happens to have ended.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::Point;
use crate::block::Block;
use crate::exact::{FreeSlots, Known, Moment, SlotRun, Watch, join};
use crate::inbox::QueueShared;
use crate::work::{Launch, Work};

#[derive(Default)]
struct QueueKnowledge {
    known: Known,
    /// Slots of lanes that have ended.
    free: FreeSlots,
    /// Slots of its moves of bytes: as many as branches of a graph have moved at a time.
    movers: FreeSlots,
}

/// What the nodes of a graph that runs know.
pub(super) struct GraphKnowledge {
    before: Known,
    /// What is known after each node, once it is done.
    after: Vec<Known>,
}

impl GraphKnowledge {
    /// What a node knows that waits for these.
    pub(super) fn before(&self, nodes: &[u32]) -> Known {
        let mut known = self.before.clone();
        nodes.iter().for_each(|&node| join(&mut known, &self.after[node as usize]));
        known
    }

    /// A node is done.
    pub(super) fn done(&mut self, node: u32, after: Known) {
        self.after[node as usize] = after;
    }
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

    /// What an item knows that was submitted at that stamp.
    pub(super) fn submitted(&self, stamp: u64) -> Known {
        self.watch.host().at(stamp)
    }

    /// The queue begins an item that knows of this.
    pub(super) fn begins(&mut self, queue: u64, of_host: &Known) {
        join(self.of(queue), of_host);
    }

    /// The queue has waited for a point.
    pub(super) fn waited(&mut self, queue: u64, point: &Point) {
        let after = self.watch.host().after(point);
        join(self.of(queue), &after);
    }

    /// The queue is about to pass a point.
    pub(super) fn passes(&mut self, queue: u64, point: &Arc<Point>) {
        let known = self.of(queue).clone();
        self.watch.host().passed(point, &known);
    }

    /// The queue is about to make a call, which may tell anybody.
    pub(super) fn calls(&mut self, queue: u64) {
        let known = Moment::of(self.of(queue).clone());
        self.watch.host().learn(std::iter::once(&known));
    }

    /// The queue has done so many items.
    pub(super) fn completed(&mut self, queue: &QueueShared, items: u64) {
        if let Some(watched) = &queue.watched {
            let known = self.of(queue.id).clone();
            self.watch.host().done(watched.number, items, &known);
        }
    }

    fn of(&mut self, queue: u64) -> &mut Known {
        &mut self.queues.entry(queue).or_default().known
    }

    /// The queue begins a graph of so many nodes.
    pub(super) fn begin_graph(&mut self, queue: u64, nodes: usize) -> GraphKnowledge {
        let before = self.queues.entry(queue).or_default().known.clone();
        GraphKnowledge { before, after: vec![Known::default(); nodes] }
    }

    /// The queue begins to move bytes after all that is in `before`; gives the move's number.
    pub(super) fn begin_move(&mut self, queue: u64, work: &Work, before: &Known) -> u32 {
        let movers = &mut self.queues.entry(queue).or_default().movers;
        let mover = self.watch.take_slots(movers, 1, before);
        movers.give([mover]);
        self.watch.begin_move(mover.first, self.device, work.name())
    }

    /// A move has moved so many bytes, after as many as `at`.
    pub(super) fn moved(
        &mut self,
        number: u32,
        before: &Known,
        work: &Work,
        (at, bytes): (u64, u64),
    ) {
        let (to, from) = (work.target().0 + at, work.source().map(|from| from + at));
        self.watch.moved(number, before, (from, to), bytes);
    }

    /// What comes after the move knows of it.
    pub(super) fn end_move(&mut self, queue: u64, number: u32, known: &mut Known) {
        self.watch.end_move(number, known);
        join(&mut self.queues.entry(queue).or_default().known, known);
    }

    pub(super) fn begin_launch(&mut self, launch: &Launch, before: Known) -> LaunchKnowledge {
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
        let slots = self.watch.take_slots(free, lanes, &launch.before);
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

    /// Gives what is known after it.
    pub(super) fn end_launch(&mut self, queue: u64, mut launch: LaunchKnowledge) -> Known {
        self.watch.end_launch(launch.launch);
        let of_queue = self.queues.entry(queue).or_default();
        join(&mut of_queue.known, &launch.after);
        // In the order in which they were taken, so that runs of a seed are the same.
        of_queue.free.give(launch.slots.into_iter().rev());
        join(&mut launch.after, &launch.before);
        launch.after
    }

    /// The queue has done all that it had, and gets no more.
    pub(super) fn closed(&mut self, queue: &QueueShared) {
        if let Some(watched) = &queue.watched {
            self.watch.host().closed(watched.number);
        }
        if let Some(of_queue) = self.queues.remove(&queue.id) {
            self.watch.give_slots(of_queue.free);
            self.watch.give_slots(of_queue.movers);
        }
    }
}

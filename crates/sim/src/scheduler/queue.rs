//! One queue, as its scheduler sees it: items in order, of which one runs at a time.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::known::{GraphKnowledge, Knowledge, LaunchKnowledge};
use crate::exact::Known;
use crate::inbox::{Inbox, Item, QueueShared};
use crate::work::{Launch, Work};
use crate::{Graph, Point, Stopped};

/// Bytes moved at a turn, so that kernels of other queues go on beside a large copy.
const CHUNK: u64 = 4 << 20;

/// What the queue does now.
enum Current {
    Running(Running),
    Waiting(Arc<Point>),
}

/// A move of bytes.
struct Move {
    node: u32,
    /// How far it is.
    at: u64,
    /// Its number where accesses are watched, and what it knows of.
    known: Option<(u32, Known)>,
}

/// A graph that runs.
struct Running {
    graph: Arc<Graph>,
    /// For each node, how many it still waits for.
    missing: Vec<u32>,
    ready: Vec<u32>,
    /// Moves of bytes that are under way.
    moves: Vec<Move>,
    launches: u32,
    left: usize,
    /// What nodes know, where accesses are watched.
    known: Option<GraphKnowledge>,
}

impl Running {
    fn new(graph: Arc<Graph>, known: Option<GraphKnowledge>) -> Self {
        let missing: Vec<u32> = graph.nodes.iter().map(|node| node.after.len() as u32).collect();
        let ready = (0..missing.len() as u32).filter(|&n| missing[n as usize] == 0).collect();
        let left = missing.len();
        Running { graph, missing, ready, moves: Vec::new(), launches: 0, left, known }
    }

    /// What a node knows before it begins.
    fn before(&self, node: u32) -> Known {
        let after = &self.graph.nodes[node as usize].after;
        self.known.as_ref().map_or_else(Known::default, |known| known.before(after))
    }

    /// A node is done; `after` is known after it.
    fn done(&mut self, node: u32, after: Option<Known>) {
        if let (Some(known), Some(after)) = (&mut self.known, after) {
            known.done(node, after);
        }
        self.left -= 1;
        for &follower in &self.graph.followers[node as usize] {
            self.missing[follower as usize] -= 1;
            if self.missing[follower as usize] == 0 {
                self.ready.push(follower);
            }
        }
    }

    fn is_over(&self, stopped: bool) -> bool {
        if stopped { self.launches == 0 } else { self.left == 0 }
    }
}

pub(super) struct Queue {
    pub(super) shared: Arc<QueueShared>,
    /// With what the host knew when it submitted them, where accesses are watched.
    items: VecDeque<(Item, Option<Known>)>,
    current: Option<Current>,
    /// Items that came in.
    pub(super) received: u64,
    /// Items that are done.
    pub(super) completed: u64,
    /// Nobody submits any more.
    pub(super) closed: bool,
    stopped: bool,
}

impl Queue {
    pub(super) fn new(shared: Arc<QueueShared>) -> Self {
        Queue {
            shared,
            items: VecDeque::new(),
            current: None,
            received: 0,
            completed: 0,
            closed: false,
            stopped: false,
        }
    }

    pub(super) fn push(&mut self, item: Item, known: Option<Known>) {
        self.received += 1;
        self.items.push_back((item, known));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.items.is_empty()
    }

    pub(super) fn waits_for_a_point(&self) -> bool {
        matches!(self.current, Some(Current::Waiting(_)))
    }

    /// Whether it waits for a point that has been passed.
    pub(super) fn may_go_on(&self) -> bool {
        matches!(&self.current, Some(Current::Waiting(point)) if point.has_passed())
    }

    /// Whether a launch is still to end: some of what is left of the graph that runs may be none.
    pub(super) fn has_launches(&self) -> bool {
        let of_graph =
            |graph: &Graph| graph.nodes.iter().any(|node| matches!(node.work, Work::Launch(_)));
        let left = match &self.current {
            Some(Current::Running(running)) => running.left > 0 && of_graph(&running.graph),
            Some(Current::Waiting(_)) | None => false,
        };
        left || self
            .items
            .iter()
            .any(|(item, _)| matches!(item, Item::Graph(graph) if of_graph(graph)))
    }

    /// A launch of the running graph has ended.
    pub(super) fn launch_done(&mut self, node: u32, after: Option<Known>) {
        if let Some(Current::Running(running)) = &mut self.current {
            running.launches -= 1;
            running.done(node, after);
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The queue takes no more work; its launches are ended by the caller.
    pub(super) fn stop(&mut self, error: Stopped) {
        self.stopped = true;
        self.shared.fail(error);
    }

    /// Goes on as far as it can; true if it wants another turn at once. Launches that begin are
    /// given to `begin` with their node and what they know.
    pub(super) fn advance(
        &mut self,
        inbox: &Arc<Inbox>,
        mut known: Option<&mut Knowledge>,
        mut begin: impl FnMut(u32, Launch, Option<LaunchKnowledge>),
    ) -> bool {
        let id = self.shared.id;
        // After a finding nothing ends but by being stopped, so nobody goes on as if all were well.
        let failed =
            |known: &Option<&mut Knowledge>| known.as_ref().is_some_and(|k| k.has_failed());
        loop {
            if !self.stopped && failed(&known) {
                return false;
            }
            match &mut self.current {
                None => {
                    let Some((item, of_host)) = self.items.pop_front() else { return false };
                    if let (Some(known), Some(of_host)) = (&mut known, of_host) {
                        known.begins(id, &of_host);
                    }
                    self.start(item, inbox, known.as_deref_mut());
                }
                Some(Current::Waiting(point)) => {
                    if !point.has_passed() && !self.stopped {
                        return false;
                    }
                    waited(known.as_deref_mut(), id, point);
                    self.current = None;
                    self.complete(known.as_deref_mut());
                }
                Some(Current::Running(running)) => {
                    if !self.stopped {
                        step(running, id, &mut known, &mut begin);
                        if failed(&known) {
                            return false;
                        }
                    }
                    if !running.is_over(self.stopped) {
                        let waits = running.moves.is_empty() && running.ready.is_empty();
                        return !(self.stopped || waits);
                    }
                    self.current = None;
                    self.complete(known.as_deref_mut());
                }
            }
        }
    }

    fn start(&mut self, item: Item, inbox: &Arc<Inbox>, mut known: Option<&mut Knowledge>) {
        match item {
            // Others may wait for the point, and a task may release what they need.
            Item::Pass(point) => {
                if let Some(known) = &mut known {
                    known.passes(self.shared.id, &point);
                }
                point.pass(self.shared.error());
            }
            Item::Task(work) => {
                if let Some(known) = &mut known {
                    known.calls(self.shared.id);
                }
                if catch_unwind(AssertUnwindSafe(work)).is_err() {
                    self.stop(Stopped::new("a host call of the queue panicked"));
                }
            }
            _ if self.stopped => {}
            Item::Graph(graph) => {
                let nodes = graph.nodes.len();
                let known = known.map(|known| known.begin_graph(self.shared.id, nodes));
                self.current = Some(Current::Running(Running::new(graph, known)));
                return;
            }
            Item::Wait(point) => {
                if !point.tell(inbox) {
                    self.current = Some(Current::Waiting(point));
                    return;
                }
                waited(known.as_deref_mut(), self.shared.id, &point);
            }
        }
        self.complete(known);
    }

    fn complete(&mut self, known: Option<&mut Knowledge>) {
        self.completed += 1;
        if let Some(known) = known {
            known.completed(&self.shared, self.completed);
        }
        self.shared.complete();
    }
}

/// A queue has waited for a point.
fn waited(known: Option<&mut Knowledge>, queue: u64, point: &Point) {
    match known {
        Some(known) => known.waited(queue, point),
        // Who waits for this queue has seen it, and a world may want to know.
        None => _ = point.is_passed(),
    }
}

/// Begins what is ready and moves one chunk of every move.
fn step(
    running: &mut Running,
    queue: u64,
    known: &mut Option<&mut Knowledge>,
    begin: &mut impl FnMut(u32, Launch, Option<LaunchKnowledge>),
) {
    while let Some(node) = running.ready.pop() {
        match &running.graph.nodes[node as usize].work {
            Work::Launch(launch) => {
                running.launches += 1;
                let known = known.as_mut().map(|k| k.begin_launch(launch, running.before(node)));
                begin(node, launch.clone(), known);
            }
            work => {
                let known = known.as_mut().map(|known| {
                    let before = running.before(node);
                    (known.begin_move(queue, work, &before), before)
                });
                running.moves.push(Move { node, at: 0, known });
            }
        }
        // A short move is over at once, and what follows it can begin in this turn.
        move_bytes(running, queue, known);
    }
    move_bytes(running, queue, known);
}

fn move_bytes(running: &mut Running, queue: u64, known: &mut Option<&mut Knowledge>) {
    let mut index = 0;
    while index < running.moves.len() {
        let Move { node, at, known: of_move } = &mut running.moves[index];
        let (node, work) = (*node, &running.graph.nodes[*node as usize].work);
        let next = move_chunk(work, *at);
        if let (Some(known), Some((number, before))) = (known.as_mut(), &of_move) {
            let (_, bytes) = work.target();
            known.moved(*number, before, work, (*at, next.unwrap_or(bytes) - *at));
        }
        if let Some(next) = next {
            *at = next;
            index += 1;
            continue;
        }
        let mut after = None;
        if let (Some(known), Some((number, mut before))) = (known.as_mut(), of_move.take()) {
            known.end_move(queue, number, &mut before);
            after = Some(before);
        }
        running.moves.swap_remove(index);
        running.done(node, after);
    }
}

/// Moves the bytes from `at` on; gives where to go on, or `None` at the end.
fn move_chunk(work: &Work, at: u64) -> Option<u64> {
    let (to, bytes) = work.target();
    let mut count = (bytes - at).min(CHUNK);
    let target = (to + at) as usize as *mut u8;
    // SAFETY: who made the graph promised that the work's addresses may be read and written. Other
    // threads may touch them at the same time only as a GPU's copies and kernels may: what races
    // gets bytes of either.
    unsafe {
        match work {
            Work::Copy { from, .. } => {
                // Ranges that overlap are right only as one move.
                if from.abs_diff(to) < bytes {
                    count = bytes - at;
                }
                target.copy_from((from + at) as usize as *const u8, count as usize);
            }
            Work::Fill { byte, .. } => target.write_bytes(*byte, count as usize),
            Work::Upload { data, .. } => {
                target.copy_from(data.as_ptr().wrapping_add(at as usize), count as usize);
            }
            Work::Launch(_) => {}
        }
    }
    Some(at + count).filter(|&next| next < bytes)
}

//! A device's queues, launches and resident blocks; and the fast engine: one thread a device, lanes in
//! turn, memory as the CPU has it. `exact` runs the same state in another order.
//!
//! A pass of the fast engine takes what came in, begins what can begin, looks at every watched word and
//! runs every lane that is ready once. After a pass without progress the thread yields: with more
//! processes than cores the one that would change the word is waiting for this core. After a while it
//! sleeps shortly between looks, and without any resident block it sleeps until work comes.

mod known;
mod queue;
mod residency;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mscclrs_device::arch::global_timer_ns;

use crate::block::{Block, Failure, Ran};
use crate::exact::{RunningKernel, Watch};
use crate::inbox::{Came, Command, Inbox};
use crate::report::WaitingReport;
use crate::stack::Stacks;
use crate::work::Launch;
use crate::{DeviceConfig, Stopped};
use known::{Knowledge, LaunchKnowledge};
use queue::Queue;
use residency::Residency;

pub(crate) use residency::{Place, resident_blocks};

/// Time without progress in which the thread yields and does not sleep.
const YIELD_NS: u64 = 2_000_000;
/// Time without progress after which it sleeps longer.
const NAP_LONGER_NS: u64 = 50_000_000;
/// How exactly other devices of the process learn of progress.
const TELL_NS: u64 = 1_000_000;
const NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_micros(500);
/// How long work without progress may last once nobody can see its end.
const ORPHAN_LIMIT: Duration = Duration::from_secs(5);

/// When any device of this process last got on: what one waits for, another may be about to write.
static LAST_PROGRESS_NS: AtomicU64 = AtomicU64::new(0);

/// A launch that has begun.
struct Run {
    key: u64,
    queue: u64,
    node: u32,
    launch: Launch,
    next_block: u32,
    resident: u32,
    /// Where accesses are watched.
    known: Option<LaunchKnowledge>,
}

/// Something to be dropped once queues have done what they had.
struct Deferred {
    until: Vec<(u64, u64)>,
    _item: Arc<dyn std::any::Any + Send + Sync>,
}

pub(crate) struct Scheduler {
    config: DeviceConfig,
    inbox: Arc<Inbox>,
    queues: Vec<Queue>,
    runs: Vec<Run>,
    pub(crate) blocks: Vec<Block>,
    residency: Residency,
    pub(crate) stacks: Stacks,
    deferred: Vec<Deferred>,
    /// What the work of its queues knows, where accesses are watched.
    known: Option<Knowledge>,
    next_key: u64,
    /// Whose turn it is to get the next place.
    turn: usize,
    /// Queues may be able to go on.
    advance: bool,
    /// Blocks may be able to begin.
    begin: bool,
    orphaned: bool,
    progress_ns: u64,
    told_ns: u64,
}

impl Scheduler {
    pub(crate) fn new(config: DeviceConfig, inbox: Arc<Inbox>) -> Self {
        Scheduler {
            residency: Residency::new(&config),
            config,
            inbox,
            queues: Vec::new(),
            runs: Vec::new(),
            blocks: Vec::new(),
            stacks: Stacks::default(),
            deferred: Vec::new(),
            known: None,
            next_key: 0,
            turn: 0,
            advance: false,
            begin: false,
            orphaned: false,
            progress_ns: 0,
            told_ns: 0,
        }
    }

    /// One whose accesses are watched.
    pub(crate) fn watched(config: DeviceConfig, inbox: Arc<Inbox>, watch: Rc<Watch>) -> Self {
        let known = Some(Knowledge::new(config.ordinal, watch));
        Scheduler { known, ..Scheduler::new(config, inbox) }
    }

    /// What came in and has not been taken.
    pub(crate) fn came(&self) -> Came {
        self.inbox.came()
    }

    /// How many commands came in that have not been taken.
    pub(crate) fn sent(&self) -> usize {
        self.inbox.sent()
    }

    /// Begins what can begin, and moves bytes; true if it did anything.
    pub(crate) fn proceed(&mut self) -> bool {
        // What they wait for may have been passed. After a finding only who was stopped goes on.
        let failed = self.known.as_ref().is_some_and(Knowledge::has_failed);
        let goes_on = |queue: &Queue| queue.may_go_on() && (queue.is_stopped() || !failed);
        self.advance |= self.queues.iter().any(goes_on);
        let proceeds = self.advance || self.begin;
        while self.advance || self.begin {
            if self.advance {
                self.advance_queues();
            }
            if self.begin {
                self.begin_blocks();
            }
        }
        proceeds
    }

    /// Whether nothing is left and nobody can send more.
    pub(crate) fn is_over(&self) -> bool {
        self.orphaned && self.queues.is_empty() && self.blocks.is_empty()
    }

    /// Whether its queues have work that is not done.
    pub(crate) fn is_busy(&self) -> bool {
        self.queues.iter().any(|queue| queue.completed < queue.received)
    }

    /// Launches that have begun and not ended.
    pub(crate) fn running(&self) -> u64 {
        self.runs.len() as u64
    }

    /// Those launches.
    pub(crate) fn running_kernels(&self) -> impl Iterator<Item = RunningKernel> {
        self.runs.iter().map(|run| RunningKernel {
            kernel: run.launch.kernel.name,
            device: self.config.ordinal,
            left: run.launch.blocks - run.next_block + run.resident,
            blocks: run.launch.blocks,
        })
    }

    /// Whether it runs a launch, or knows of one that is still to begin.
    pub(crate) fn has_launches(&self) -> bool {
        !self.runs.is_empty() || self.queues.iter().any(Queue::has_launches)
    }

    pub(crate) fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Stops all queues that have work.
    pub(crate) fn fail(&mut self, error: &Stopped) {
        let busy = self.queues.iter().filter(|queue| queue.completed < queue.received);
        let busy: Vec<u64> = busy.map(|queue| queue.shared.id).collect();
        for queue in busy {
            self.stop_queue(queue, error.clone());
        }
    }

    /// Stops all queues, those too that have no work now; false if all were stopped before.
    pub(crate) fn fail_all(&mut self, error: &Stopped) -> bool {
        let live = self.queues.iter().filter(|queue| !queue.is_stopped());
        let live: Vec<u64> = live.map(|queue| queue.shared.id).collect();
        let any = !live.is_empty();
        live.into_iter().for_each(|queue| self.stop_queue(queue, error.clone()));
        any
    }

    /// Nobody does the work of its queues any more.
    pub(crate) fn abandon(&mut self, error: &Stopped) {
        for queue in &self.queues {
            queue.shared.abandon(error.clone());
        }
    }

    /// Runs until the device's owner is gone and all work is done.
    pub(crate) fn run(&mut self) {
        loop {
            self.receive();
            if self.advance {
                self.advance_queues();
            }
            if self.begin {
                self.begin_blocks();
            }
            let now = global_timer_ns();
            if self.run_blocks(now) {
                self.progress_ns = now;
                // Not at each pass: the word is shared by all schedulers of the process.
                if now > self.told_ns + TELL_NS {
                    self.told_ns = now;
                    LAST_PROGRESS_NS.fetch_max(now, Ordering::Relaxed);
                }
            }
            if self.advance || self.begin || self.blocks.iter().any(Block::is_ready) {
                continue;
            }
            if self.blocks.is_empty() {
                if self.orphaned && self.queues.is_empty() {
                    return;
                }
                self.inbox.park(None);
                self.progress_ns = global_timer_ns();
                continue;
            }
            self.rest(now);
        }
    }

    /// All lanes wait.
    fn rest(&mut self, now: u64) {
        let quiet = now.saturating_sub(self.progress_ns);
        if quiet < YIELD_NS {
            std::thread::yield_now();
            return;
        }
        let limit = self.config.deadlock.into_iter().chain(self.orphaned.then_some(ORPHAN_LIMIT));
        if let Some(limit) = limit.min() {
            let last = self.progress_ns.max(LAST_PROGRESS_NS.load(Ordering::Relaxed));
            if now.saturating_sub(last) as u128 > limit.as_nanos() {
                self.stop_all(limit);
                return;
            }
        }
        // A submission ends the nap.
        self.inbox.park(Some(if quiet < NAP_LONGER_NS { NAP } else { LONG_NAP }));
    }

    /// Takes what came; false if that was nothing, or no more than a wake-up.
    pub(crate) fn receive(&mut self) -> bool {
        // A world takes all that was sent until now, also from who is about to say so.
        let woken = self.inbox.poll();
        if !woken && self.known.is_none() {
            return false;
        }
        let commands = self.inbox.take();
        let came = !commands.is_empty();
        if !woken && !came {
            return false;
        }
        for command in commands {
            match command {
                Command::Open(shared) => self.queues.push(Queue::new(shared)),
                Command::Submit(id, item, stamp) => {
                    let known = self.known.as_ref().map(|known| known.submitted(stamp));
                    if let Some(queue) = self.queue(id) {
                        queue.push(item, known);
                    }
                }
                Command::Close(id) => {
                    if let Some(queue) = self.queue(id) {
                        queue.closed = true;
                    }
                }
                Command::Defer(item) => {
                    let busy = self.queues.iter().filter(|queue| queue.completed < queue.received);
                    let until = busy.map(|queue| (queue.shared.id, queue.received)).collect();
                    self.deferred.push(Deferred { until, _item: item });
                }
                Command::Report(sender) => {
                    // Who asked may have stopped waiting.
                    let _ = sender.send(self.report());
                }
                Command::Shutdown => self.orphaned = true,
            }
        }
        self.advance = true;
        came
    }

    fn queue(&mut self, id: u64) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| queue.shared.id == id)
    }

    fn advance_queues(&mut self) {
        self.advance = false;
        let (runs, next_key, begin) = (&mut self.runs, &mut self.next_key, &mut self.begin);
        for queue in &mut self.queues {
            let id = queue.shared.id;
            self.advance |=
                queue.advance(&self.inbox, self.known.as_mut(), |node, launch, known| {
                    let key = *next_key;
                    *next_key += 1;
                    *begin = true;
                    runs.push(Run {
                        key,
                        queue: id,
                        node,
                        launch,
                        next_block: 0,
                        resident: 0,
                        known,
                    });
                });
        }
        let queues = &self.queues;
        self.deferred.retain(|deferred| {
            deferred.until.iter().any(|&(id, count)| {
                queues.iter().any(|queue| queue.shared.id == id && queue.completed < count)
            })
        });
        self.queues.retain(|queue| {
            let over = queue.closed && queue.is_idle();
            if let (Some(known), true) = (&mut self.known, over) {
                known.closed(&queue.shared);
            }
            !over
        });
    }

    /// Fills free places, one block a launch in turn, so that no queue takes them all.
    fn begin_blocks(&mut self) {
        self.begin = false;
        let mut refused = 0;
        while refused < self.runs.len() {
            self.turn %= self.runs.len();
            let run = &mut self.runs[self.turn];
            self.turn += 1;
            let place = match run.next_block < run.launch.blocks {
                true => self.residency.take(&run.launch),
                false => None,
            };
            let Some(place) = place else {
                refused += 1;
                continue;
            };
            refused = 0;
            let (launch, block) = (run.launch.clone(), run.next_block);
            let watch = match (&mut self.known, &mut run.known) {
                (Some(all), Some(known)) => {
                    Some(all.begin_block(run.queue, known, block, launch.threads))
                }
                _ => None,
            };
            self.blocks.push(Block::new(launch, block, run.key, place, watch));
            run.next_block += 1;
            run.resident += 1;
        }
    }

    /// Gives every block a turn; whether anything got on.
    fn run_blocks(&mut self, now: u64) -> bool {
        let mut progress = false;
        let mut index = 0;
        while index < self.blocks.len() {
            let block = &mut self.blocks[index];
            let ran = block.run(now, &mut self.stacks);
            progress |= block.take_progress();
            match ran {
                Ran::Goes => index += 1,
                Ran::Ended => self.end_block(index),
                Ran::Failed(Failure { report, .. }) => {
                    let queue = self.queue_of(self.blocks[index].owner);
                    self.stop_queue(queue, Stopped::new(report));
                    // The list of blocks is another now; the rest gets its turn in the next pass.
                    return true;
                }
            }
        }
        progress
    }

    fn queue_of(&self, key: u64) -> u64 {
        self.runs.iter().find(|run| run.key == key).map_or(u64::MAX, |run| run.queue)
    }

    pub(crate) fn end_block(&mut self, index: usize) {
        let block = self.blocks.remove(index);
        self.residency.give(&block.place);
        self.begin = true;
        let Some(at) = self.runs.iter().position(|run| run.key == block.owner) else { return };
        let run = &mut self.runs[at];
        run.resident -= 1;
        if let (Some(all), Some(known)) = (&self.known, &mut run.known) {
            all.end_block(known, &block);
        }
        if run.resident == 0 && run.next_block == run.launch.blocks {
            let run = self.runs.remove(at);
            self.end_launch(run);
            self.advance = true;
        }
    }

    /// All blocks of a launch have ended.
    fn end_launch(&mut self, run: Run) {
        let known = self.known.as_mut().zip(run.known);
        let after = known.map(|(all, known)| all.end_launch(run.queue, known));
        if let Some(queue) = self.queue(run.queue) {
            queue.launch_done(run.node, after);
        }
    }

    /// Ends everything that a queue runs; it reports the error from now on.
    fn stop_queue(&mut self, id: u64, error: Stopped) {
        if let Some(queue) = self.queue(id) {
            queue.stop(error);
        }
        let (stopped, kept) = std::mem::take(&mut self.runs)
            .into_iter()
            .partition::<Vec<_>, _>(|run| run.queue == id);
        self.runs = kept;
        let (blocks, kept) = std::mem::take(&mut self.blocks)
            .into_iter()
            .partition::<Vec<_>, _>(|block| stopped.iter().any(|run| run.key == block.owner));
        self.blocks = kept;
        let mut stopped = stopped;
        for block in blocks {
            self.residency.give(&block.place);
            let of = stopped.iter_mut().find(|run| run.key == block.owner);
            let known = of.and_then(|run| run.known.as_mut());
            if let (Some(all), Some(known)) = (&self.known, known) {
                all.end_block(known, &block);
            }
            block.stop(&mut self.stacks);
        }
        for run in stopped {
            self.end_launch(run);
        }
        self.advance = true;
        self.begin = true;
    }

    fn stop_all(&mut self, limit: Duration) {
        let report = self.report();
        let error =
            Stopped::new(format!("nothing happened for {} ms; {report}", limit.as_millis()));
        let mut queues: Vec<u64> = self.runs.iter().map(|run| run.queue).collect();
        queues.dedup();
        for queue in queues {
            self.stop_queue(queue, error.clone());
        }
    }

    pub(crate) fn report(&self) -> WaitingReport {
        let mut report = WaitingReport::new(self.config.ordinal);
        for block in &self.blocks {
            report.add_block(block);
        }
        for run in &self.runs {
            let left = run.launch.blocks - run.next_block;
            report.add_not_resident(run.launch.kernel.name, left, run.launch.blocks);
        }
        report.queues_waiting =
            self.queues.iter().filter(|queue| queue.waits_for_a_point()).count() as u32;
        report
    }
}

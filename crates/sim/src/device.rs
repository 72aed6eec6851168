//! A device and its queues, as their users see them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::inbox::{Command, Inbox, Item, QueueShared};
use crate::scheduler::{Scheduler, resident_blocks};
use crate::{Graph, Point, Stopped, WaitingReport};

/// How long a report waits for a scheduler that is in the middle of a lane.
const REPORT_LIMIT: Duration = Duration::from_millis(500);

static DEVICES: Mutex<Vec<Weak<Inbox>>> = Mutex::new(Vec::new());

/// What a device is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Its number, for reports.
    pub ordinal: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Lanes that are resident on one multiprocessor; also the most lanes a block. A multiple of 32.
    pub threads: u32,
    /// Shared memory of a multiprocessor, which its blocks share; also the most a block.
    pub shared_bytes: u32,
    /// Kernels are stopped when nothing happened for so long. `None`: never, since what they wait
    /// for may come from another process.
    pub deadlock: Option<Duration>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            ordinal: 0,
            multiprocessors: 4,
            threads: 256,
            shared_bytes: 48 * 1024,
            deadlock: None,
        }
    }
}

impl DeviceConfig {
    /// Blocks of this shape that the whole device holds at once.
    pub fn resident_blocks(&self, threads: u32, shared_bytes: u32) -> u32 {
        resident_blocks(self, threads, shared_bytes)
    }
}

/// A device: one scheduler thread. When it is dropped the thread finishes what it has and ends; work
/// that then waits for something that does not come is stopped after some seconds.
pub struct Device {
    inbox: Arc<Inbox>,
    config: DeviceConfig,
    next_queue: AtomicU64,
    queues: Arc<Mutex<Vec<Weak<QueueShared>>>>,
}

impl Device {
    /// Starts a device's thread.
    pub fn start(config: DeviceConfig) -> std::io::Result<Arc<Device>> {
        let inbox = Arc::<Inbox>::default();
        let queues = Arc::<Mutex<Vec<Weak<QueueShared>>>>::default();
        let builder = std::thread::Builder::new().name(format!("mscclrs-cpu-{}", config.ordinal));
        let (own, own_inbox, own_queues) = (config.clone(), inbox.clone(), queues.clone());
        let thread = builder.spawn(move || {
            let run = || Scheduler::new(own, own_inbox).run();
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                // A fault of the scheduler itself; nobody may wait for it any more.
                let error = Stopped::new("the scheduler panicked; please report this");
                for queue in live(&own_queues) {
                    queue.abandon(error.clone());
                }
            }
        })?;
        inbox.set_thread(thread.thread().clone());
        remember(&inbox);
        Ok(Arc::new(Device { inbox, config, next_queue: AtomicU64::new(1), queues }))
    }

    /// One whose work a world's thread does, which has been told of the inbox.
    pub(crate) fn in_world(config: DeviceConfig, inbox: Arc<Inbox>) -> Arc<Device> {
        remember(&inbox);
        let queues = Arc::<Mutex<Vec<Weak<QueueShared>>>>::default();
        Arc::new(Device { inbox, config, next_queue: AtomicU64::new(1), queues })
    }

    /// Whether its thread is in this process: not so in the child of a fork.
    pub fn is_of_this_process(&self) -> bool {
        self.inbox.process.is_this()
    }

    /// What it is like.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// A new queue; its items run in order, and beside those of other queues.
    pub fn create_queue(self: &Arc<Self>) -> Queue {
        let id = self.next_queue.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(QueueShared::new(id, self.inbox.watched()));
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&shared));
        drop(queues);
        self.inbox.send(Command::Open(shared.clone()));
        Queue { device: self.clone(), shared }
    }

    /// Blocks until all that its queues have now is done. The first error of a queue, if any.
    pub fn synchronize(&self) -> Result<(), Stopped> {
        let mut result = Ok(());
        for queue in live(&self.queues) {
            let waited = queue.wait(queue.submitted.load(Ordering::Relaxed), None);
            result = result.and(waited.map(|_| ()));
        }
        // Those of which nobody has more than their work are done, or among these.
        self.inbox.sees_gone();
        result
    }

    /// What its blocks wait for; `None` if a lane has been running for half a second.
    pub fn waiting_report(&self) -> Option<WaitingReport> {
        ask(&self.inbox)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.inbox.send(Command::Shutdown);
    }
}

fn remember(inbox: &Arc<Inbox>) {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    devices.retain(|device| device.strong_count() > 0);
    devices.push(Arc::downgrade(inbox));
}

fn live(queues: &Mutex<Vec<Weak<QueueShared>>>) -> Vec<Arc<QueueShared>> {
    let queues = queues.lock().unwrap_or_else(PoisonError::into_inner);
    queues.iter().filter_map(Weak::upgrade).collect()
}

fn ask(inbox: &Inbox) -> Option<WaitingReport> {
    inbox.process.check().ok()?;
    let (sender, receiver) = channel();
    inbox.send(Command::Report(sender));
    receiver.recv_timeout(REPORT_LIMIT).ok()
}

/// Drops `item` once all that the queues of all devices of this process have now is done; does not
/// block. Memory that kernels may still use is freed this way: a kernel of any device here can reach
/// it.
pub fn release_after_work(item: Arc<dyn Any + Send + Sync>) {
    for inbox in inboxes() {
        inbox.send(Command::Defer(item.clone()));
    }
}

fn inboxes() -> Vec<Arc<Inbox>> {
    let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    devices.iter().filter_map(Weak::upgrade).filter(|inbox| inbox.process.is_this()).collect()
}

/// What the devices of this process wait for; those where nothing waits are left out.
pub fn waiting_reports() -> Vec<WaitingReport> {
    inboxes().iter().filter_map(|inbox| ask(inbox)).filter(|report| !report.is_empty()).collect()
}

/// A queue of work, run in order. When it is dropped, what it has is still run.
pub struct Queue {
    device: Arc<Device>,
    shared: Arc<QueueShared>,
}

impl Queue {
    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Names it among the queues of its device; never 0.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// Enqueues a graph; does not block. Gives the ticket to wait for.
    pub fn run(&self, graph: Arc<Graph>) -> u64 {
        self.submit(Item::Graph(graph))
    }

    /// Enqueues a call on the device's thread; it does not block. It is made even if the queue has
    /// stopped.
    pub fn call(&self, work: Box<dyn FnOnce() + Send>) -> u64 {
        self.submit(Item::Task(work))
    }

    /// The point is passed when all that was enqueued before is done.
    pub fn record(&self, point: Arc<Point>) -> u64 {
        self.submit(Item::Pass(point))
    }

    /// What is enqueued from now on waits for the point, which may be of any queue and device.
    pub fn wait_for(&self, point: Arc<Point>) -> u64 {
        self.submit(Item::Wait(point))
    }

    /// The error that stopped the queue.
    pub fn error(&self) -> Option<Stopped> {
        self.shared.error()
    }

    /// Whether all that was enqueued is done.
    pub fn is_idle(&self) -> bool {
        self.shared.has_done(self.shared.submitted.load(Ordering::Relaxed))
    }

    /// Blocks until the item with this ticket is done, at most `limit`; false when the limit passed.
    pub fn wait(&self, ticket: u64, limit: Option<Duration>) -> Result<bool, Stopped> {
        self.shared.wait(ticket, limit)
    }

    /// Blocks until all that is enqueued now is done, at most `limit`; false when the limit passed.
    pub fn synchronize(&self, limit: Option<Duration>) -> Result<bool, Stopped> {
        self.wait(self.shared.submitted.load(Ordering::Relaxed), limit)
    }

    fn submit(&self, item: Item) -> u64 {
        self.device.inbox.submit(&self.shared, item)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.inbox.send(Command::Close(self.shared.id));
    }
}

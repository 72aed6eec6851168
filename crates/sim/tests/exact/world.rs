//! A world with some devices. All that is enqueued before the end is waited for begins together.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use mscclrs_device::{Control, Global, Guard, WaitRecord};
use mscclrs_sim::{
    Decision, Device, DeviceConfig, Finding, Graph, Hold, LateLoad, Mode, Point, Queue, Ran,
    Stopped, TestMemory, Unreached, Work, World,
};

use crate::common::LIMIT;

type Met = (Vec<Decision>, Option<Unreached>, Vec<LateLoad>);

std::thread_local! {
    /// The decisions of the run that this thread ended last, the departure that it did not come to, and loads
    /// that saw old values.
    static MET: RefCell<Met> = const { RefCell::new((Vec::new(), None, Vec::new())) };
}

/// A world with a queue a device.
pub(crate) struct Ranks {
    pub(crate) world: World,
    pub(crate) queues: Vec<Queue>,
    control: TestMemory,
    claim: TestMemory,
    hold: Cell<Option<Hold>>,
}

impl Ranks {
    pub(crate) fn new(mode: Mode, devices: u32) -> Ranks {
        Ranks::with(mode, devices, DeviceConfig::default())
    }

    pub(crate) fn with(mode: Mode, devices: u32, config: DeviceConfig) -> Ranks {
        let world = World::start(mode, false).unwrap();
        let hold = Cell::new(Some(world.hold()));
        let deadlock = config.deadlock.or(Some(Duration::from_millis(20)));
        let device = |ordinal| world.device(DeviceConfig { ordinal, deadlock, ..config.clone() });
        let devices: Vec<Arc<Device>> = (0..devices).map(device).collect();
        let queues = devices.iter().map(Device::create_queue).collect();
        let control = TestMemory::of_host(size_of::<Control>());
        Ranks { world, queues, control, claim: TestMemory::new(16), hold }
    }

    /// One without a time limit.
    pub(crate) fn guard(&self) -> Guard {
        Guard {
            control: Global::from_address(self.control.address()),
            claim: Global::from_address(self.claim.address()),
            timeout_ns: 0,
            launch: 7,
        }
    }

    /// Has every wait end.
    pub(crate) fn abort(&self) {
        self.control.set(0, 1);
    }

    /// What the first wait that ended early has told.
    pub(crate) fn record(&self) -> WaitRecord {
        let at = self.control.address() + std::mem::offset_of!(Control, record) as u64;
        // SAFETY: in the control block, which lives; no kernel writes it any more.
        unsafe { (at as *const WaitRecord).read() }
    }

    /// Enqueues a write of words on a device's queue, before all that is enqueued later on any.
    pub(crate) fn upload(&self, device: usize, to: &TestMemory, words: &[u64]) {
        let data = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let work = Work::Upload { to: to.address(), data };
        // SAFETY: a test keeps its memory until its queues are done.
        self.queues[device].run(Arc::new(unsafe { Graph::single(work) }));
        let point = Point::new();
        self.queues[device].record(point.clone());
        for queue in
            self.queues.iter().filter(|queue| !std::ptr::eq(*queue, &raw const self.queues[device]))
        {
            queue.wait_for(point.clone());
        }
    }

    /// Begins all that is enqueued, and from now on what is as it comes.
    pub(crate) fn begin(&self) {
        self.hold.take();
    }

    /// Begins all that is enqueued, and waits for its end; why it was stopped, if it was.
    pub(crate) fn stopped(&self) -> Option<Stopped> {
        self.hold.take();
        for queue in &self.queues {
            match queue.synchronize(LIMIT) {
                Ok(done) => assert!(done, "a queue does not end"),
                Err(stopped) => return Some(stopped),
            }
        }
        None
    }

    /// As [`Ranks::stopped`]; what was found, which is all that stops it.
    pub(crate) fn finish(&self) -> Option<Finding> {
        let stopped = self.stopped();
        let finding = self.world.finding().unwrap();
        assert!(stopped.is_none() || finding.is_some(), "{stopped:?}");
        let Ranks { world, .. } = self;
        let late = world.late_loads().unwrap();
        MET.set((world.decisions().unwrap(), world.unreached().unwrap(), late));
        finding
    }
}

/// What an exploration is told of the run that this thread's last [`Ranks::finish`] ended.
pub(crate) fn ran(finding: Option<Finding>, right: bool) -> Ran {
    let wrong = (!right).then(|| "the results".to_owned());
    let (decisions, unreached, late) = MET.take();
    Ran { decisions, finding, wrong, unreached, late }
}

/// Loads that saw old values in the run that this thread's last [`Ranks::finish`] ended.
pub(crate) fn late_loads() -> Vec<LateLoad> {
    MET.with_borrow(|met| met.2.clone())
}

/// Runs `work` for each seed until it finds something.
pub(crate) fn first_finding(
    seeds: u64,
    mode: impl Fn(u64) -> Mode,
    work: impl Fn(Mode) -> Option<Finding>,
) -> Option<Finding> {
    (0..seeds).find_map(|seed| work(mode(seed)))
}

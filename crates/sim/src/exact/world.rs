//! A world: devices with one thread, on which lanes run in an order that follows from a seed.
//! What hosts see of it is here, its thread in `worker`.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use mscclrs_device::arch::host::WATCHED;

use super::answers::{Answers, Results, Unanswered};
use super::decisions::{Decision, Unreached};
use super::finding::Finding;
use super::hosts::Hosts;
use super::late::LateLoad;
use super::listeners::Listeners;
use super::mode::Mode;
use super::seen::Link;
use super::worker::Worker;
use crate::fork::Process;
use crate::inbox::Inbox;
use crate::{Device, DeviceConfig};

/// What a world and its thread share.
pub(super) struct Shared {
    mode: Mode,
    join: Mutex<Sender<(DeviceConfig, Arc<Inbox>)>>,
    thread: OnceLock<Thread>,
    /// Holds that are not over: work waits for all of them.
    pub(super) holds: Mutex<u32>,
    pub(super) released: Condvar,
    pub(super) answers: Answers,
    link: Arc<Link>,
}

/// Devices of one process whose lanes run in an order that follows from a seed.
///
/// The thread ends when the world and its devices are dropped. After a finding every queue of its
/// devices has stopped: their errors hold the report.
pub struct World(Arc<Shared>);

/// While it lives, the world begins nothing: what is sent meanwhile begins together.
pub struct Hold(Arc<Shared>);

impl Drop for Hold {
    fn drop(&mut self) {
        *self.0.holds.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.released.notify_all();
        self.0.wake();
    }
}

impl Shared {
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// As of the next moment at which no lane can go on.
    fn results(&self) -> Result<Results, Unanswered> {
        let is_held = || *self.holds.lock().unwrap_or_else(PoisonError::into_inner) > 0;
        self.answers.ask(|| self.wake(), is_held)
    }
}

impl World {
    /// A world without devices. With `timeline` it keeps every step, at most two million.
    pub fn start(mode: Mode, timeline: bool) -> std::io::Result<World> {
        World::begin(mode, timeline, Listeners::default())
    }

    fn begin(mode: Mode, timeline: bool, listeners: Listeners) -> std::io::Result<World> {
        let (join, joining) = channel();
        let link = Arc::<Link>::default();
        let shared = Arc::new(Shared {
            mode: mode.clone(),
            join: Mutex::new(join),
            thread: OnceLock::new(),
            holds: Mutex::new(0),
            released: Condvar::new(),
            answers: Answers::default(),
            link: link.clone(),
        });
        let own = Arc::downgrade(&shared);
        let hosts = Hosts::new(link);
        let builder = std::thread::Builder::new().name("mscclrs-world".into());
        let thread = builder.spawn(move || {
            Worker::new(mode, (timeline, listeners), joining, own, hosts).run();
        })?;
        // Told once, above.
        let _ = shared.thread.set(thread.thread().clone());
        WATCHED.store(true, Ordering::Relaxed);
        Ok(World(shared))
    }

    /// The world that devices of this process are in, made by the first call with its mode. The child of
    /// a fork, which has no thread of its parent, makes another one.
    pub fn of_process(mode: Mode, listeners: Listeners) -> std::io::Result<&'static World> {
        static WORLD: Mutex<Option<(Process, &'static World)>> = Mutex::new(None);
        let mut made = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, world)) = made.as_ref().filter(|(process, _)| process.is_this()) {
            return Ok(world);
        }
        // It lives as long as the process.
        let timeline = listeners.timeline.is_some();
        let world = Box::leak(Box::new(World::begin(mode, timeline, listeners)?));
        *made = Some((Process::default(), world));
        Ok(world)
    }

    /// Its mode.
    pub fn mode(&self) -> &Mode {
        &self.0.mode
    }

    /// A new device of the world.
    pub fn device(&self, config: DeviceConfig) -> Arc<Device> {
        self.0.link.sends();
        let inbox = Arc::new(Inbox::in_world(self.0.link.clone()));
        if let Some(thread) = self.0.thread.get() {
            inbox.set_thread(thread.clone());
        }
        let join = self.0.join.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread lives as long as the world.
        let _ = join.send((config.clone(), inbox.clone()));
        drop(join);
        self.0.wake();
        Device::in_world(config, inbox)
    }

    /// Begins nothing until what this gives is dropped.
    pub fn hold(&self) -> Hold {
        *self.0.holds.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Hold(self.0.clone())
    }

    /// How long questions wait for lanes to come to rest; a minute if nobody says.
    pub fn set_answer_limit(&self, limit: Duration) {
        self.0.answers.set_limit(limit);
    }

    /// What was found. Blocks while lanes run, as all questions do; an error if they have not come to rest in
    /// time.
    pub fn finding(&self) -> Result<Option<Finding>, Unanswered> {
        Ok(self.0.results()?.finding)
    }

    /// How many accesses lanes made, and a number that stands for all of them and their order.
    pub fn trace_sum(&self) -> Result<(u64, u64), Unanswered> {
        let results = self.0.results()?;
        Ok((results.steps, results.sum))
    }

    /// The decisions that it met, where its schedule is one of departures; at most a million.
    pub fn decisions(&self) -> Result<Vec<Decision>, Unanswered> {
        Ok(self.0.results()?.decisions)
    }

    /// The first departure of its schedule that it has not come to.
    pub fn unreached(&self) -> Result<Option<Unreached>, Unanswered> {
        Ok(self.0.results()?.unreached)
    }

    /// In weak mode: loads that saw old values, plain ones first; of many kinds the first.
    pub fn late_loads(&self) -> Result<Vec<LateLoad>, Unanswered> {
        Ok(self.0.results()?.late)
    }

    /// Names of the kernels that were launched.
    pub fn kernels(&self) -> Result<BTreeSet<&'static str>, Unanswered> {
        Ok(self.0.results()?.kernels)
    }

    /// All steps, as Perfetto reads them, if they were kept.
    pub fn timeline(&self) -> Result<Option<String>, Unanswered> {
        Ok(self.0.results()?.timeline)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The thread sees that nobody can add devices.
        self.0.wake();
    }
}

//! The thread of a world: it runs lanes, takes what hosts send, lets time go on, and tells deadlocks.
//!
//! Invariant: what hosts send is taken only while no lane can go on, or all that can only poll, and
//! then only once nothing more comes, device by device; so the order in which host threads happen to
//! run changes no run, as long as they send all that they are going to before they wait. Nothing more
//! comes when all threads of the process sleep, or have had time on a processor and sent nothing. What
//! checked mode says of a run may change: a host thread may see what another has waited for, or not
//! yet.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::decisions::Decisions;
use super::finding::FindingKind;
use super::hosts::{Hosts, OfLanes, Since};
use super::listeners::{Listeners, Progress};
use super::mode::Mode;
use super::quiet::Quiet;
use super::random::Random;
use super::turns::Turn;
use super::watch::Watch;
use super::world::Shared;
use crate::block::{Failure, Ran};
use crate::inbox::{Came, Inbox};
use crate::scheduler::Scheduler;
use crate::{DeviceConfig, Stopped, WaitingReport};

/// Between two looks at what host threads do, at first and after some.
const LOOK: Duration = Duration::from_micros(30);
const LOOK_LATER: Duration = Duration::from_micros(500);
/// Between two looks at what the host does, while everything waits.
const NAP: Duration = Duration::from_micros(200);
/// How long everything may wait where the host may still do something, if the device does not say.
const DEADLOCK: Duration = Duration::from_secs(2);
/// How many times as long it may wait while a host thread is awake.
const AWAKE: u32 = 10;
/// Commands, and time, after which no more are waited for: a host may send some until one is done.
const MOST_SENT: usize = 4096;
const LONGEST: Duration = Duration::from_secs(10);
/// Switches between two looks at all watched words.
const LOOK_EVERY: u32 = 16;

/// What the thread has.
pub(super) struct Worker {
    pub(super) mode: Mode,
    timeline: bool,
    listeners: Listeners,
    /// Steps of the timeline that was handed on last.
    timeline_steps: u64,
    /// What was handed on last.
    progress: Progress,
    joining: Receiver<(DeviceConfig, Arc<Inbox>)>,
    shared: Weak<Shared>,
    hosts: Hosts,
    pub(super) watch: Rc<Watch>,
    /// By ordinal, and then by when they came.
    pub(super) devices: BTreeMap<(u32, u64), Scheduler>,
    joined: u64,
    pub(super) random: Random,
    /// The device, and the index of the block, whose lane ran last.
    pub(super) last: (u32, usize),
    /// The lane that goes on by default, where departures make the run.
    pub(super) current: Option<Turn>,
    /// The lane that looked last, while no other could go on.
    pub(super) looked: Option<Turn>,
    switches: u32,
    /// Lanes do not rest, but all that could go on only polls, and more work has come.
    polls: bool,
}

impl Worker {
    pub(super) fn new(
        mode: Mode,
        (timeline, listeners): (bool, Listeners),
        joining: Receiver<(DeviceConfig, Arc<Inbox>)>,
        shared: Weak<Shared>,
        hosts: Hosts,
    ) -> Worker {
        Worker {
            random: Random::new(mode.seed ^ 0x0c70_b05e),
            watch: Rc::new(Watch::new(mode.clone(), timeline, hosts.link().clone())),
            mode,
            timeline,
            listeners,
            timeline_steps: 0,
            progress: Progress::default(),
            joining,
            shared,
            hosts,
            devices: BTreeMap::new(),
            joined: 0,
            last: (0, 0),
            current: None,
            looked: None,
            switches: 0,
            polls: false,
        }
    }

    pub(super) fn run(mut self) {
        let _lanes = OfLanes::this_thread();
        let lived = catch_unwind(AssertUnwindSafe(|| self.live()));
        if lived.is_err() {
            let error = Stopped::new("the world's scheduler panicked; please report this");
            for device in self.devices.values_mut() {
                device.abandon(&error);
            }
            if let Some(shared) = self.shared.upgrade() {
                shared.answers.end();
            }
        }
    }

    fn live(&mut self) {
        let mut quiet: Option<Quiet> = None;
        loop {
            let held = self.wait_for_release();
            // More may be about to come.
            if !held && self.came() == Came::Work {
                self.calm();
            }
            if self.take() {
                quiet = None;
            }
            if self.run_lanes() {
                quiet = None;
                continue;
            }
            if self.devices.values().all(|device| device.blocks.is_empty()) {
                self.tell();
                self.hand_on();
                if self.shared.upgrade().is_none() && self.devices.is_empty() {
                    return;
                }
                let busy = self.devices.values().any(Scheduler::is_busy);
                std::thread::park_timeout(if busy { NAP } else { Duration::from_millis(100) });
                quiet = None;
                continue;
            }
            // Everything waits.
            self.tell();
            // The host may act upon what kernels wrote, and end.
            if self.watch.state.borrow().late.len() != self.progress.late.len() {
                self.hand_on_progress();
            }
            let waiting = quiet.get_or_insert_with(Quiet::begin);
            if waiting.pass(|passed| self.pass_time(passed)) {
                quiet = None;
                continue;
            }
            let limit = self.limit();
            // Who is awake may be about to do what is waited for, and who sleeps may just have done it.
            let is_over = waiting.is_longer(limit.saturating_mul(AWAKE));
            let are_done = || is_over || self.hosts.are_asleep();
            if waiting.is_longer(limit)
                && waiting.looked_since(are_done)
                && self.came() != Came::Work
            {
                self.deadlock();
                continue;
            }
            std::thread::park_timeout(NAP.min(limit / 4));
        }
    }

    /// Blocks while a hold lasts; true if there was one.
    fn wait_for_release(&self) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let mut holds = shared.holds.lock().unwrap_or_else(PoisonError::into_inner);
        let was_held = *holds > 0;
        while *holds > 0 {
            holds = shared.released.wait(holds).unwrap_or_else(PoisonError::into_inner);
        }
        was_held
    }

    /// What came and has not been taken.
    fn came(&mut self) -> Came {
        self.join();
        self.devices.values().map(Scheduler::came).max().unwrap_or(Came::Nothing)
    }

    /// Takes the devices that came; true if any did.
    fn join(&mut self) -> bool {
        let mut took = false;
        while let Ok((config, inbox)) = self.joining.try_recv() {
            let key = (config.ordinal, self.joined);
            self.joined += 1;
            self.devices.insert(key, Scheduler::watched(config, inbox, self.watch.clone()));
            took = true;
        }
        if took {
            self.watch.set_patience(self.limit());
        }
        took
    }

    /// How long everything may wait.
    fn limit(&self) -> Duration {
        let limits = self.devices.values().filter_map(|device| device.config().deadlock);
        limits.min().unwrap_or(DEADLOCK)
    }

    /// Takes what came and begins what can begin, device by device; true if work came: who only asks what
    /// everything waits for, or drops something, changes nothing of that. Takes nothing during a hold.
    fn take(&mut self) -> bool {
        let shared = self.shared.upgrade();
        // Who holds the world goes on only after this: what is sent then, is not taken here.
        let holds = shared.as_ref().map(|shared| {
            let holds = shared.holds.lock();
            holds.unwrap_or_else(PoisonError::into_inner)
        });
        if holds.as_ref().is_some_and(|holds| **holds > 0) {
            return false;
        }
        let stamp = self.hosts.link().count();
        let work = self.came() == Came::Work;
        let mut took = self.join();
        for device in self.devices.values_mut() {
            took |= device.receive();
        }
        drop(holds);
        self.watch.state.borrow_mut().host.no_less_than(stamp);
        if self.watch.has_failed() {
            self.stop();
        }
        took |= self.proceed();
        if took {
            self.hand_on_progress();
        }
        self.devices.retain(|_, device| !device.is_over());
        work
    }

    /// Begins what can begin, device by device, until nothing more can: queues wait for each other. True if
    /// anything did.
    fn proceed(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut more = false;
            for device in self.devices.values_mut() {
                more |= device.proceed();
            }
            if !more {
                break;
            }
            any = true;
        }
        if any {
            self.tell_running();
        }
        any
    }

    /// Waits until nothing more comes: all host threads sleep, or those that are awake have had their time.
    fn calm(&mut self) {
        let (begin, mut since) = (Instant::now(), Since::now());
        let (mut sent, mut pause) = (self.sent(), LOOK);
        // All comes that a hold is for.
        while !self.wait_for_release() {
            let are_done = self.hosts.are_done(&mut since);
            let now = self.sent();
            if now > MOST_SENT || begin.elapsed() > LONGEST {
                return;
            }
            if now != sent {
                (since, sent, pause) = (Since::now(), now, LOOK);
            } else if are_done {
                // What one of them sent before it slept is here.
                return;
            }
            std::thread::park_timeout(pause);
            pause = (2 * pause).min(LOOK_LATER);
        }
    }

    /// Commands that wait to be taken.
    fn sent(&mut self) -> usize {
        self.join();
        self.devices.values().map(Scheduler::sent).sum()
    }

    /// Lets time go on while everything waits, so that lanes look at abort words and the clock. True if
    /// any did more than that; else no choice that is made later depends on how often this was done.
    fn pass_time(&mut self, passed: Duration) -> bool {
        let choices = (self.random.clone(), self.last, self.switches, self.watch.choices());
        self.watch.all_wait(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX));
        if self.look() || self.run_lanes() {
            return true;
        }
        let watched;
        (self.random, self.last, self.switches, watched) = choices;
        self.watch.choose_again(watched);
        false
    }

    /// Runs lanes until none can go on; true if any did more than to look in vain at what it waits for.
    fn run_lanes(&mut self) -> bool {
        let any = self.run_until_rest();
        if self.watch.has_failed() {
            self.stop();
        }
        if self.polls {
            return true;
        }
        for block in self.devices.values().flat_map(|device| &device.blocks) {
            block.rest(self.watch.now());
        }
        any
    }

    fn run_until_rest(&mut self) -> bool {
        self.polls = false;
        let mut any = false;
        self.look();
        loop {
            let Some((key, block, nth)) = self.choose() else {
                if self.look() {
                    continue;
                }
                return any;
            };
            self.switches += 1;
            if self.switches.is_multiple_of(LOOK_EVERY) {
                self.look();
            }
            let Some(device) = self.devices.get_mut(&key) else { continue };
            let Some(chosen) = device.blocks.get_mut(block) else { continue };
            chosen.take_progress();
            match chosen.run_ready(nth, &mut device.stacks) {
                Ran::Goes => any |= chosen.take_progress(),
                Ran::Ended => {
                    any = true;
                    device.end_block(block);
                    if self.devices.values().all(|device| device.blocks.is_empty()) {
                        self.watch.nothing_runs();
                    }
                    self.tell_running();
                    // Hosts learn of it below.
                    self.hand_on_end();
                    // What waits for events may be able to go on too.
                    self.proceed();
                }
                Ran::Failed(Failure { found: Some(kind), report, lane }) => {
                    let first = chosen.watched_lanes().map_or(0, |(first, _)| first);
                    self.watch.report_failure(kind, report, first + lane);
                }
                // No fault of the kernel.
                Ran::Failed(Failure { found: None, report, .. }) => {
                    let error = Stopped::new(report);
                    self.devices.values_mut().for_each(|device| device.fail(&error));
                    return true;
                }
            }
            if self.watch.has_failed() || self.refuse_impossible() {
                return true;
            }
            // Lanes that only poll may wait for what has come.
            self.polls = self.switches.is_multiple_of(LOOK_EVERY)
                && self.watch.only_polls()
                && self.came() == Came::Work;
            if self.polls {
                return true;
            }
        }
    }

    /// Ends all work if it is not what the departures are of; true if so.
    fn refuse_impossible(&mut self) -> bool {
        let state = self.watch.state.borrow();
        let Some(impossible) = state.decisions.as_ref().and_then(Decisions::impossible) else {
            return false;
        };
        let error = Stopped::new(format!("{impossible} (MSCCLRS_SIM={})", self.mode));
        drop(state);
        self.devices.values_mut().for_each(|device| device.fail(&error));
        true
    }

    /// Looks at all watched words; true if a lane can go on.
    pub(super) fn look(&mut self) -> bool {
        let now = self.watch.now();
        let mut ready = false;
        for block in self.devices.values().flat_map(|device| &device.blocks) {
            block.look(now);
            ready |= block.is_ready() && block.take_progress();
        }
        ready
    }

    /// Ends all work after a finding, and takes no more.
    fn stop(&mut self) {
        let text = self.watch.finding().map_or(String::new(), |finding| finding.to_string());
        // Before anybody learns of it: the process may end then.
        self.hand_on();
        self.tell();
        let error = Stopped::new(text);
        for device in self.devices.values_mut() {
            if device.fail_all(&error) {
                device.proceed();
            }
        }
    }

    /// Hands on what there is while no lane can go on.
    fn hand_on(&mut self) {
        self.hand_on_progress();
        self.hand_on_timeline();
    }

    /// Hands on what there is at the end of a block, which hosts do not know of yet. All steps only if no
    /// more are to come, since there are many.
    fn hand_on_end(&mut self) {
        self.hand_on_progress();
        if !self.devices.values().any(Scheduler::has_launches) {
            self.hand_on_timeline();
        }
    }

    fn hand_on_progress(&mut self) {
        let Some(on_progress) = &self.listeners.progress else { return };
        let state = self.watch.state.borrow();
        let (steps, _) = state.trace.sum();
        let decisions = state.decisions.as_ref();
        let met = decisions.map_or(&[][..], Decisions::met);
        let now = Progress {
            devices: self.joined,
            launches: state.launches.len() as u64,
            running: self.devices.values().map(Scheduler::running).sum(),
            steps,
            decisions: met.len() as u64,
            unreached: decisions.and_then(Decisions::unreached),
            late: state.late_loads(),
            finding: state.finding.clone(),
        };
        // While launches run, steps alone are not news: there are more at every look.
        let Progress { steps, decisions, unreached, .. } = now;
        // There are few kinds of late loads.
        let late = match now.late.len() == self.progress.late.len() {
            true => now.late.clone(),
            false => self.progress.late.clone(),
        };
        let known = Progress { steps, decisions, unreached, late, ..self.progress.clone() };
        if now != known || (now.running == 0 && now != self.progress) {
            if let Some(on_decisions) = &self.listeners.decisions {
                on_decisions(&met[self.progress.decisions as usize..]);
            }
            on_progress(&now);
            self.progress = now;
        }
    }

    fn hand_on_timeline(&mut self) {
        let Some(on_timeline) = &self.listeners.timeline else { return };
        let state = self.watch.state.borrow();
        let (steps, _) = state.trace.sum();
        if steps != self.timeline_steps {
            on_timeline(&state.timeline());
        }
        self.timeline_steps = steps;
    }

    fn deadlock(&mut self) {
        let mut reports: Vec<WaitingReport> =
            self.devices.values().map(Scheduler::report).collect();
        for row in reports.iter_mut().flat_map(|report| &mut report.rows) {
            row.place = self.watch.place(row.address);
        }
        let steps = reports.iter().filter(|report| !report.is_empty()).map(|r| r.to_string());
        let steps = steps.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        let what = "everything waits, for what nobody does any more";
        self.watch.report(FindingKind::Deadlock, what.into(), steps.collect());
    }

    /// Answers what was asked.
    fn tell(&self) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.answers.answer(self.watch.has_failed(), |results| {
            let state = self.watch.state.borrow();
            let (steps, sum) = state.trace.sum();
            if self.timeline && (results.steps != steps || results.timeline.is_none()) {
                results.timeline = Some(state.timeline());
            }
            if let Some(decisions) = &state.decisions {
                results.decisions = decisions.met().to_vec();
                results.unreached = decisions.unreached();
            }
            results.finding.clone_from(&state.finding);
            results.late = state.late_loads();
            (results.steps, results.sum) = (steps, sum);
            results.kernels.clone_from(&state.kernels);
        });
    }

    /// Says what runs, for who asks meanwhile.
    fn tell_running(&self) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.answers.runs(self.devices.values().flat_map(Scheduler::running_kernels));
    }
}

//! The order in which memory was accessed: the last steps for reports, a number that stands for all of
//! them, and where it is asked for every one.

use std::collections::VecDeque;
use std::fmt::Write;

use mscclrs_device::arch::host::Op;

use super::stamps::KindId;
use super::watch::{BlockInfo, Who};

/// Steps kept for reports.
const RECENT: usize = 8192;
/// Most steps of a trace that is written.
const MOST: usize = 2_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) who: Who,
    pub(super) kind: KindId,
    pub(super) object: u32,
    pub(super) offset: u64,
    pub(super) bits: u64,
    /// A look of a lane that waits, for which nothing had changed.
    pub(super) in_vain: bool,
}

pub(super) struct Trace {
    recent: VecDeque<Event>,
    all: Option<Vec<Event>>,
    steps: u64,
    sum: u64,
}

impl Trace {
    pub(super) fn new(keep: bool) -> Trace {
        let all = keep.then(Vec::new);
        Trace { recent: VecDeque::new(), all, steps: 0, sum: 0xcbf2_9ce4_8422_2325 }
    }

    #[inline]
    pub(super) fn add(&mut self, event: Event, op: Op) {
        self.steps += 1;
        let words = [
            u64::from(event.who.block) << 32 | u64::from(event.who.lane),
            u64::from(event.object) << 48 ^ event.offset << 8 ^ op as u64,
            event.bits,
        ];
        for word in words {
            self.sum = (self.sum.rotate_left(5) ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(event);
        if let Some(all) = self.all.as_mut().filter(|all| all.len() < MOST) {
            all.push(event);
        }
    }

    /// Takes back all that came after these.
    pub(super) fn take_back(&mut self, (steps, sum): (u64, u64)) {
        let added = (self.steps - steps) as usize;
        self.recent.truncate(self.recent.len().saturating_sub(added));
        if let Some(all) = &mut self.all {
            // Beyond the most that it holds, nothing was added.
            all.truncate(usize::try_from(steps).unwrap_or(usize::MAX).min(MOST));
        }
        (self.steps, self.sum) = (steps, sum);
    }

    /// The latest first.
    pub(super) fn recent(&self) -> impl Iterator<Item = &Event> {
        self.recent.iter().rev()
    }

    /// How many there were, and a number that differs where any differs.
    pub(super) fn sum(&self) -> (u64, u64) {
        (self.steps, self.sum)
    }
}

impl super::watch::State {
    /// All steps, as Perfetto and chrome://tracing read them: a process a device, a thread a lane, a
    /// microsecond a step. Empty where they were not kept.
    pub(super) fn timeline(&self) -> String {
        let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        let mut named = std::collections::HashSet::new();
        let mut comma = "";
        for (step, event) in (1_u64..).zip(self.trace.all.iter().flatten()) {
            let Who { block, lane } = event.who;
            let BlockInfo { launch, index: block, device, .. } = self.blocks[block as usize];
            let kernel = self.launches[launch as usize].kernel;
            let thread = block * 4096 + lane;
            let mut add = |line: std::fmt::Arguments<'_>| {
                // Writing to a string does not fail.
                let _ = write!(text, "{comma}\n{line}");
                comma = ",";
            };
            if named.insert((device, u32::MAX)) {
                add(format_args!(
                    "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{0},\"args\":{{\"name\":\"device {0}\"}}}}",
                    device
                ));
            }
            if named.insert((device, thread)) {
                add(format_args!(
                    "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{thread},\"args\":{{\
                     \"name\":\"block {} lane {}\"}}}}",
                    device, block, lane
                ));
            }
            add(format_args!(
                "{{\"ph\":\"X\",\"ts\":{},\"dur\":1,\"pid\":{},\"tid\":{thread},\"name\":\"{}\",\"args\":{{\
                 \"kernel\":\"{}\",\"launch\":{},\"memory\":{},\"byte\":{},\"value\":\"{:#x}\",\"line\":\"{}\"}}}}",
                step,
                device,
                self.kinds.get(event.kind).words(),
                kernel,
                launch,
                event.object,
                event.offset,
                event.bits,
                self.kinds.place(event.kind).replace('\\', "/"),
            ));
        }
        text.push_str("\n]}\n");
        text
    }
}

//! What has to be released later, or elsewhere.
//!
//! Invariant: nothing is released while work of our streams that was enqueued before the release
//! could still use it, and no `Drop` waits for that work. A release on an idle device happens at
//! once. On a busy one, events are recorded behind what our streams have, and one thread of the
//! process releases when all have passed. The driver's callbacks, which may make no CUDA calls, hand
//! what they hold to the same thread.
//!
//! Streams that are being captured are left out: what a graph uses is kept by
//! [`retain`](crate::Stream::retain). Streams that somebody else owns are left out too; asking about
//! them could break a capture that their owner begins at that moment.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backend::BackendEvent;
use crate::cuda::device::Gpu;
use crate::cuda::event::CudaEvent;
use crate::{Error, Result};

const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

enum Work {
    /// Is dropped, no more.
    Drop(Arc<dyn Any + Send + Sync>),
    After(Deferred),
}

struct Deferred {
    events: Vec<CudaEvent>,
    release: Box<dyn FnOnce() + Send>,
}

impl Deferred {
    /// A point whose state cannot be asked for is passed: its context is broken or gone.
    fn is_due(&mut self) -> bool {
        self.events.retain(|event| matches!(event.is_done(), Ok(false)));
        self.events.is_empty()
    }
}

/// The thread, started when first needed; none if the process may start no more threads.
fn reaper() -> Option<&'static Sender<Work>> {
    static REAPER: OnceLock<Option<Sender<Work>>> = OnceLock::new();
    REAPER
        .get_or_init(|| {
            let (send, receive) = channel();
            std::thread::Builder::new()
                .name("mscclrs-release".into())
                .spawn(move || run(&receive))
                .ok()
                .map(|_| send)
        })
        .as_ref()
}

fn run(receive: &Receiver<Work>) {
    let mut waiting: Vec<Deferred> = Vec::new();
    let mut pause = FIRST_PAUSE;
    loop {
        let work = if waiting.is_empty() {
            receive.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            receive.recv_timeout(pause)
        };
        match work {
            Ok(Work::Drop(held)) => quietly(|| drop(held)),
            Ok(Work::After(deferred)) => {
                waiting.push(deferred);
                pause = FIRST_PAUSE;
            }
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(LONGEST_PAUSE),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let mut index = 0;
        while index < waiting.len() {
            if waiting[index].is_due() {
                let deferred = waiting.swap_remove(index);
                quietly(deferred.release);
            } else {
                index += 1;
            }
        }
    }
}

/// A panic in somebody's destructor must not end the thread that everybody needs.
fn quietly(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// Makes sure that [`hand_over`] has somebody to hand to.
pub(super) fn start() -> Result<()> {
    reaper().map(|_| ()).ok_or_else(|| Error::System {
        call: "start of the release thread",
        source: std::io::Error::from(std::io::ErrorKind::OutOfMemory),
    })
}

/// Drops `held` on the thread; for callbacks of the driver. [`start`] was called before.
pub(super) fn hand_over(held: Arc<dyn Any + Send + Sync>) {
    if let Some(thread) = reaper()
        && let Err(unsent) = thread.send(Work::Drop(held))
    {
        // Never here: a destructor on this thread could make CUDA calls.
        std::mem::forget(unsent);
    }
}

/// Runs `release` when our streams on this device have done what they have by now: at once if they
/// are idle. Never blocks on a stream.
pub(super) fn when_idle(gpu: &'static Gpu, release: impl FnOnce() + Send + 'static) {
    let events = gpu.busy_points();
    if events.is_empty() {
        release();
        return;
    }
    let deferred = Deferred { events, release: Box::new(release) };
    match reaper() {
        Some(thread) => {
            // The thread ends only with the process.
            let _ = thread.send(Work::After(deferred));
        }
        None => {
            let mut deferred = deferred;
            while !deferred.is_due() {
                std::thread::sleep(FIRST_PAUSE);
            }
            (deferred.release)();
        }
    }
}

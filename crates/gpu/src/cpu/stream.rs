//! Streams.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use mscclrs_sim::{Device, Graph, Launch, Point, Queue, Work};

use super::capture::Branch;
use super::device::CpuFunction;
use super::event::{CpuEvent, Recorded};
use crate::backend::{BackendEvent, BackendFunction, BackendGraph, BackendStream};
use crate::{Error, Grid, Result};

/// Where a graph was replayed.
pub(super) struct Replay {
    /// The queue's device, and its number there.
    queue: (Weak<Device>, u64),
    end: Arc<Point>,
}

pub(super) struct CpuStream {
    queue: Queue,
    branch: Mutex<Option<Branch>>,
}

impl CpuStream {
    pub(super) fn new(queue: Queue) -> Self {
        CpuStream { queue, branch: Mutex::default() }
    }

    /// The stream's part in a capture, if it is in one.
    pub(super) fn branch(&self) -> MutexGuard<'_, Option<Branch>> {
        let mut branch = self.branch.lock().unwrap_or_else(PoisonError::into_inner);
        // The stream that began the capture may have ended it.
        if branch.as_ref().is_some_and(Branch::is_over) {
            *branch = None;
        }
        branch
    }

    /// Enqueues a graph; gives its ticket.
    pub(super) fn run(&self, graph: Arc<Graph>) -> Result<u64> {
        self.check()?;
        Ok(self.queue.run(graph))
    }

    /// Enqueues a graph behind its last replay.
    pub(super) fn replay(&self, last: Option<&Replay>, graph: Arc<Graph>) -> Result<Replay> {
        self.check()?;
        let queue = (Arc::downgrade(self.queue.device()), self.queue.id());
        let is_other = |last: &&Replay| !last.queue.0.ptr_eq(&queue.0) || last.queue.1 != queue.1;
        // Behind one on the same queue it is anyway.
        if let Some(last) = last.filter(is_other) {
            self.queue.wait_for(last.end.clone());
        }
        self.queue.run(graph);
        let end = Point::new();
        self.queue.record(end.clone());
        Ok(Replay { queue, end })
    }

    /// The error that stopped the stream stays.
    fn check(&self) -> Result<()> {
        self.queue.error().map_or(Ok(()), |stopped| Err(stopped.into()))
    }

    fn submit(&self, work: Work) -> Result<()> {
        if let Some(branch) = &mut *self.branch() {
            branch.add(work);
            return Ok(());
        }
        // SAFETY: the callers of the stream's calls promise that the addresses are good.
        self.run(Arc::new(unsafe { Graph::single(work) })).map(|_| ())
    }

    fn refuse_in_capture(&self, what: &'static str) -> Result<()> {
        if self.branch().is_none() {
            return Ok(());
        }
        Err(Error::Unsupported {
            what,
            why: "the stream is capturing; do it before or after the capture".into(),
        })
    }
}

impl BackendStream for CpuStream {
    fn launch(&self, function: &dyn BackendFunction, grid: Grid, args: &[u8]) -> Result<()> {
        if !function.as_any().is::<CpuFunction>() {
            return Err(Error::Invalid {
                what: "kernel to launch",
                value: format!("{} as loaded on another back end", function.kernel().name),
                allowed: "a function of a CPU device".into(),
            });
        }
        let Grid { blocks, threads, shared_bytes } = grid;
        let config = self.queue.device().config();
        // SAFETY: `Stream::launch` checked the type of the arguments, and its caller promises the
        // rest.
        let launch =
            unsafe { Launch::new(function.kernel(), blocks, threads, shared_bytes, args, config) };
        self.submit(Work::Launch(launch?))
    }

    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        self.submit(Work::Copy { to, from, bytes })
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        self.submit(Work::Upload { to, data: from.into() })
    }

    fn download(&self, to: &mut [u8], from: u64) -> Result<()> {
        self.refuse_in_capture("reading memory")?;
        let (target, bytes) = (to.as_mut_ptr() as usize as u64, to.len() as u64);
        // SAFETY: `to` is borrowed until the copy has run: the wait below has no other end.
        let graph = unsafe { Graph::single(Work::Copy { to: target, from, bytes }) };
        let ticket = self.run(Arc::new(graph))?;
        self.queue.wait(ticket, None)?;
        Ok(())
    }

    fn fill(&self, to: u64, byte: u8, bytes: u64) -> Result<()> {
        self.submit(Work::Fill { to, byte, bytes })
    }

    fn record(&self, event: &dyn BackendEvent) -> Result<()> {
        let event = CpuEvent::of(event)?;
        if let Some(branch) = &*self.branch() {
            let recorded = Recorded::Captured(branch.capture.clone(), branch.frontier.clone());
            event.set_recorded(recorded);
            return Ok(());
        }
        self.check()?;
        let point = Point::new();
        event.set_recorded(Recorded::Point(point.clone()));
        self.queue.record(point);
        Ok(())
    }

    fn wait(&self, event: &dyn BackendEvent) -> Result<()> {
        let recorded = CpuEvent::of(event)?.recorded();
        let mut own = self.branch();
        match (&mut *own, recorded) {
            (_, Recorded::Never) => Ok(()),
            (None, Recorded::Point(point)) => {
                self.check()?;
                self.queue.wait_for(point);
                Ok(())
            }
            (Some(branch), Recorded::Captured(capture, frontier))
                if Arc::ptr_eq(&branch.capture, &capture) =>
            {
                branch.wait(&frontier);
                Ok(())
            }
            (own @ None, Recorded::Captured(capture, frontier)) => {
                match Branch::join(&capture, frontier) {
                    Some(branch) => *own = Some(branch),
                    None => return refuse_wait("the capture that it was recorded in is over"),
                }
                Ok(())
            }
            (Some(_), Recorded::Point(point)) if point.is_passed() => Ok(()),
            (Some(_), Recorded::Point(_)) => {
                refuse_wait("it was recorded outside of the capture that the stream is in")
            }
            (Some(_), Recorded::Captured(..)) => refuse_wait("it is of another capture"),
        }
    }

    fn is_idle(&self) -> Result<bool> {
        self.refuse_in_capture("asking whether a stream is idle")?;
        self.check()?;
        Ok(self.queue.is_idle())
    }

    fn synchronize(&self, limit: Option<Duration>) -> Result<bool> {
        self.refuse_in_capture("waiting for a stream")?;
        Ok(self.queue.synchronize(limit)?)
    }

    fn call_host(&self, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        // A graph would call it at each replay, and it can be called once.
        self.refuse_in_capture("a host call")?;
        self.check()?;
        self.queue.call(work);
        Ok(())
    }

    fn begin_capture(&self) -> Result<()> {
        self.refuse_in_capture("beginning a capture")?;
        *self.branch() = Some(Branch::begin());
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn BackendGraph>> {
        let mut own = self.branch();
        match own.take() {
            Some(branch) if branch.origin => Ok(Box::new(branch.end()?)),
            other => {
                *own = other;
                Err(Error::Unsupported {
                    what: "ending a capture",
                    why: "the stream did not begin one; end it on the stream that did".into(),
                })
            }
        }
    }

    fn is_capturing(&self) -> Result<bool> {
        Ok(self.branch().is_some())
    }

    fn capture_id(&self) -> Result<Option<u64>> {
        Ok(self.branch().as_ref().map(|branch| branch.capture.id()))
    }

    fn retain(&self, held: Arc<dyn Any + Send + Sync>) -> Result<()> {
        match &*self.branch() {
            Some(branch) => {
                branch.retain(held);
                Ok(())
            }
            None => Err(Error::Unsupported {
                what: "keeping an object with a graph",
                why: "the stream is not capturing; keep it until the stream is synchronised".into(),
            }),
        }
    }

    fn raw(&self) -> u64 {
        self.queue.id()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn refuse_wait(why: &str) -> Result<()> {
    Err(Error::Unsupported { what: "waiting for this event", why: why.into() })
}

//! A thread that forwards one stream of all tasks.
//!
//! It waits in the system for pipes that have something, and for the thread that leads it. When a pipe
//! of ours cannot be written any more, it closes those of the tasks, so that they learn of it as if
//! they wrote there themselves.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::super::job::Event;
use super::lines::{Batch, Lines};
use super::sink::Sink;
use super::{Source, Stream};

/// As much as a pipe holds by default.
const CHUNK: usize = 64 << 10;
/// How often each pipe is read before a sentence of the launcher's, and at the end. A pipe can hold
/// 1 MiB; only who is still writing has more, and such a one is no rank any more.
const ROUNDS: usize = 17;
/// What names the leading thread among the sources.
const LEADER: u64 = u64::MAX;

/// The side that leads.
pub(super) struct Forward {
    wishes: Arc<Mutex<Wishes>>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Wishes {
    sentences: Vec<String>,
    finish: bool,
}

impl Forward {
    pub(super) fn start(
        stream: Stream,
        sources: Vec<Source>,
        sink: Arc<Sink>,
        events: Sender<Event>,
    ) -> Result<Forward> {
        let wishes = Arc::new(Mutex::new(Wishes::default()));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let woken = wake.try_clone().context("the output of ranks cannot be forwarded")?;
        let worker = Worker::new(sources, sink, woken, wishes.clone())
            .context("the output of ranks cannot be forwarded")?;
        std::thread::Builder::new()
            .name("mscclrs-output".into())
            .spawn(move || {
                let end = worker.run();
                // Nobody is there to hear it when the command has ended.
                let _ = events.send(Event::Written(stream, end.err()));
            })
            .context("a thread cannot be started")?;
        Ok(Forward { wishes, wake })
    }

    pub(super) fn say(&self, sentence: String) {
        self.wish(|wishes| wishes.sentences.push(sentence));
    }

    pub(super) fn finish(&self) {
        self.wish(|wishes| wishes.finish = true);
    }

    fn wish(&self, change: impl FnOnce(&mut Wishes)) {
        change(&mut self.wishes.lock().unwrap_or_else(PoisonError::into_inner));
        // It fails only if it was woken 2^64 - 2 times without looking.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

struct Worker {
    /// None once it has ended.
    sources: Vec<Option<(OwnedFd, Lines)>>,
    ready: OwnedFd,
    sink: Arc<Sink>,
    woken: OwnedFd,
    wishes: Arc<Mutex<Wishes>>,
    batch: Batch,
    chunk: Box<[u8]>,
    /// Why nothing is written any more.
    broken: Option<io::Error>,
}

impl Worker {
    fn new(
        sources: Vec<Source>,
        sink: Arc<Sink>,
        woken: OwnedFd,
        wishes: Arc<Mutex<Wishes>>,
    ) -> io::Result<Worker> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &woken, EventData::new_u64(LEADER), EventFlags::IN)?;
        let mut kept = Vec::with_capacity(sources.len());
        for (index, Source { from, mark }) in (0..).zip(sources) {
            rustix::io::ioctl_fionbio(&from, true)?;
            epoll::add(&ready, &from, EventData::new_u64(index), EventFlags::IN)?;
            kept.push(Some((from, Lines::new(mark))));
        }
        let (batch, chunk) = (Batch::default(), vec![0; CHUNK].into_boxed_slice());
        Ok(Worker { sources: kept, ready, sink, woken, wishes, batch, chunk, broken: None })
    }

    /// Runs until told to finish; an error says why not all could be written.
    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(&self.ready, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LEADER => {}
                    index => drop(self.read(index as usize)),
                }
            }
            self.write();
            if (events.iter().any(|event| event.data.u64() == LEADER) || self.broken.is_some())
                && self.follow()
            {
                return self.broken.map_or(Ok(()), Err);
            }
        }
    }

    /// Reads once; whether there may be more.
    fn read(&mut self, index: usize) -> bool {
        let Some(Some((from, lines))) = self.sources.get_mut(index) else { return false };
        match rustix::io::read(from.as_fd(), &mut *self.chunk) {
            Ok(0) => {}
            Ok(count) => {
                lines.take(&self.chunk[..count], &mut self.batch);
                return true;
            }
            Err(Errno::INTR) => return true,
            Err(Errno::AGAIN) => return false,
            // The other end is a process that has ended; whatever it was, nothing more comes.
            Err(_) => {}
        }
        lines.end(&mut self.batch);
        // Closed, so no longer waited for.
        self.sources[index] = None;
        false
    }

    fn write(&mut self) {
        if self.broken.is_none()
            && let Err(error) = self.sink.write(self.batch.bytes())
        {
            self.broken = Some(error);
            self.sources.clear();
        }
        self.batch.clear();
    }

    /// Does what the leading thread wishes; whether that is to finish.
    fn follow(&mut self) -> bool {
        // Empty if it was woken by something else.
        let _ = rustix::io::read(&self.woken, &mut [0; 8]);
        let wishes = {
            let mut wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
            let finish = wishes.finish;
            Wishes { sentences: std::mem::take(&mut wishes.sentences), finish }
        };
        if wishes.finish || !wishes.sentences.is_empty() {
            // What the sentence speaks of comes first.
            for index in 0..self.sources.len() {
                for _ in 0..ROUNDS {
                    if !self.read(index) {
                        break;
                    }
                }
                self.write();
            }
        }
        for sentence in wishes.sentences {
            self.batch.push(&[sentence.as_bytes()]);
        }
        if wishes.finish {
            for (_, lines) in self.sources.iter_mut().flatten() {
                lines.end(&mut self.batch);
            }
        }
        self.write();
        wishes.finish
    }
}

//! What ranks write, on its way to this command's own output.

mod forward;
mod lines;
mod sink;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::Result;

use super::job::Event;
use forward::Forward;
use sink::Sink;

/// Which output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Error,
    Output,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stream::Error => "standard error",
            Stream::Output => "standard output",
        })
    }
}

/// A pipe from a task, and what stands in front of each line that comes from it.
pub(super) struct Source {
    pub(super) from: OwnedFd,
    pub(super) mark: Vec<u8>,
}

/// Both outputs, each forwarded by a thread of its own: who reads one slowly does not hold up the other,
/// nor the thread that listens to signals.
pub(super) struct Outputs {
    error: Forward,
    output: Forward,
}

impl Outputs {
    /// Forwards until told to finish, and says so by [`Event::Written`], once for each stream.
    pub(super) fn start(
        output: Vec<Source>,
        error: Vec<Source>,
        events: &Sender<Event>,
    ) -> Result<Outputs> {
        let error_sink = Arc::new(Sink::new(Stream::Error));
        // Two threads that write to one file take turns, so that lines stay whole there too.
        let output_sink = match sink::are_one_file() {
            true => error_sink.clone(),
            false => Arc::new(Sink::new(Stream::Output)),
        };
        Ok(Outputs {
            error: Forward::start(Stream::Error, error, error_sink, events.clone())?,
            output: Forward::start(Stream::Output, output, output_sink, events.clone())?,
        })
    }

    /// A sentence of the launcher's on standard error, behind what tasks have written so far.
    pub(super) fn say(&self, sentence: &str) {
        self.error.say(format!("mscclrs: {sentence}\n"));
    }

    /// Nothing more comes: what is in the pipes is written, and then it is over.
    pub(super) fn finish(&self) {
        self.error.finish();
        self.output.finish();
    }
}

/// As [`Outputs::say`], where nothing is forwarded.
pub(super) fn say(sentence: &str) {
    eprintln!("mscclrs: {sentence}");
}

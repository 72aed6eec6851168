//! What goes from the command that launches on several hosts to the part on each: over standard input
//! of the part, the secret in the first line, then signals to pass on, one a line. When it ends, the
//! launch is over, however that came.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::ChildStdin;
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::job::Event;

const SIGNAL: &str = "signal ";

/// The end that decides.
pub(super) struct Lifeline(ChildStdin);

impl Lifeline {
    /// Says the secret.
    pub(super) fn new(mut to: ChildStdin, secret: &str) -> io::Result<Lifeline> {
        // What is said over the whole life fits into the pipe: this never waits for a reader.
        writeln!(to, "{secret}")?;
        rustix::io::ioctl_fionbio(&to, true)?;
        Ok(Lifeline(to))
    }

    /// Asks for a signal to every rank of the part. One that is gone has no ranks either.
    pub(super) fn signal(&mut self, signal: Signal) {
        let _ = writeln!(self.0, "{SIGNAL}{}", signal.as_raw());
    }
}

/// Turns what comes into events, from a thread of its own.
pub(super) fn watch(from: impl Read + Send + 'static, events: Sender<Event>) -> Result<()> {
    std::thread::Builder::new()
        .name("mscclrs-lifeline".into())
        .spawn(move || {
            for line in BufReader::new(from).lines().map_while(io::Result::ok) {
                let number = line.strip_prefix(SIGNAL).and_then(|number| number.parse().ok());
                let Some(signal) = number.and_then(Signal::from_named_raw) else { break };
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
            // Nobody is there to hear it if the launch is over.
            let _ = events.send(Event::Abandoned);
        })
        .context("a thread cannot be started")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn signals_come_in_order_and_then_the_end() {
        let (events, received) = mpsc::channel();
        watch(&b"signal 10\nsignal 15\n"[..], events).unwrap();
        assert!(matches!(
            received.iter().collect::<Vec<_>>()[..],
            [Event::Signal(Signal::USR1), Event::Signal(Signal::TERM), Event::Abandoned]
        ));
    }

    #[test]
    fn what_is_no_signal_ends_it() {
        for damaged in ["signal x\nsignal 15\n", "signal 4000\n", "hello\n", "signal\n", ""] {
            let (events, received) = mpsc::channel();
            watch(damaged.as_bytes(), events).unwrap();
            let mut events = received.iter();
            assert!(matches!(events.next(), Some(Event::Abandoned)), "{damaged}");
            assert!(events.next().is_none(), "{damaged}");
        }
    }
}

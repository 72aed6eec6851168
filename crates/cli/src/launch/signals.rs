//! Signals of this process, as messages to the one loop that decides what they mean.

use std::ffi::c_int;
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, signal_name};

use super::job::Event;

/// Whether a signal asks a process to end.
pub(super) fn asks_to_end(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
}

/// What is caught, besides the end of children.
const CAUGHT: [c_int; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2];

/// Catches signals from now on; they come as events. One that was ignored when this process started, as
/// `nohup` does, stays so, here and in the ranks.
pub(super) fn watch(events: Sender<Event>) -> Result<()> {
    let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    let caught = CAUGHT.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    // Who ignores the end of children never hears how they ended.
    let caught: Vec<c_int> = caught.chain([SIGCHLD]).collect();
    let mut signals = Signals::new(caught).context("signals cannot be caught")?;
    std::thread::Builder::new()
        .name("mscclrs-signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                let event = match signal {
                    SIGCHLD => Event::ChildEnded,
                    SIGTSTP => Event::Stop,
                    other => match Signal::from_named_raw(other) {
                        Some(signal) => Event::Signal(signal),
                        None => continue,
                    },
                };
                if events.send(event).is_err() {
                    break;
                }
            }
        })
        .context("a thread cannot be started")?;
    Ok(())
}

/// Stops this process as the terminal asked; returns when it goes on.
pub(super) fn stop_self() {
    // It fails for signals that do not exist only.
    let _ = emulate_default_handler(SIGTSTP);
}

/// For people: `signal 15 (SIGTERM)`.
pub(super) fn describe(signal: c_int) -> String {
    match signal_name(signal) {
        Some(name) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

/// The ignored signals of a process, one bit each, from its status as the system writes it.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_bit_by_bit() {
        let mask = ignored("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n");
        assert_eq!(mask, 1 | 1 << 12);
        assert_eq!(ignored(""), 0);
    }

    #[test]
    fn signals_are_named() {
        assert_eq!(describe(15), "signal 15 (SIGTERM)");
        assert_eq!(describe(40), "signal 40");
    }
}

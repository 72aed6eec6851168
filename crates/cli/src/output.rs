//! What the command says, and what becomes of it when nobody listens any more.
//!
//! Invariant: a pipe that its reader has closed is no failure. Results that nobody reads end the run
//! as the signal SIGPIPE would, without a word; what is said on standard error beside them is lost.

use std::io;
use std::process::ExitCode;

/// Prints a line on standard error.
macro_rules! say {
    ($($arg:tt)*) => { $crate::output::line(format_args!($($arg)*)) };
}
pub(crate) use say;

/// See [`say`].
pub(crate) fn line(text: std::fmt::Arguments<'_>) {
    // In one piece: other ranks write to the same place. Who closed it does not want to know.
    let _ = io::Write::write_all(&mut io::stderr(), format!("{text}\n").as_bytes());
}

/// Whoever read the results has gone.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the results any more")]
pub(crate) struct Closed;

impl Closed {
    /// The exit status that shells give a program that SIGPIPE ended.
    pub(crate) const STATUS: u8 = 128 + 13;
}

/// An error and what caused it, in one line. Many errors say their cause themselves: it is not said
/// twice.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// How writing results ended; `what` was written.
pub(crate) fn written(outcome: io::Result<()>, what: &str) -> anyhow::Result<()> {
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Closed.into(),
        _ => anyhow::Error::new(error).context(format!("{what} cannot be written")),
    })
}

/// Writes a result that is printed as a whole.
pub(crate) fn print(bytes: &[u8]) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let outcome = io::Write::write_all(&mut out, bytes).and_then(|()| io::Write::flush(&mut out));
    written(outcome, "standard output").map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let error = anyhow::Error::new(full()).context("writing");
        assert_eq!(told(&error), format!("writing: {}", full()));
        let call = "write";
        let error = mscclrs_gpu::Error::System { call, source: full() };
        let text = error.to_string();
        assert_eq!(told(&anyhow::Error::new(error).context("here")), format!("here: {text}"));
    }

    #[test]
    fn only_a_closed_pipe_is_no_failure() {
        assert!(written(Ok(()), "the table").is_ok());
        let closed = written(Err(io::ErrorKind::BrokenPipe.into()), "the table").unwrap_err();
        assert!(closed.is::<Closed>());
        let full = written(Err(io::ErrorKind::StorageFull.into()), "the table").unwrap_err();
        assert!(!full.is::<Closed>());
        assert!(format!("{full:#}").starts_with("the table cannot be written: "), "{full:#}");
    }
}

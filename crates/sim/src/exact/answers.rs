//! What hosts ask a world, and its answers.
//!
//! Invariant: an answer is of a moment after the question at which no lane could go on. A question that gets
//! none in time is an error: what is not known is never told as if nothing had been found.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::decisions::{Decision, Unreached};
use super::finding::Finding;
use super::late::LateLoad;
use crate::inbox::wait_until;

/// How long a question waits where nobody says.
const LIMIT: Duration = Duration::from_secs(60);
/// Most kernels that an error names.
const NAMED: usize = 8;

/// What a world has come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Results {
    pub(super) finding: Option<Finding>,
    pub(super) steps: u64,
    pub(super) sum: u64,
    pub(super) kernels: BTreeSet<&'static str>,
    pub(super) timeline: Option<String>,
    pub(super) decisions: Vec<Decision>,
    pub(super) unreached: Option<Unreached>,
    pub(super) late: Vec<LateLoad>,
}

/// A launch that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningKernel {
    /// The kernel.
    pub kernel: &'static str,
    /// Its device.
    pub device: u32,
    /// Blocks that have not ended.
    pub left: u32,
    /// Blocks in all.
    pub blocks: u32,
}

/// A world did not answer, so what it found is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// It did not come to rest in time.
    #[error(
        "what the simulation found is not known: lanes ran on for {} s{}; wait for every stream before you \
         ask, end loops that touch neither memory nor the clock, or give questions more time",
        limit.as_secs_f64(),
        Named(running)
    )]
    Busy {
        /// How long the question waited.
        limit: Duration,
        /// What it was in the middle of.
        running: Vec<RunningKernel>,
    },
    /// It is held, so nothing of what was enqueued begins.
    #[error(
        "what the simulation found is not known: it has been held for {} s; drop what `hold` gave before you \
         ask",
        limit.as_secs_f64()
    )]
    Held {
        /// How long the question waited.
        limit: Duration,
    },
    /// Its thread has ended.
    #[error("what the simulation found is not known: its scheduler panicked; please report this")]
    Ended,
}

struct Named<'a>(&'a [RunningKernel]);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, running) in self.0.iter().take(NAMED).enumerate() {
            let RunningKernel { kernel, device, left, blocks } = running;
            f.write_str(if nth == 0 { ", of " } else { ", " })?;
            write!(f, "kernel {kernel} on device {device} ({left} of {blocks} blocks)")?;
        }
        match self.0.len().checked_sub(NAMED).filter(|&more| more > 0) {
            Some(more) => write!(f, " and {more} more kernels"),
            None => Ok(()),
        }
    }
}

struct State {
    results: Results,
    /// The last question that these answer.
    answered: u64,
    running: Vec<RunningKernel>,
    limit: Duration,
    ended: bool,
}

pub(super) struct Answers {
    state: Mutex<State>,
    told: Condvar,
    /// How often it was asked.
    asked: AtomicU64,
}

impl Default for Answers {
    fn default() -> Answers {
        let (results, running) = (Results::default(), Vec::new());
        let state = State { results, answered: 0, running, limit: LIMIT, ended: false };
        Answers { state: Mutex::new(state), told: Condvar::new(), asked: AtomicU64::new(0) }
    }
}

impl Answers {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives questions that are asked from now on so much time.
    pub(super) fn set_limit(&self, limit: Duration) {
        self.state().limit = limit;
    }

    /// Blocks until there is an answer. `wake` lets the world know; `is_held` says whether anybody holds it.
    pub(super) fn ask(
        &self,
        wake: impl FnOnce(),
        is_held: impl FnOnce() -> bool,
    ) -> Result<Results, Unanswered> {
        let question = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        wake();
        let state = self.state();
        let limit = state.limit;
        let done = |state: &State| state.answered >= question || state.ended;
        let state = wait_until(state, &self.told, Some(limit), done);
        match () {
            () if state.answered >= question => Ok(state.results.clone()),
            () if state.ended => Err(Unanswered::Ended),
            () if is_held() => Err(Unanswered::Held { limit }),
            () => Err(Unanswered::Busy { limit, running: state.running.clone() }),
        }
    }

    /// Answers all questions that there are; does nothing if there are none, unless it is `news`.
    pub(super) fn answer(&self, news: bool, fill: impl FnOnce(&mut Results)) {
        let asked = self.asked.load(Ordering::Relaxed);
        let mut state = self.state();
        if state.answered >= asked && !news {
            return;
        }
        fill(&mut state.results);
        state.answered = asked;
        self.told.notify_all();
    }

    /// What runs from now on.
    pub(super) fn runs(&self, running: impl Iterator<Item = RunningKernel>) {
        let mut state = self.state();
        state.running.clear();
        state.running.extend(running);
    }

    /// There will be no more answers.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.told.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> Answers {
        let answers = Answers::default();
        answers.set_limit(Duration::from_millis(20));
        answers
    }

    #[test]
    fn a_question_that_gets_no_answer_is_an_error_that_says_what_runs() {
        let answers = short();
        let kernel = |device| RunningKernel { kernel: "volley", device, left: 1, blocks: 2 };
        answers.runs((0..10).map(kernel));
        let error = answers.ask(|| {}, || false).unwrap_err();
        assert!(matches!(&error, Unanswered::Busy { running, .. } if running.len() == 10));
        let text = error.to_string();
        for part in [
            "lanes ran on for 0.02 s, of kernel volley on device 0 (1 of 2 blocks), kernel",
            "on device 7 (1 of 2 blocks) and 2 more kernels; wait for every stream",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn an_answer_from_before_the_question_is_none() {
        let answers = short();
        answers.answer(true, |results| results.steps = 1);
        assert!(matches!(answers.ask(|| {}, || false), Err(Unanswered::Busy { .. })));
        assert!(matches!(answers.ask(|| {}, || true), Err(Unanswered::Held { .. })));
        let asked = answers.ask(|| answers.answer(false, |results| results.steps = 2), || false);
        assert_eq!(asked.map(|results| results.steps), Ok(2));
        answers.end();
        assert_eq!(answers.ask(|| {}, || false).map(|_| ()), Err(Unanswered::Ended));
    }
}

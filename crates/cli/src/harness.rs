//! How operations are timed: every rank in lockstep, candidates in turn, one rule for all of them.
//!
//! A sample is: barrier of the host threads, a lead-in (one graph, or one operation) that lines the
//! ranks up on the device and hides the launch, then the measured operations between two events.
//! Candidates alternate sample by sample, since machines and their clocks drift. A rank's time is the
//! median of its samples; the reported time is the largest over the ranks, because a collective is
//! done when its last rank is. Ranks only ever act on numbers that they agreed on, so that they
//! enqueue the same operations.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mscclrs_core::Communicator;
use mscclrs_gpu::{BackendKind, Event, GraphExec, Stream};

use crate::stats;

/// What enqueues one operation on a stream; it does not block. It is called while the stream captures
/// too, so it makes nothing on its way.
pub(crate) type Enqueue<'a> = dyn FnMut(&Stream) -> Result<()> + 'a;

/// An operation to be measured.
pub(crate) struct Candidate<'a> {
    /// Appears in errors.
    pub(crate) name: String,
    /// Enqueues it once.
    pub(crate) enqueue: Box<Enqueue<'a>>,
}

impl<'a> Candidate<'a> {
    /// From a closure.
    pub(crate) fn new(
        name: impl Into<String>,
        enqueue: impl FnMut(&Stream) -> Result<()> + 'a,
    ) -> Self {
        Candidate { name: name.into(), enqueue: Box::new(enqueue) }
    }
}

/// How long and how often to measure. Equal on every rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schedule {
    /// Operations a sample. Asked for by the user, or the back end's usual number, which a budget
    /// may lower.
    pub(crate) iterations: u64,
    /// Whether `iterations` was asked for and so is kept.
    pub(crate) fixed_iterations: bool,
    /// Operations before the samples of each candidate.
    pub(crate) warm_up: u64,
    /// Operations a graph; 0 launches them one by one.
    pub(crate) graph: u64,
    /// Samples a candidate.
    pub(crate) samples: usize,
    /// How long a device that was idle is kept busy before the first sample.
    pub(crate) warm_up_time: Duration,
    /// What the samples of one candidate may take; samples and iterations give way.
    pub(crate) budget: Option<Duration>,
}

impl Schedule {
    /// What suits the back end. GPUs need two seconds to reach their clocks; the CPU device has none
    /// to reach, and its ranks share few cores.
    pub(crate) fn usual(kind: BackendKind) -> Schedule {
        match kind {
            BackendKind::Cuda => Schedule {
                iterations: 20,
                fixed_iterations: false,
                warm_up: 5,
                graph: 0,
                samples: 20,
                warm_up_time: Duration::from_secs(2),
                budget: None,
            },
            BackendKind::Cpu => Schedule {
                iterations: 5,
                fixed_iterations: false,
                warm_up: 1,
                graph: 0,
                samples: 20,
                warm_up_time: Duration::ZERO,
                budget: Some(Duration::from_millis(250)),
            },
        }
    }

    /// Launches a sample: of one operation, or of one graph.
    fn launches(&self) -> u64 {
        match self.graph {
            0 => self.iterations.max(1),
            operations => self.iterations.div_ceil(operations).max(1),
        }
    }

    /// Fewest samples that a budget leaves.
    const FEWEST_SAMPLES: usize = 5;

    /// Launches and samples that fit the budget when a launch takes `launch`.
    fn fit(&self, launch: Duration) -> (u64, usize) {
        let launches = self.launches();
        let Some(budget) = self.budget else { return (launches, self.samples) };
        let fits = (budget.as_nanos() / launch.as_nanos().max(1)).min(u64::MAX.into()) as u64;
        let launches = if self.fixed_iterations {
            launches
        } else {
            // A launch more a sample is the lead-in.
            (fits / self.samples as u64).saturating_sub(1).clamp(1, launches)
        };
        let samples = (fits / (launches + 1)) as usize;
        (launches, samples.clamp(Self::FEWEST_SAMPLES.min(self.samples), self.samples))
    }
}

/// What was measured, equal on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    /// Microseconds an operation: the largest over the ranks of each rank's median.
    pub(crate) time_us: f64,
    /// Microseconds between the 10th and the 90th percentile of the samples, the largest over ranks.
    pub(crate) spread_us: f64,
}

impl Timing {
    /// Of one of `parts` equal parts of the operation.
    pub(crate) fn divided(self, parts: f64) -> Timing {
        Timing { time_us: self.time_us / parts, spread_us: self.spread_us / parts }
    }
}

/// How long a device may idle before it is warmed up again.
const IDLE: Duration = Duration::from_secs(1);

/// Launches that are enqueued without a look at the stream.
const ROW: u64 = 256;

/// Measures on one stream of a communicator.
pub(crate) struct Harness<'a> {
    communicator: &'a Communicator,
    stream: &'a Stream,
    schedule: Schedule,
    begin: Event,
    end: Event,
    /// The ends of the last two rows of launches.
    rows: [Event; 2],
    busy: Option<Instant>,
}

enum Launch {
    Operation,
    Graph(GraphExec),
}

impl<'a> Harness<'a> {
    /// Every rank makes one, with the same schedule.
    pub(crate) fn new(
        communicator: &'a Communicator,
        stream: &'a Stream,
        schedule: Schedule,
    ) -> Result<Self> {
        let device = stream.device();
        Ok(Harness {
            communicator,
            stream,
            schedule,
            begin: device.create_event(true)?,
            end: device.create_event(true)?,
            rows: [device.create_event(false)?, device.create_event(false)?],
            busy: None,
        })
    }

    /// Measures the candidates, alternating. Every rank calls it with the same candidates.
    pub(crate) fn measure(&mut self, candidates: &mut [Candidate<'_>]) -> Result<Vec<Timing>> {
        let mut launches = Vec::with_capacity(candidates.len());
        for candidate in &mut *candidates {
            let name = &candidate.name;
            launches.push(
                self.prepare(&mut *candidate.enqueue).with_context(|| format!("{name}: set-up"))?,
            );
        }
        let mut slowest = Duration::ZERO;
        for (candidate, launch) in candidates.iter_mut().zip(&launches) {
            self.lockstep()?;
            let since = Instant::now();
            self.launch(candidate, launch)?;
            self.communicator.synchronize(self.stream)?;
            slowest = slowest.max(since.elapsed());
        }
        let slowest = Duration::from_nanos(self.agree(slowest.as_nanos() as u64)?);
        self.warm_up(candidates, &launches)?;

        let (count, samples) = self.schedule.fit(slowest);
        let operations = count * self.schedule.graph.max(1);
        let mut times = vec![Vec::with_capacity(samples); candidates.len()];
        for _ in 0..samples {
            for ((candidate, launch), times) in candidates.iter_mut().zip(&launches).zip(&mut times)
            {
                times.push(self.sample(candidate, launch, count)? / operations as f64);
            }
        }
        self.busy = Some(Instant::now());
        times.iter().map(|times| self.over_ranks(times)).collect()
    }

    fn prepare(&self, enqueue: &mut Enqueue<'_>) -> Result<Launch> {
        // Once outside a capture: what an implementation does in its first call is done by then.
        enqueue(self.stream)?;
        self.communicator.synchronize(self.stream)?;
        if self.schedule.graph == 0 {
            return Ok(Launch::Operation);
        }
        let graph = self.stream.capture(|stream| -> Result<()> {
            for _ in 0..self.schedule.graph {
                enqueue(stream)?;
            }
            Ok(())
        })?;
        Ok(Launch::Graph(graph.instantiate()?))
    }

    fn launch(&self, candidate: &mut Candidate<'_>, launch: &Launch) -> Result<()> {
        match launch {
            Launch::Operation => (candidate.enqueue)(self.stream),
            Launch::Graph(graph) => Ok(graph.launch(self.stream)?),
        }
    }

    fn warm_up(&mut self, candidates: &mut [Candidate<'_>], launches: &[Launch]) -> Result<()> {
        let graph = self.schedule.graph.max(1);
        for (candidate, launch) in candidates.iter_mut().zip(launches) {
            for _ in 0..self.schedule.warm_up.div_ceil(graph) {
                self.launch(candidate, launch)?;
            }
            self.communicator.synchronize(self.stream)?;
        }
        let idle = self.busy.is_none_or(|busy| busy.elapsed() > IDLE);
        let wanted = if idle { self.schedule.warm_up_time } else { Duration::ZERO };
        let since = Instant::now();
        // The ranks' clocks differ, so the slowest of them says when to stop.
        while self.agree(u64::from(since.elapsed() < wanted))? != 0 {
            for (candidate, launch) in candidates.iter_mut().zip(launches) {
                self.launch(candidate, launch)?;
            }
            self.communicator.synchronize(self.stream)?;
        }
        Ok(())
    }

    /// Microseconds of `count` launches.
    fn sample(&self, candidate: &mut Candidate<'_>, launch: &Launch, count: u64) -> Result<f64> {
        self.lockstep()?;
        self.launch(candidate, launch)?;
        self.stream.record(&self.begin)?;
        for done in 0..count {
            if done > 0 && done.is_multiple_of(ROW) {
                self.pace(done / ROW)?;
            }
            self.launch(candidate, launch)?;
        }
        self.stream.record(&self.end)?;
        let name = &candidate.name;
        self.communicator.synchronize(self.stream).with_context(|| name.clone())?;
        Ok(self.end.elapsed_us(&self.begin)?)
    }

    /// Keeps the stream at most two rows of launches behind, so that it never runs dry, and yet a run
    /// whose ranks were lost has little left to go through.
    fn pace(&self, row: u64) -> Result<()> {
        let event = &self.rows[(row % 2) as usize];
        if row > 2 {
            event.synchronize()?;
        }
        self.communicator.check()?;
        Ok(self.stream.record(event)?)
    }

    fn over_ranks(&self, times: &[f64]) -> Result<Timing> {
        let spread = stats::percentile(times, 90) - stats::percentile(times, 10);
        let mine = [stats::median(times).to_le_bytes(), spread.to_le_bytes()].concat();
        let all = self.communicator.bootstrap().all_gather(&mine)?;
        let largest = |at: usize| {
            all.iter()
                .filter_map(|of_rank| of_rank.get(at..at + 8)?.try_into().ok())
                .map(f64::from_le_bytes)
                .fold(0.0, f64::max)
        };
        Ok(Timing { time_us: largest(0), spread_us: largest(8) })
    }

    /// Waits until every rank is here.
    pub(crate) fn lockstep(&self) -> Result<()> {
        Ok(self.communicator.bootstrap().barrier()?)
    }

    /// The largest of the ranks' values.
    pub(crate) fn agree(&self, value: u64) -> Result<u64> {
        let all = self.communicator.bootstrap().all_gather(&value.to_le_bytes())?;
        let values = all.iter().filter_map(|of_rank| of_rank.as_slice().try_into().ok());
        Ok(values.map(u64::from_le_bytes).max().unwrap_or(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_lowers_iterations_first_and_samples_then() {
        let schedule = Schedule::usual(BackendKind::Cpu);
        assert_eq!(schedule.fit(Duration::from_micros(10)), (5, 20));
        assert_eq!(schedule.fit(Duration::from_millis(4)), (2, 20));
        assert_eq!(schedule.fit(Duration::from_millis(10)), (1, 12));
        assert_eq!(schedule.fit(Duration::from_secs(1)), (1, 5));
    }

    #[test]
    fn iterations_that_were_asked_for_are_kept() {
        let schedule = Schedule {
            iterations: 50,
            fixed_iterations: true,
            ..Schedule::usual(BackendKind::Cpu)
        };
        assert_eq!(schedule.fit(Duration::from_millis(10)), (50, 5));
    }

    #[test]
    fn graphs_hold_the_operations_of_a_sample() {
        let schedule = Schedule { graph: 20, ..Schedule::usual(BackendKind::Cuda) };
        assert_eq!(schedule.fit(Duration::from_micros(50)), (1, 20));
    }
}

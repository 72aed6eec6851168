//! What a simulation says of a run, and what it does not know.
// A test fails by a panic that shows the error.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mscclrs_device::{DeviceModule, Global, ImageSource, Relaxed, Sys, kernel_args, kernels};
use mscclrs_gpu::simulation::{
    Exploration, ExploreError, Mode, Simulation, Unanswered, explore, run_once,
};
use mscclrs_gpu::{CpuConfig, Error, Grid, MemoryKind};

static MODULE: DeviceModule =
    DeviceModule { name: "simulation_tests", source: ImageSource::Embedded(&[]) };

/// Lets the lanes of `stays` end.
static END: AtomicBool = AtomicBool::new(false);

kernel_args! {
    /// A word that two lanes add to.
    pub struct Adds {
        /// The word.
        pub at: Global<u64>,
    }
}

kernels! {
    module = MODULE;

    /// Both lanes add.
    pub fn adds<>(args: Adds) threads 32 for { "" = <> } {
        args.at.fetch_add(Relaxed, Sys, 1);
        Ok(())
    }

    /// One lane adds, and not atomically.
    pub fn counts<>(args: Adds) threads 32 for { "" = <> } {
        args.at.store(args.at.load() + 1);
        Ok(())
    }

    /// Touches neither memory nor the clock.
    pub fn stays<>(_args: Adds) threads 32 for { "" = <> } {
        while !END.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Launches a kernel, and waits for it if it is one that ends.
fn program(simulation: &Simulation, name: &str) -> Result<(), Error> {
    let device = simulation.device(0)?;
    let stream = device.create_stream()?;
    let word = device.alloc(8, MemoryKind::Plain)?;
    word.write(&stream, 0, &[0; 8])?;
    let kernel = all().find(|kernel| kernel.name == name).unwrap();
    let args = Adds { at: Global::from_address(word.address()) };
    // SAFETY: memory that is dropped outlives the work of its device.
    unsafe { stream.launch(&device.function(kernel)?, Grid::new(1, 2), &args) }?;
    if name == "adds" { stream.synchronize() } else { Ok(()) }
}

#[test]
fn a_run_that_does_not_come_to_rest_is_no_run_without_a_finding() {
    let limit = Duration::from_millis(50);
    let does_not_end = |simulation: &Simulation| {
        simulation.set_answer_limit(limit);
        program(simulation, "stays")?;
        // Until it has begun, nothing runs.
        while simulation.finding().is_ok() {}
        Ok::<_, Error>(())
    };
    let mode: Mode = "checked,schedule=departures:none".parse().unwrap();
    let config = CpuConfig::default();
    let once = run_once(&mode, &config, does_not_end).unwrap_err();
    let exploration = Exploration { check: mode.check, departures: 1, runs: 10 };
    let explored = explore(&exploration, &config, does_not_end).unwrap_err();
    END.store(true, Ordering::Relaxed);
    let Error::Unanswered(Unanswered::Busy { limit: waited, running }) = &once else {
        panic!("{once}");
    };
    assert_eq!((*waited, running.len(), running[0].kernel), (limit, 1, "stays"));
    assert!(once.to_string().contains("kernel stays on device 0 (1 of 1 blocks)"), "{once}");
    let is_busy = matches!(explored, ExploreError::Run(Error::Unanswered(_)));
    assert!(is_busy, "{explored}");
}

/// Replays a graph on two streams that nothing else orders, by one executable graph or by two.
fn replays(simulation: &Simulation, executables: usize) -> Result<(), Error> {
    let device = simulation.device(0)?;
    let streams = [device.create_stream()?, device.create_stream()?];
    let word = device.alloc(8, MemoryKind::Plain)?;
    word.write(&streams[0], 0, &[0; 8])?;
    streams[0].synchronize()?;
    let function = device.function(all().find(|kernel| kernel.name == "counts").unwrap())?;
    let args = Adds { at: Global::from_address(word.address()) };
    // SAFETY: the word lives until the streams have passed.
    let graph = streams[0].capture(|s| unsafe { s.launch(&function, Grid::new(1, 1), &args) })?;
    let executables: Vec<_> =
        (0..executables).map(|_| graph.instantiate()).collect::<Result<_, _>>()?;
    for replay in 0..6 {
        executables[replay % executables.len()].launch(&streams[replay % 2])?;
    }
    streams.iter().try_for_each(|stream| stream.synchronize())
}

#[test]
fn an_executable_graph_runs_once_at_a_time_on_whatever_streams() {
    for seed in 0..10 {
        let run = |executables| {
            let mode: Mode = format!("checked,seed={seed}").parse().unwrap();
            let program = |simulation: &Simulation| replays(simulation, executables);
            run_once(&mode, &CpuConfig::default(), program).unwrap().finding
        };
        assert_eq!(run(1), None);
        assert!(run(2).is_some(), "two of one graph may run at the same time");
    }
}

#[test]
fn a_run_says_which_departure_it_did_not_come_to() {
    let run = |mode: &str| {
        let ends = |simulation: &Simulation| program(simulation, "adds");
        let ran = run_once(&mode.parse().unwrap(), &CpuConfig::default(), ends).unwrap();
        assert_eq!((ran.finding, ran.wrong), (None, None));
        (ran.decisions.len(), ran.unreached.map(|unreached| unreached.to_string()))
    };
    let (decisions, unreached) = run("checked,schedule=departures:none");
    assert!(decisions > 0 && unreached.is_none(), "{decisions} {unreached:?}");
    let (_, unreached) = run("checked,schedule=departures:77=1");
    let unreached = unreached.unwrap();
    assert!(
        unreached.starts_with("the departure 77=1 was not reached: the run has"),
        "{unreached}"
    );
}

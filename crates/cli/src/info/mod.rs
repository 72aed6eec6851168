//! `mscclrs info`: what this machine offers, what it is told by its environment, and what is wrong.
//!
//! It takes a bounded time and runs no kernel. What may hang or end a process, which is every library
//! and driver, is looked at by other processes ([`probe`]), each with a deadline.

#[cfg(test)]
mod canned;
mod devices;
mod handles;
mod launch;
mod layout;
mod libraries;
mod limits;
mod model;
mod network;
mod probe;
mod problems;
mod text;
mod variables;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use mscclrs_core::env::{self, Source, internal};

use devices::Gpus;
use model::{Area, Device, Info, Library, Network, Problem};
use probe::{Probe, Question};

use crate::output::print;

/// How long drivers may take: waking eight GPUs takes some seconds.
const DRIVER: Duration = Duration::from_secs(30);
/// How long a library may take to open; NCCL is looked for in Python's packages too.
const LIBRARY: Duration = Duration::from_secs(20);
/// How long anything else may take.
const SHORT: Duration = Duration::from_secs(10);

/// Options of `info`.
#[derive(Args, Clone, Debug)]
pub(crate) struct InfoOptions {
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Tells. That something is wrong is no failure.
pub(crate) fn run(options: &InfoOptions) -> Result<ExitCode> {
    if let Some(request) = internal::INFO_PROBE.text() {
        return probe::serve(&request);
    }
    let info = collect();
    if options.json {
        let mut text = serde_json::to_string_pretty(&info)?;
        text.push('\n');
        return print(text.as_bytes());
    }
    print(text::text(&info).as_bytes())
}

/// Answers that did not come, each of which is a problem by itself.
#[derive(Default)]
struct Failures(Vec<Problem>);

impl Failures {
    /// The answer, or nothing and a problem.
    fn keep<T>(&mut self, area: Area, what: &str, answer: Result<T, String>) -> Option<T> {
        let failed = |why| Problem {
            area,
            what: format!("{what} could not be looked at: {why}"),
            fix: "see the system's log (dmesg)".into(),
        };
        answer.map_err(|why| self.0.push(failed(why))).ok()
    }
}

fn question(probe: Probe, limit: Duration) -> Question {
    Question { probe, limit, descriptor: None }
}

fn collect() -> Info {
    let mut questions = vec![
        question(Probe::Cpu, SHORT + SHORT),
        question(Probe::Gpus, DRIVER),
        question(Probe::Network, SHORT),
    ];
    let each = (0..libraries::COUNT).map(|index| question(Probe::Library { index }, LIBRARY));
    questions.extend(each);
    let mut answers = probe::ask(questions).into_iter();
    let mut next = || answers.next().unwrap_or_else(|| Err("nobody asked".into()));

    let mut failures = Failures::default();
    let cpu = probe::read::<Result<Device, String>>(next()).and_then(|device| device);
    let cpu = failures.keep(Area::Devices, "the CPU device", cpu);
    let gpus = probe::read::<Gpus>(next());
    let mut gpus = gpus.unwrap_or_else(|why| {
        let mut gpus = Gpus::default();
        gpus.cuda.why = Some(format!("asking the driver: {why}"));
        gpus.cuda.fix = Some("see `nvidia-smi` and the system's log (dmesg)".into());
        gpus
    });
    let network = probe::read::<Network>(next());
    let network = failures.keep(Area::Network, "the network", network).unwrap_or_default();
    let libraries = (0..libraries::COUNT).map(|index| {
        let name = libraries::described(index).name;
        let answer = probe::read::<Library>(next());
        let kept = failures.keep(Area::Libraries, &name, answer.clone());
        kept.unwrap_or_else(|| Library { why: answer.err(), ..libraries::described(index) })
    });
    let libraries = libraries.collect();
    add_handles(&mut gpus.devices, &mut failures);

    let mut info = Info {
        format: model::FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        host: limits::host(),
        device_kind: device_kind(gpus.cuda.usable),
        cuda: gpus.cuda,
        devices: gpus.devices.into_iter().chain(cpu).collect(),
        links: gpus.links,
        network,
        libraries,
        launch: launch::launch(),
        limits: limits::limits(),
        variables: variables::all(Source::PROCESS),
        other_variables: variables::others(Source::PROCESS),
        unknown_variables: variables::unknown(&env::names(variables::ALIKE)),
        problems: Vec::new(),
    };
    info.problems = problems::problems(&info, failures.0);
    info
}

/// Tries each GPU, all at once.
fn add_handles(gpus: &mut [Device], failures: &mut Failures) {
    let ask = |gpu: &Device| question(Probe::Handles { ordinal: gpu.ordinal }, DRIVER);
    let answers = probe::ask(gpus.iter().map(ask).collect());
    for (gpu, answer) in gpus.iter_mut().zip(answers) {
        let what = format!("giving memory of cuda:{} to another process", gpu.ordinal);
        let handles = failures.keep(Area::Devices, &what, probe::read(answer));
        gpu.handles = handles.unwrap_or_default();
    }
}

/// The kind that commands use where no option names one; none if the variable is wrong.
fn device_kind(gpus_are_usable: bool) -> Option<String> {
    match env::DEVICE.choice() {
        Err(_) => None,
        Ok(Some(named)) if named != "auto" => Some(named.into()),
        Ok(_) => Some(if gpus_are_usable { "cuda" } else { "cpu" }.into()),
    }
}

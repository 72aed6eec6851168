//! The CPU device's limits.

use std::path::PathBuf;
use std::time::Duration;

use mscclrs_env::{self as env, Source};
use mscclrs_sim::Mode;

use crate::Result;

/// Shared memory of a multiprocessor, and the most a block can have.
pub(crate) const SHARED_BYTES: u32 = 48 * 1024;

/// Limits of the CPU device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Multiprocessors: 1 to 1024 (`MSCCLRS_CPU_MULTIPROCESSORS`).
    pub multiprocessors: u32,
    /// Lanes that are resident on a multiprocessor, and the most lanes a block: a multiple of 32, up
    /// to 1024 (`MSCCLRS_CPU_THREADS`).
    pub threads: u32,
    /// Kernels are stopped when all lanes of the process waited for so long and nothing changed
    /// (`MSCCLRS_CPU_DEADLOCK_MS`, where 0 is never: [`Duration::MAX`]). `None` is never too, since what
    /// they wait for may come from another process, but two seconds in a simulation, which has one.
    pub deadlock: Option<Duration>,
    /// Kernels of all CPU devices of the process run in an order that follows from a seed, and are
    /// looked at for faults (`MSCCLRS_SIM`).
    pub simulation: Option<Mode>,
    /// The file that gets all accesses in their order then (`MSCCLRS_SIM_TRACE`).
    pub trace: Option<PathBuf>,
    /// The folder in which each process leaves what its simulation met then (`MSCCLRS_SIM_REPORT`).
    pub report: Option<PathBuf>,
}

impl Default for CpuConfig {
    fn default() -> Self {
        CpuConfig {
            multiprocessors: 4,
            threads: 256,
            deadlock: None,
            simulation: None,
            trace: None,
            report: None,
        }
    }
}

impl CpuConfig {
    /// The defaults, changed by the environment. An error names the variable and what is allowed.
    pub fn from_env() -> Result<CpuConfig> {
        CpuConfig::read(Source::PROCESS)
    }

    fn read(source: Source<'_>) -> Result<CpuConfig> {
        let mut config = CpuConfig::default();
        if let Some(multiprocessors) = env::CPU_MULTIPROCESSORS.number_in(source)? {
            config.multiprocessors = multiprocessors;
        }
        if let Some(threads) = env::CPU_THREADS.number_in(source)? {
            config.threads = threads;
        }
        let deadlock = env::CPU_DEADLOCK_MS.number_in(source)?;
        config.deadlock = deadlock.map(|ms| match ms {
            0 => Duration::MAX,
            ms => Duration::from_millis(ms),
        });
        config.simulation = env::SIM.parse_in(source, |text| text.parse().ok())?;
        config.trace = env::SIM_TRACE.parse_in(source, |text| file_to_write(text.into()))?;
        config.report = env::SIM_REPORT
            .parse_in(source, |text| Some(PathBuf::from(text)).filter(|folder| folder.is_dir()))?;
        // Who asks for them expects a simulation.
        if config.simulation.is_none() {
            for alone in [&env::SIM_TRACE, &env::SIM_REPORT] {
                alone.parse_in(source, |_| None::<()>).map_err(|error| env::Error {
                    allowed: format!(
                        "{}, where {} says what is simulated, which is not set",
                        error.allowed,
                        env::SIM.name
                    ),
                    ..error
                })?;
            }
        }
        Ok(config)
    }
}

/// A file that there is, or that can be made in its folder.
fn file_to_write(path: PathBuf) -> Option<PathBuf> {
    let folder = path.parent()?;
    let has_folder = folder.as_os_str().is_empty() || folder.is_dir();
    Some(path).filter(|path| has_folder && !path.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<CpuConfig> {
        CpuConfig::read(Source::new(&|asked| (asked == name).then(|| value.to_owned())))
    }

    fn with_simulation(name: &'static str, value: &'static str) -> Result<CpuConfig> {
        let mode = |asked: &str| (asked == "MSCCLRS_SIM").then(|| "checked".to_owned());
        let both = |asked: &str| (asked == name).then(|| value.to_owned()).or(mode(asked));
        CpuConfig::read(Source::new(&both))
    }

    #[test]
    fn what_a_simulation_leaves_behind_is_refused_without_one() {
        for (name, value) in [("MSCCLRS_SIM_TRACE", "run.json"), ("MSCCLRS_SIM_REPORT", "/tmp")] {
            let text = with(name, value).unwrap_err().to_string();
            assert!(text.starts_with(&format!("{name}={value}: allowed is ")), "{text}");
            assert!(text.ends_with(", where MSCCLRS_SIM says what is simulated, which is not set"));
            assert!(with_simulation(name, value).is_ok());
        }
    }

    #[test]
    fn variables_change_the_defaults() {
        assert_eq!(with("OTHER", "1").unwrap(), CpuConfig::default());
        assert_eq!(with("MSCCLRS_CPU_THREADS", "").unwrap(), CpuConfig::default());
        assert_eq!(with("MSCCLRS_CPU_THREADS", "1024").unwrap().threads, 1024);
        assert_eq!(with("MSCCLRS_CPU_MULTIPROCESSORS", "1").unwrap().multiprocessors, 1);
        let trace = |text| with_simulation("MSCCLRS_SIM_TRACE", text).unwrap().trace;
        assert_eq!(trace("run.json"), Some(PathBuf::from("run.json")));
        assert_eq!(trace("/tmp/run.json"), Some(PathBuf::from("/tmp/run.json")));
        let limit = |text| with("MSCCLRS_CPU_DEADLOCK_MS", text).unwrap().deadlock;
        assert_eq!(limit("0"), Some(Duration::MAX));
        assert_eq!(limit(""), None);
        assert_eq!(limit("250"), Some(Duration::from_millis(250)));
    }

    #[test]
    fn the_table_says_what_the_defaults_are() {
        let CpuConfig { multiprocessors, threads, deadlock, .. } = CpuConfig::default();
        assert_eq!(env::CPU_MULTIPROCESSORS.default, multiprocessors.to_string());
        assert_eq!(env::CPU_THREADS.default, threads.to_string());
        assert_eq!((env::CPU_DEADLOCK_MS.default, deadlock), ("0; 2000 in a simulation", None));
    }

    #[test]
    fn a_wrong_value_names_its_variable_and_what_is_allowed() {
        for (name, value) in [
            ("MSCCLRS_CPU_THREADS", "100"),
            ("MSCCLRS_CPU_THREADS", "2048"),
            ("MSCCLRS_CPU_MULTIPROCESSORS", "0"),
            ("MSCCLRS_CPU_MULTIPROCESSORS", "many"),
            ("MSCCLRS_CPU_DEADLOCK_MS", "-1"),
            ("MSCCLRS_SIM", "chekced,seed=1"),
            ("MSCCLRS_SIM", "7"),
            ("MSCCLRS_SIM", "weak,seed=1,seed=2"),
            ("MSCCLRS_SIM_TRACE", "/nowhere/run.json"),
            ("MSCCLRS_SIM_TRACE", "/"),
            ("MSCCLRS_SIM_REPORT", "/nowhere"),
        ] {
            let text = with(name, value).unwrap_err().to_string();
            assert!(text.contains(&format!("{name}={value}: allowed is ")), "{text}");
        }
    }
}

//! What a simulation met, told to whoever started the process.
//!
//! Invariant: a report is whole, and says all that a host thread can have learnt. It is written beside its
//! name and renamed, by the simulation's thread, before that thread lets anybody know. So what a program
//! does with an error, or how it ends, changes nothing of what its report says.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use mscclrs_sim::{
    Check, Decision, Finding, LateLoad, Mode, OnDecisions, OnProgress, Progress, Site,
};
use serde::{Deserialize, Serialize};

/// The form of these files.
const FORMAT: u32 = 1;
/// How their names end.
const EXTENSION: &str = "json";
/// How the names of those that are being written end.
const UNFINISHED: &str = "unfinished";
/// A report has some kilobytes; what is larger is none.
const LARGEST: u64 = 16 << 20;
/// A decision in its file: its alternatives and its state, the lowest byte first.
const DECISION_BYTES: usize = size_of::<u32>() + size_of::<u64>();

/// What the simulation of a process met (`MSCCLRS_SIM_REPORT`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this form: it grows when a field goes or changes its meaning.
    pub format: u32,
    /// The process.
    pub process: u32,
    /// How the simulation is had again, as `MSCCLRS_SIM` has it.
    pub mode: String,
    /// CPU devices that were opened.
    pub devices: u64,
    /// Kernels that were begun.
    pub launches: u64,
    /// Those of them that had not ended: where the process has, it did not wait for them.
    pub running: u64,
    /// Accesses to memory by lanes, as of the last begin or end of a launch.
    pub accesses: u64,
    /// Decisions that the simulation met, where its schedule is one of departures: so many are in the file.
    #[serde(default)]
    pub decisions: u64,
    /// The file of its decisions, in the folder of the report.
    #[serde(default)]
    pub decisions_file: Option<String>,
    /// The departure of its schedule that it has not come to, for people: where the process has ended, the
    /// run is not the one that the mode is of.
    #[serde(default)]
    pub unreached: Option<String>,
    /// In weak mode, for people: loads that saw old values, and what they did not see.
    #[serde(default)]
    pub late_loads: Option<String>,
    /// What was found; the simulation has ended then.
    pub finding: Option<ReportedFinding>,
}

/// A finding, as a report has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedFinding {
    /// What kind of fault it is, in a few words: `race`, `deadlock`.
    pub kind: String,
    /// All of it, for people, in several lines.
    pub text: String,
    /// The access at which it was seen, then the one that it does not go together with, where known.
    pub sites: Vec<ReportedSite>,
}

/// One access or arrival, as a report has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedSite {
    /// What it did.
    pub what: String,
    /// The kernel.
    pub kernel: String,
    /// Source line.
    pub line: String,
    /// Number of the device.
    pub device: u32,
    /// The block.
    pub block: u32,
    /// The lane in its block.
    pub lane: u32,
    /// The how manieth launch of the simulation it belongs to, from 0 on.
    pub launch: u32,
}

impl Report {
    /// The reports that processes left in a folder, by process. An error if the folder or one of them
    /// cannot be read.
    pub fn read_all(folder: &Path) -> io::Result<Vec<Report>> {
        let mut reports = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                let mut text = Vec::new();
                File::open(&path)?.take(LARGEST).read_to_end(&mut text)?;
                reports.push(serde_json::from_slice::<Report>(&text)?);
            }
        }
        reports.sort_by_key(|report| report.process);
        Ok(reports)
    }

    /// Whether this is a file of a report that was begun: if its process has ended, it could not end it.
    pub fn is_unfinished(path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension == UNFINISHED)
    }

    /// The decisions that the simulation met. An error if their file, in the folder that the report was
    /// read from, cannot be read or does not have them all.
    pub fn read_decisions(&self, folder: &Path) -> io::Result<Vec<Decision>> {
        let Some(name) = &self.decisions_file else { return Ok(Vec::new()) };
        // A name and no more: never a file elsewhere.
        let name = Path::new(name).file_name().ok_or(io::ErrorKind::InvalidData)?;
        let bytes = self.decisions.saturating_mul(DECISION_BYTES as u64);
        let mut all = Vec::new();
        File::open(folder.join(name))?.take(bytes).read_to_end(&mut all)?;
        if all.len() as u64 != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let decision = |record: &[u8; DECISION_BYTES]| {
            let [a, b, c, d, state @ ..] = *record;
            Decision {
                alternatives: u32::from_le_bytes([a, b, c, d]),
                state: u64::from_le_bytes(state),
            }
        };
        Ok(all.as_chunks().0.iter().map(decision).collect())
    }

    fn new(mode: &Mode, progress: &Progress, decisions: Option<&str>) -> Report {
        Report {
            format: FORMAT,
            process: std::process::id(),
            mode: mode.to_string(),
            devices: progress.devices,
            launches: progress.launches,
            running: progress.running,
            accesses: progress.steps,
            decisions: progress.decisions,
            decisions_file: decisions.filter(|_| progress.decisions > 0).map(str::to_owned),
            unreached: progress.unreached.map(|unreached| unreached.to_string()),
            late_loads: (mode.check == Check::Weak)
                .then(|| LateLoad::told(&progress.late, progress.running == 0)),
            finding: progress.finding.as_ref().map(ReportedFinding::from),
        }
    }
}

impl From<&Finding> for ReportedFinding {
    fn from(finding: &Finding) -> ReportedFinding {
        let sites = finding.here.iter().chain(&finding.other);
        ReportedFinding {
            kind: finding.kind.name().to_owned(),
            text: finding.told(),
            sites: sites.map(ReportedSite::from).collect(),
        }
    }
}

impl From<&Site> for ReportedSite {
    fn from(site: &Site) -> ReportedSite {
        ReportedSite {
            what: site.what.clone(),
            kernel: site.kernel.to_owned(),
            line: site.line.clone(),
            device: site.device,
            block: site.block,
            lane: site.lane,
            launch: site.launch,
        }
    }
}

/// Tells what is found on standard error, once: what the program does with its errors hides nothing.
pub(crate) fn on_standard_error() -> OnProgress {
    let told = AtomicBool::new(false);
    Box::new(move |progress: &Progress| {
        if let Some(finding) = &progress.finding
            && !told.swap(true, Ordering::Relaxed)
        {
            // Nobody may read it any more.
            let _ = writeln!(io::stderr().lock(), "MSCCLRS_SIM has found a fault: {finding}");
        }
    })
}

/// Keeps a report in `folder`, in files that are only this simulation's: the number of a process may come
/// again within a command.
pub(crate) fn keep(folder: &Path, mode: &Mode) -> (OnProgress, OnDecisions) {
    // The program may go elsewhere.
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let name = format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(0));
    let path = folder.join(format!("{name}.{EXTENSION}"));
    let unfinished = folder.join(format!("{name}.{UNFINISHED}"));
    let decisions_name = format!("{name}.decisions");
    let decisions_path = folder.join(&decisions_name);
    let mode = mode.clone();
    let tell = |path: &Path, written: io::Result<()>| {
        if let Err(error) = written {
            mscclrs_log::warn!(
                ENV,
                file = %path.display(),
                %error,
                "the report of MSCCLRS_SIM_REPORT cannot be written"
            );
        }
    };
    let on_progress = move |progress: &Progress| {
        let report = Report::new(&mode, progress, Some(&decisions_name));
        tell(&path, write(&path, &unfinished, &report));
    };
    // The report says how many of them count, so what a process leaves unfinished does no harm.
    let on_decisions = move |new: &[Decision]| tell(&decisions_path, append(&decisions_path, new));
    (Box::new(on_progress), Box::new(on_decisions))
}

fn append(path: &Path, decisions: &[Decision]) -> io::Result<()> {
    if decisions.is_empty() {
        return Ok(());
    }
    let mut bytes = Vec::with_capacity(decisions.len() * DECISION_BYTES);
    for Decision { alternatives, state } in decisions {
        bytes.extend(alternatives.to_le_bytes());
        bytes.extend(state.to_le_bytes());
    }
    File::options().append(true).create(true).mode(0o600).open(path)?.write_all(&bytes)
}

fn write(path: &PathBuf, unfinished: &PathBuf, report: &Report) -> io::Result<()> {
    let text = serde_json::to_vec(report)?;
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // It says what the program does in memory, so it is nobody else's. Never one that another made.
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(unfinished)?;
    file.write_all(&text)?;
    drop(file);
    fs::rename(unfinished, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use mscclrs_sim::{Departure, FindingKind, Unreached};

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("mscclrs-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn finding() -> Finding {
        let site = Site {
            what: "plain store".into(),
            kernel: "volley",
            line: "src/lib.rs:7:3".into(),
            device: 1,
            block: 0,
            lane: 31,
            launch: 2,
        };
        Finding {
            kind: FindingKind::Race,
            what: "\"two\" stores".into(),
            here: Some(site),
            other: None,
            missing: None,
            steps: vec!["a step".into()],
            mode: Mode::new(Check::Checked, 7),
        }
    }

    #[test]
    fn what_was_kept_last_is_read_back_and_is_its_owners_only() {
        let folder = folder("kept");
        let mode = Mode::new(Check::Checked, 7);
        let (keep_on, _) = keep(&folder, &mode);
        let mut progress = Progress { devices: 2, launches: 1, running: 1, ..Progress::default() };
        keep_on(&progress);
        progress.finding = Some(finding());
        keep_on(&progress);
        let (other, _) = keep(&folder, &mode);
        other(&Progress::default());

        let mut reports = Report::read_all(&folder).unwrap();
        reports.sort_by_key(|report| report.devices);
        assert_eq!(reports.len(), 2, "each simulation has a file of its own");
        assert_eq!(reports[0].finding, None);
        let found = reports[1].finding.as_ref().unwrap();
        assert_eq!((found.kind.as_str(), found.sites.len()), ("race", 1));
        assert_eq!(found.sites[0].line, "src/lib.rs:7:3");
        assert!(found.text.ends_with("a step"), "{}", found.text);
        assert_eq!(reports[1].mode.parse(), Ok(mode));
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.extension().unwrap() == EXTENSION, "{path:?} is left");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn decisions_are_read_back_as_far_as_the_report_tells() {
        let folder = folder("decisions");
        let mode: Mode = "weak,schedule=departures:7=1".parse().unwrap();
        let (keep_on, decide) = keep(&folder, &mode);
        let met: Vec<Decision> =
            (0..9).map(|n| Decision { alternatives: 2 + n as u32, state: u64::MAX - n }).collect();
        let read = || {
            let reports = Report::read_all(&folder).unwrap();
            (reports[0].unreached.clone(), reports[0].read_decisions(&folder))
        };
        keep_on(&Progress::default());
        assert_eq!(read().1.unwrap(), []);
        decide(&met[..4]);
        decide(&met[4..]);
        let departure = Departure { decision: 7, alternative: 1 };
        let unreached = Some(Unreached { departure, decisions: 6 });
        keep_on(&Progress { decisions: 6, unreached, ..Progress::default() });
        let (unreached, decisions) = read();
        assert_eq!(decisions.unwrap(), met[..6]);
        assert!(unreached.unwrap().starts_with("the departure 7=1 was not reached"));
        keep_on(&Progress { decisions: 10, ..Progress::default() });
        assert_eq!(read().1.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_is_no_report_is_an_error() {
        let folder = folder("no-report");
        fs::write(folder.join("1-2.json"), "{}").unwrap();
        assert_eq!(Report::read_all(&folder).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::remove_dir_all(&folder).unwrap();
    }
}

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

use mscclrs_sim::{Finding, Mode, OnProgress, Progress, Site};
use serde::{Deserialize, Serialize};

/// The form of these files.
const FORMAT: u32 = 1;
/// How their names end.
const EXTENSION: &str = "json";
/// A report has some kilobytes; what is larger is none.
const LARGEST: u64 = 16 << 20;

/// What the simulation of a process met (`MSCCLRS_SIM_REPORT`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

    fn new(mode: &Mode, progress: &Progress) -> Report {
        Report {
            format: FORMAT,
            process: std::process::id(),
            mode: mode.to_string(),
            devices: progress.devices,
            launches: progress.launches,
            running: progress.running,
            accesses: progress.steps,
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

/// Keeps a report in `folder`, in a file that is only this simulation's: the number of a process may come
/// again within a command.
pub(crate) fn keep(folder: &Path, mode: &Mode) -> OnProgress {
    // The program may go elsewhere.
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let name = format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(0));
    let path = folder.join(format!("{name}.{EXTENSION}"));
    let unfinished = folder.join(format!("{name}.unfinished"));
    let mode = mode.clone();
    Box::new(move |progress| {
        if let Err(error) = write(&path, &unfinished, &Report::new(&mode, progress)) {
            mscclrs_log::warn!(
                ENV,
                file = %path.display(),
                %error,
                "the report of MSCCLRS_SIM_REPORT cannot be written"
            );
        }
    })
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

    use mscclrs_sim::{Check, FindingKind};

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
        let keep_on = keep(&folder, &mode);
        let mut progress = Progress { devices: 2, launches: 1, running: 1, ..Progress::default() };
        keep_on(&progress);
        progress.finding = Some(finding());
        keep_on(&progress);
        let other = keep(&folder, &mode);
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
    fn a_file_that_is_no_report_is_an_error() {
        let folder = folder("no-report");
        fs::write(folder.join("1-2.json"), "{}").unwrap();
        assert_eq!(Report::read_all(&folder).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::remove_dir_all(&folder).unwrap();
    }
}

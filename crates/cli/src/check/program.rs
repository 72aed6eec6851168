//! `check -- COMMAND`: a program that is run again and again, each time in another simulation.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use mscclrs_core::env;
use mscclrs_gpu::simulation::{Check, Mode, Report, ReportedFinding};
use tempfile::TempDir;

use super::findings::{self, Found};
use super::options::{CheckOptions, word};
use super::orders::{self, Halt, Try, not_reached};
use super::quote;
use super::report::{Row, Table};
use crate::bench::files;
use crate::launch::alone::{End, Ended, Runner};
use crate::output::say;
use crate::usage::usage;

/// A signal: memory that is not there, such as what lies below a stack.
const SIGSEGV: i32 = 11;
/// What a finding about a panic is called, and what Rust says of one.
const PANIC: &str = "panic";
const PANICKED: &str = " panicked at ";
/// Lines of a command's output that are shown.
const SHOWN: usize = 20;

/// Runs the command once for each mode and seed, or in every order of few departures, or until something is
/// found.
pub(super) fn run(options: &CheckOptions) -> Result<ExitCode> {
    let looks = &options.looks;
    let (told, runs) = looks.told();
    let command = quote::words(options.command.iter().map(|word| word.as_os_str()));
    let title = format!("{command}: {told}");
    let mut program = Program {
        options,
        runner: Runner::new()?,
        table: Table::open(looks.json.as_deref(), looks.steps(1), (&title, runs), &[]),
        trace: Traced { options, is_written: false, is_missing: false },
        command,
        all: Vec::new(),
    };
    for check in looks.checks() {
        let mut row = Row::new(&program.command, None, word(check));
        row.kernels = Some(0);
        let made = match looks.orders() {
            Some((departures, runs)) => program.every_order((check, departures, runs), &mut row),
            None => program.every_seed(check, &mut row),
        };
        if let Err(halt) = made {
            return halt.end();
        }
        program.table.add(&row)?;
        if let (Some(found), false) = (program.all.first(), looks.keep_going) {
            program.table.tell(found)?;
            break;
        }
    }
    program.table.finish(&program.all)?;
    program.trace.say();
    Ok(ExitCode::from(u8::from(!program.all.is_empty())))
}

/// The command that is run again and again.
struct Program<'a> {
    options: &'a CheckOptions,
    /// As a shell reads it.
    command: String,
    runner: Runner,
    table: Table,
    trace: Traced<'a>,
    /// What was found.
    all: Vec<Found>,
}

impl Program<'_> {
    fn every_seed(&mut self, check: Check, row: &mut Row) -> Result<(), Halt> {
        let looks = &self.options.looks;
        for mode in looks.modes(check) {
            self.table.step(mode.to_string());
            let ran = self.run(&mode, self.options.time_limit(), Some(row))?;
            row.seeds += 1;
            let verdict = self.verdict(&ran, check)?;
            let unreached = ran.reports.iter().find_map(|report| report.unreached.as_ref());
            match (verdict, unreached) {
                (Some(found), _) => self.found(found, (&mode, ran.kernels() > 0), row)?,
                (None, Some(unreached)) => return Err(Halt::Failed(not_reached(unreached))),
                (None, None) => continue,
            }
            if !looks.keep_going {
                break;
            }
        }
        Ok(())
    }

    fn every_order(&mut self, most: (Check, u32, u64), row: &mut Row) -> Result<(), Halt> {
        let (orders, found) = orders::explore(most, |mode| {
            self.table.step(mode.to_string());
            let ran = self.run(mode, self.options.time_limit(), Some(row))?;
            self.tried(mode, &ran)
        })?;
        row.orders = Some(orders);
        match found {
            Some((mode, found)) => self.found(found, (&mode, true), row),
            None => Ok(()),
        }
    }

    /// Adds what a run has found, with the shortest run that has such a fault.
    fn found(
        &mut self,
        first: ReportedFinding,
        (mode, ran_kernels): (&Mode, bool),
        row: &mut Row,
    ) -> Result<(), Halt> {
        row.findings += 1;
        let command = self.command.clone();
        let again = |mode: &Mode| again(&command, mode);
        let mut found = Found::new(first, mode, again(mode));
        let is_new = findings::is_new(&self.all, &found);
        // Where no kernel ran there is no order of lanes.
        if is_new && ran_kernels {
            let limit = self.options.looks.shorten();
            let searched = orders::shorten(&mut found, mode, limit, again, |mode, left| {
                self.table.note(mode.to_string());
                let ran = self.run(mode, left, None)?;
                match ran.ended.end {
                    End::OverTime if left < self.options.time_limit() => Err(Halt::Over),
                    _ => self.tried(mode, &ran),
                }
            });
            if let Err(halt) = searched {
                // What is known is not lost because nothing more is run.
                self.table.tell(&found).map_err(Halt::Failed)?;
                return Err(halt);
            }
        }
        findings::add(&mut row.found, found.clone());
        if is_new && self.options.looks.keep_going {
            self.table.tell(&found).map_err(Halt::Failed)?;
        }
        findings::add(&mut self.all, found);
        Ok(())
    }

    /// Runs it once, for no longer than the limit and the options say; what is counted in a row has a trace
    /// too.
    fn run(&mut self, mode: &Mode, limit: Duration, row: Option<&mut Row>) -> Result<Ran, Halt> {
        let limit = limit.min(self.options.time_limit());
        let traces = row.is_some() && self.options.looks.trace.is_some();
        let ran = Ran::new(&self.options.command, mode, (limit, traces), &mut self.runner)?;
        if let Some(row) = row {
            row.kernels = row.kernels.map(|kernels| kernels + ran.kernels());
            row.accesses += ran.reports.iter().map(|report| report.accesses).sum::<u64>();
            self.trace.keep(&ran, self.options.looks.steps(1)).map_err(Halt::Failed)?;
        }
        Ok(ran)
    }

    /// A run that departures make.
    fn tried(&self, mode: &Mode, ran: &Ran) -> Result<Try, Halt> {
        let found = self.verdict(ran, mode.check)?;
        let mut of_kernels = ran.reports.iter().filter(|report| report.launches > 0);
        let decisions = match (of_kernels.next(), of_kernels.next()) {
            (Some(_), Some(_)) => {
                return Err(Halt::Failed(anyhow!(
                    "several processes of the command run kernels, each in an order of its own"
                )));
            }
            (Some(report), None) => report.read_decisions(ran.folder.path()),
            (None, _) => Ok(Vec::new()),
        };
        let decisions = decisions.context("the decisions that the command reported cannot be read");
        Ok(Try { decisions: decisions.map_err(Halt::Failed)?, found })
    }

    fn verdict(&self, ran: &Ran, check: Check) -> Result<Option<ReportedFinding>, Halt> {
        ran.verdict(self.options, &self.command, check).map_err(Halt::Failed)
    }
}

/// What a shell runs to see a mode's run again.
fn again(command: &str, mode: &Mode) -> String {
    format!("{}=cpu {}={mode} {command}", env::DEVICE.name, env::SIM.name)
}

/// One run of the command.
struct Ran {
    ended: Ended,
    reports: Vec<Report>,
    folder: TempDir,
}

/// What the trace of a run is called in its folder.
const TRACE: &str = "trace";

impl Ran {
    fn new(
        words: &[OsString],
        mode: &Mode,
        (limit, traces): (Duration, bool),
        runner: &mut Runner,
    ) -> Result<Ran, Halt> {
        let folder = tempfile::Builder::new()
            .prefix("mscclrs-check-")
            .tempdir()
            .context("no folder can be made for what the command reports")
            .map_err(Halt::Failed)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.env(env::DEVICE.name, "cpu").env(env::SIM.name, mode.to_string());
        command.env(env::SIM_REPORT.name, folder.path());
        match traces {
            true => command.env(env::SIM_TRACE.name, folder.path().join(TRACE)),
            false => command.env_remove(env::SIM_TRACE.name),
        };
        let ended = match runner.run(command, limit).map_err(Halt::Failed)? {
            Ok(ended) => ended,
            Err(refused) => return Err(Halt::Said(refused.tell())),
        };
        if let End::Asked(signal) = ended.end {
            say!("mscclrs: the check was interrupted in {mode}; nothing more is run");
            let status = ExitCode::from(u8::try_from(128 + signal).unwrap_or(1));
            return Err(Halt::Said(status));
        }
        let reports = Report::read_all(folder.path())
            .context("what the command reported cannot be read; is it of another version?")
            .map_err(Halt::Failed)?;
        let told = mode.to_string();
        if let Some(other) =
            reports.iter().find(|report| report.launches > 0 && report.mode != told)
        {
            return Err(Halt::Failed(usage!(
                "the command ran kernels with {}={}, and was told to with {told}; allowed are commands that \
                 leave {0} as it is",
                env::SIM.name,
                other.mode
            )));
        }
        Ok(Ran { ended, reports, folder })
    }

    fn kernels(&self) -> u64 {
        self.reports.iter().map(|report| report.launches).sum()
    }

    fn finding(&self) -> Option<&ReportedFinding> {
        self.reports.iter().find_map(|report| report.finding.as_ref())
    }

    fn verdict(
        &self,
        options: &CheckOptions,
        command: &str,
        check: Check,
    ) -> Result<Option<ReportedFinding>> {
        let how = self.ended.end.told(options.time_limit());
        verdict(&self.reports, self.ended.end, how, check)
            .map(|wrong| wrong.map(|wrong| wrong.with(&self.ended.output)))
            .ok_or_else(|| {
                if has_unfinished(self.folder.path()) {
                    return anyhow!(
                        "'{command}' could not write what it reports to '{}'; is there no room? TMPDIR names \
                         another folder",
                        self.folder.path().display()
                    );
                }
                usage!(
                    "'{command}' ran no kernel on a CPU device, or ended before its first one began; \
                     allowed are programs that run and wait for one, whose ranks are threads (of mscclrs \
                     bench those with --threads)"
                )
            })
    }
}

/// Whether a process began a report and could not end it.
fn has_unfinished(folder: &Path) -> bool {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    names.map(|entry| entry.path()).any(|path| Report::is_unfinished(&path))
}

/// What is wrong with a run.
struct Wrong {
    finding: ReportedFinding,
    /// Whether the command's output may say more.
    shows_output: bool,
}

impl Wrong {
    fn with(self, output: &str) -> ReportedFinding {
        let mut finding = self.finding;
        if self.shows_output {
            finding.text.push_str(&last_words(output));
        }
        if let Some(place) = panic_place(output).filter(|_| finding.kind == PANIC) {
            let _ = write!(finding.text, "\n  the panic is at {place}");
        }
        finding
    }
}

/// What is wrong, if anything is; nothing at all if no kernel ran in a run that went well. `how` tells
/// the end.
fn verdict(reports: &[Report], end: End, how: String, check: Check) -> Option<Option<Wrong>> {
    let wrong = |kind: String, text: String, shows_output| {
        let finding = ReportedFinding { kind, text, sites: Vec::new() };
        Some(Some(Wrong { finding, shows_output }))
    };
    if let Some(found) = reports.iter().find_map(|report| report.finding.clone()) {
        return Some(Some(Wrong { finding: found, shows_output: false }));
    }
    let kernels: u64 = reports.iter().map(|report| report.launches).sum();
    if end != End::Exited(0) {
        let when = if kernels == 0 { " before it ran a kernel" } else { "" };
        let mut text = format!("failure: the command {how}{when}, and no fault was found");
        let running: u64 = reports.iter().map(|report| report.running).sum();
        if end == End::OverTime && running > 0 {
            let _ = write!(
                text,
                "\n  {running} of its {kernels} kernels had not ended: they may need longer (--time-limit), or \
                 one is in a loop that reads nothing, or writes something new each time",
            );
        }
        if check == Check::Weak && kernels > 0 {
            let of_kernels = reports.iter().filter(|report| report.launches > 0);
            text.push_str(
                "\n  in weak mode kernels may see writes late; --mode checked may say what would order them",
            );
            for late in of_kernels.filter_map(|report| report.late_loads.as_ref()) {
                let _ = write!(text, "\n{late}");
            }
        }
        if matches!(end, End::Killed(signal) if signal == SIGSEGV) && kernels > 0 {
            text.push_str(
                "\n  a lane has a stack of 256 KiB on CPU devices: recursion, and large arrays in a kernel, \
                 end so",
            );
        }
        return wrong(how, text, true);
    }
    if kernels == 0 {
        return None;
    }
    let running: u64 = reports.iter().map(|report| report.running).sum();
    if running > 0 {
        let kind = "kernels that nobody waited for".to_owned();
        let text = format!(
            "{kind}: the command ended before {running} of its {kernels} kernels had, so they were not \
             looked at to their end\n  wait for every stream before the program ends"
        );
        return wrong(kind, text, false);
    }
    Some(None)
}

/// Where device code panicked last, as Rust says it on the thread that runs lanes; a finding knows the last
/// access of the lane only.
fn panic_place(output: &str) -> Option<&str> {
    let of_lanes = output.lines().filter(|line| line.starts_with("thread 'mscclrs-world'"));
    let mut places = of_lanes.filter_map(|line| line.split_once(PANICKED));
    places.next_back().map(|(_, place)| place.trim_end_matches(':'))
}

/// The last lines, as a part of a report. The calls of backtraces are left out: they may be more than are
/// shown, and what went wrong stands before them.
fn last_words(output: &str) -> String {
    let lines: Vec<&str> =
        output.trim_end().lines().filter(|line| !is_of_backtrace(line)).collect();
    if lines.is_empty() {
        return "\n  it wrote nothing".into();
    }
    let first = lines.len().saturating_sub(SHOWN);
    let shown: String = lines[first..].iter().map(|line| format!("\n    {line}")).collect();
    format!("\n  its last output:{shown}")
}

/// Whether a line names a call, `  12: name`, or its place, `      at file:line`, as Rust writes them, or
/// says that such lines follow.
fn is_of_backtrace(line: &str) -> bool {
    let text = line.trim_start();
    if text.eq_ignore_ascii_case("stack backtrace:") {
        return true;
    }
    let indent = line.len() - text.len();
    let is_call = || {
        let number = text.split_once(": ").map(|(number, _)| number);
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
    };
    (indent >= 2 && is_call()) || (indent >= 10 && text.starts_with("at "))
}

/// The file of `--trace`.
struct Traced<'a> {
    options: &'a CheckOptions,
    is_written: bool,
    /// Whether a run that was to be kept had none.
    is_missing: bool,
}

impl Traced<'_> {
    /// Keeps the trace of the first run that has a finding, or of the only one.
    fn keep(&mut self, ran: &Ran, steps: u64) -> Result<()> {
        let Some(path) = self.options.looks.trace.as_ref().filter(|_| !self.is_written) else {
            return Ok(());
        };
        if ran.finding().is_none() && ran.ended.end == End::Exited(0) && steps != 1 {
            return Ok(());
        }
        let trace = ran.folder.path().join(TRACE);
        self.is_missing = !trace.exists();
        if !self.is_missing {
            let text = std::fs::read_to_string(&trace).context("the trace cannot be read")?;
            files::write(path, &text)?;
            self.is_written = true;
        }
        Ok(())
    }

    fn say(&self) {
        if let Some(path) = self.options.looks.trace.as_ref().filter(|_| !self.is_written) {
            let why = match self.is_missing {
                true => {
                    "the run left no trace, or there was no room for it in the folder of TMPDIR"
                }
                false => "nothing was found",
            };
            say!("mscclrs: {why}, so '{}' was not written", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(launches: u64, running: u64, finding: Option<&str>) -> Report {
        Report {
            format: 1,
            process: 1,
            mode: "weak,seed=0".into(),
            devices: 1,
            launches,
            running,
            accesses: 10,
            finding: finding.map(|kind| ReportedFinding {
                kind: kind.into(),
                text: kind.into(),
                sites: Vec::new(),
            }),
            ..Report::default()
        }
    }

    /// The kind and text of what is wrong, or nothing; no kernel is "none".
    fn kind(reports: &[Report], end: End, check: Check) -> Option<String> {
        let how = end.told(std::time::Duration::from_secs(1));
        match verdict(reports, end, how, check) {
            None => Some("none".into()),
            Some(wrong) => wrong.map(|wrong| wrong.finding.text),
        }
    }

    #[test]
    fn only_a_run_of_kernels_that_all_ended_is_good() {
        let good = End::Exited(0);
        assert_eq!(kind(&[report(2, 0, None)], good, Check::Weak), None);
        assert_eq!(kind(&[report(0, 0, None), report(1, 0, None)], good, Check::Weak), None);
        for nothing in [&[][..], &[report(0, 0, None)]] {
            assert_eq!(kind(nothing, good, Check::Checked).as_deref(), Some("none"));
        }
        let left = kind(&[report(3, 1, None)], good, Check::Checked).expect("wrong");
        assert!(left.contains("before 1 of its 3 kernels"), "{left}");
        let found = [report(1, 0, None), report(1, 1, Some("race"))];
        for end in [good, End::Exited(3), End::Killed(9), End::OverTime] {
            assert_eq!(kind(&found, end, Check::Checked).as_deref(), Some("race"));
        }
    }

    #[test]
    fn failures_say_whether_the_mode_may_have_made_them() {
        let failed = |reports: &[Report], check| {
            kind(reports, End::Exited(1), check).expect("wrong").contains("in weak mode")
        };
        assert!(failed(&[report(1, 0, None)], Check::Weak));
        assert!(!failed(&[report(1, 0, None)], Check::Checked));
        assert!(!failed(&[], Check::Weak));
    }

    #[test]
    fn late_loads_are_told_of_processes_that_ran_kernels() {
        let with = |launches, late: &str| Report {
            late_loads: Some(late.into()),
            ..report(launches, 0, None)
        };
        let reports = [with(0, "none here"), with(1, "  one"), with(2, "  two")];
        let told = kind(&reports, End::Exited(1), Check::Weak).expect("wrong");
        assert!(told.contains("\n  one\n  two") && !told.contains("none here"), "{told}");
    }

    #[test]
    fn what_went_wrong_is_shown_and_not_the_calls_that_led_there() {
        let calls: String = (0..40)
            .map(|nth| {
                format!("  {nth:2}: core::ops::function\n             at /rustc/lib.rs:{nth}:5\n")
            })
            .collect();
        let shown = last_words(&format!("Error: 12: a wrong sum\n\nStack backtrace:\n{calls}"));
        assert_eq!(shown.lines().filter(|line| !line.trim().is_empty()).count(), 2, "{shown}");
        assert!(shown.contains("Error: 12: a wrong sum"), "{shown}");
        assert_eq!(last_words("  at once\n"), "\n  its last output:\n      at once");
    }

    #[test]
    fn a_panic_of_device_code_is_told_with_its_place() {
        let output = "thread 'main' (7) panicked at src/main.rs:1:1:\nmine\n\
                      thread 'mscclrs-world' (8) panicked at src/lib.rs:20:9:\nout of bounds\n\
                      thread 'main' (7) panicked at src/main.rs:2:2:\nErr\n";
        let told = |kind| {
            let found = [report(1, 1, Some(kind))];
            let wrong = verdict(&found, End::Exited(1), String::new(), Check::Checked);
            wrong.flatten().expect("wrong").with(output).text
        };
        assert_eq!(told("panic"), "panic\n  the panic is at src/lib.rs:20:9");
        assert_eq!(told("race"), "race");
    }

    #[test]
    fn a_fault_of_memory_names_the_stack_of_lanes_as_a_cause() {
        let stack = |reports: &[Report], end| {
            kind(reports, end, Check::Checked).expect("wrong").contains("256 KiB")
        };
        assert!(stack(&[report(1, 1, None)], End::Killed(SIGSEGV)));
        assert!(!stack(&[report(1, 1, None)], End::Killed(9)) && !stack(&[], End::Killed(SIGSEGV)));
    }

    #[test]
    fn only_the_last_lines_are_shown() {
        assert_eq!(last_words(" \n"), "\n  it wrote nothing");
        assert_eq!(last_words("a\nb\n"), "\n  its last output:\n    a\n    b");
        let many: String = (0..100).map(|line| format!("{line}\n")).collect();
        let shown = last_words(&many);
        assert_eq!(shown.lines().count(), SHOWN + 2);
        assert!(shown.contains("\n    80\n") && shown.ends_with("    99"), "{shown}");
    }
}

//! What is run on a host for its ranks.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::super::LaunchOptions;
use super::super::environment::{self, Ranks};
use super::super::place::Rendezvous;
use super::shell::quote;

/// How a host's part gets the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Standard input is the lifeline of the ranks.
    Lifeline,
    /// Standard input has the secret and nothing else.
    Secret,
}

/// What is the same on every host.
pub(super) struct Remote<'a> {
    options: &'a LaunchOptions,
    meeting: Rendezvous,
    folder: PathBuf,
    program: PathBuf,
    line: Line,
    settings: Vec<OsString>,
}

impl Remote<'_> {
    pub(super) fn new(
        options: &LaunchOptions,
        meeting: Rendezvous,
        line: Line,
    ) -> Result<Remote<'_>> {
        let folder = std::env::current_dir().context("the present folder is not known")?;
        let program = match &options.remote_command {
            Some(path) => path.clone(),
            None => std::env::current_exe().context("this program's own file is not known")?,
        };
        let mut settings = Vec::new();
        let own = environment::for_other_hosts().into_iter().map(|(name, value)| (name, Ok(value)));
        let asked = options.settings.iter().map(|asked| (asked.name.clone(), asked.value()));
        for (name, value) in own.chain(asked) {
            let mut setting = OsString::from(format!("{name}="));
            setting.push(value?);
            settings.push(setting);
        }
        Ok(Remote { options, meeting, folder, program, line, settings })
    }

    /// For the login shell of the host, which is taken to be a POSIX one.
    pub(super) fn command(&self, ranks: Ranks) -> OsString {
        let mut text = b"cd ".to_vec();
        text.extend(quote(&self.folder));
        text.extend(b" && exec");
        for word in self.words(ranks) {
            text.push(b' ');
            text.extend(quote(word));
        }
        OsString::from_vec(text)
    }

    fn words(&self, ranks: Ranks) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![self.program.clone().into(), "launch".into()];
        let mut option = |name: &str, value: &OsStr| {
            words.push(name.into());
            words.push(value.into());
        };
        option("-n", ranks.count.to_string().as_ref());
        option("--first-rank", ranks.first.to_string().as_ref());
        option("--world-size", ranks.world_size.to_string().as_ref());
        option("--address", self.meeting.to_string().as_ref());
        for setting in &self.settings {
            option("-x", setting);
        }
        if let Some(folder) = &self.options.output {
            option("--output", folder.as_ref());
        }
        option("--grace", self.options.grace.as_secs_f64().to_string().as_ref());
        if self.options.no_prefix {
            words.push("--no-prefix".into());
        }
        words.push(match self.line {
            Line::Lifeline => "--lifeline".into(),
            Line::Secret => "--secret-stdin".into(),
        });
        words.push("--".into());
        words.extend(self.options.command.iter().cloned());
        words
    }
}

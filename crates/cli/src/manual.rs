//! `mscclrs man`: manual pages, one a command, made of the command's own definition.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use mscclrs_core::env;

use crate::options::Cli;
use crate::output::print;
use crate::usage::{self, usage};
use crate::words::visible;

/// Options of `man`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManOptions {
    /// The command whose page is printed, such as bench allreduce [default: mscclrs itself].
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    command: Vec<String>,
    /// Write all pages to this folder, which is made where it is not there, and print none.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints a page, or writes all.
pub(crate) fn run(options: &ManOptions) -> Result<ExitCode> {
    let root = definition();
    match &options.out {
        Some(folder) => write(&root, folder),
        None => {
            let mut command = &root;
            let mut path = root.get_name().to_owned();
            for name in &options.command {
                command = command
                    .find_subcommand(name)
                    .ok_or_else(|| usage!("{}", usage::no_command(&root, command, &path, name)))?;
                path = format!("{path} {name}");
            }
            print(page(command).as_bytes())
        }
    }
}

/// The command with the names of its pages filled in.
fn definition() -> Command {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    root
}

fn write(root: &Command, folder: &Path) -> Result<ExitCode> {
    let refused = |path: &Path, error| {
        usage!(
            "--out: '{}' cannot be written ({error}); allowed is a folder to write pages to",
            path.display()
        )
    };
    fs::create_dir_all(folder).map_err(|error| refused(folder, error))?;
    let mut pages = Vec::new();
    visible(root, &mut |_, command| {
        pages.push((folder.join(format!("{}.1", name(command))), page(command)));
    });
    let mut names = String::new();
    for (path, page) in pages {
        fs::write(&path, page).map_err(|error| refused(&path, error))?;
        names.push_str(&format!("{}\n", path.display()));
    }
    print(names.as_bytes())
}

/// As in `man mscclrs-bench-allreduce`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// A page in the language of man.
fn page(command: &Command) -> String {
    let man = Man::new(command.clone())
        .date(concat!("version ", env!("CARGO_PKG_VERSION")))
        .source("mscclrs");
    let mut page = Vec::new();
    // Writing to memory does not fail.
    let _ = man.render(&mut page);
    let mut page = String::from_utf8_lossy(&page).into_owned();
    let is_root = name(command) == command.get_name();
    let mut more = Roff::new();
    if is_root {
        environment(&mut more);
    }
    exit_status(&mut more);
    if !is_root {
        more.control("SH", ["SEE ALSO"]);
        more.text([bold("mscclrs"), roman("(1), which has the environment variables")]);
    }
    page.push_str(&more.to_roff());
    page
}

fn environment(page: &mut Roff) {
    page.control("SH", ["ENVIRONMENT"]);
    page.text([roman("An empty value is as good as none. "), bold("mscclrs info")]);
    page.text([roman("shows the values, and what is wrong with them.")]);
    for variable in env::TABLE {
        page.control("TP", []);
        page.text([bold(variable.name)]);
        let alias = variable.alias.map(|alias| format!(" Also {alias}.")).unwrap_or_default();
        let (text, allowed) = (variable.text, variable.allowed());
        page.text([roman(format!(
            "{text} Allowed: {allowed} [default: {}].{alias}",
            variable.default
        ))]);
    }
}

fn exit_status(page: &mut Roff) {
    page.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in [
        ("0", "All is well; of info also where it finds problems."),
        ("1", "Something failed, or a result was wrong."),
        ("2", "A mistake on the command line or in the environment; one sentence says which."),
    ] {
        page.control("TP", []);
        page.text([bold(status)]);
        page.text([roman(meaning)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a page as far as words go: without what man uses for itself.
    fn plain(page: &str) -> String {
        page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
    }

    #[test]
    fn every_command_has_a_page_with_all_its_options() {
        let mut count = 0;
        visible(&definition(), &mut |path, command| {
            count += 1;
            let page = plain(&page(command));
            assert!(page.contains(&path.replace(' ', "-")), "{path}");
            for option in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let long = option.get_long().map(|long| format!("--{long}"));
                let value = option.get_value_names().map(|names| names[0].to_string());
                let spelled = long.or(value).expect("named");
                assert!(page.contains(&spelled), "{path}: {spelled}");
                let help =
                    option.get_long_help().or(option.get_help()).expect("explained").to_string();
                let first = help.split(['\'', '\n']).next().unwrap_or_default();
                assert!(page.contains(first), "{path} {spelled}: {first}");
            }
            for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(page.contains(&format!("{}(1)", name(below))), "{path}");
            }
            assert!(page.contains("EXIT STATUS") && !page.contains("inject-fault"), "{path}");
        });
        assert!(count > 8, "{count}");
    }

    #[test]
    fn the_first_page_has_every_variable() {
        let page = plain(&page(&definition()));
        for variable in env::TABLE {
            assert!(page.contains(variable.name) && page.contains(variable.text));
        }
    }
}

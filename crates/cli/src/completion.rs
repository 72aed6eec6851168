//! `mscclrs completion`: what a shell needs to complete this command's words, made of the command's
//! own definition.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::options::Cli;
use crate::output::print;
use crate::words::children;

/// Options of `completion`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompletionOptions {
    /// The shell to write for.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(options: &CompletionOptions) -> Result<ExitCode> {
    print(&script(options.shell))
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = for_people(&Cli::command());
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// The same without what is hidden, which not every shell's generator leaves out.
fn for_people(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let mut shown = Command::new(command.get_name().to_owned())
        .args(arguments)
        .subcommands(children(command).map(for_people))
        .subcommand_negates_reqs(command.is_subcommand_negates_reqs_set());
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    match command.get_version() {
        Some(version) => shown.version(version.to_owned()),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::words::visible;

    #[test]
    fn every_shell_knows_every_command_and_option() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).expect("text");
            visible(&Cli::command(), &mut |path, command| {
                assert!(script.contains(command.get_name()), "{shell}: {path}");
                for option in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                    let Some(long) = option.get_long() else { continue };
                    // fish writes `-l name`.
                    let spelled = [format!("--{long}"), format!("-l {long}")];
                    let known = spelled.iter().any(|spelled| script.contains(spelled));
                    assert!(known, "{shell}: {path} --{long}");
                }
            });
            assert!(!script.contains("inject-fault"), "{shell}: it is for tests only");
        }
    }
}

//! What a user did wrong, in one sentence that also says what is allowed; exit status 2.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::similar::{did_you_mean, remark, similar};
use crate::words::{self, children};

/// A mistake of the user's; one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Usage {
    text: String,
    of_all_ranks: bool,
}

impl Usage {
    pub(crate) fn new(text: String) -> Usage {
        Usage { text, of_all_ranks: false }
    }

    /// A mistake that every rank of the run knows of.
    pub(crate) fn of_all_ranks(text: String) -> Usage {
        Usage { text, of_all_ranks: true }
    }

    /// Whether it is enough that one rank says it.
    pub(crate) fn is_of_all_ranks(&self) -> bool {
        self.of_all_ranks
    }
}

/// Makes an [`anyhow::Error`] of a [`Usage`].
macro_rules! usage {
    ($($arg:tt)*) => { anyhow::Error::new($crate::usage::Usage::new(format!($($arg)*))) };
}
pub(crate) use usage;

/// clap's error as one sentence. `arguments` are the command line's, without the program.
pub(crate) fn sentence<C: CommandFactory>(error: &clap::Error, arguments: &[String]) -> String {
    let list = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let text = |kind| list(kind).join(", ");
    let root = C::command();
    let (command, path) = addressed(&root, arguments);
    let argument = spelling(command, &text(ContextKind::InvalidArg));
    let value = text(ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            format!("{argument}: {why}")
        }
        ErrorKind::InvalidValue => {
            let what = match value.as_str() {
                "" => format!("{argument} needs a value"),
                value => {
                    let allowed = list(ContextKind::ValidValue);
                    let meant = did_you_mean(value, allowed.iter().map(String::as_str));
                    format!("{argument}: '{value}' is not allowed{meant}")
                }
            };
            match text(ContextKind::ValidValue).as_str() {
                "" => format!("{what}; `{path} --help` says which are allowed"),
                _ => format!("{what}; {}", allowed(&list(ContextKind::ValidValue))),
            }
        }
        ErrorKind::TooManyValues => {
            format!("{argument} takes no value, so '{value}' is not allowed; allowed is {argument}")
        }
        ErrorKind::UnknownArgument => {
            let what = match argument.starts_with('-') {
                true => "has no option",
                false if command.has_subcommands() => {
                    return no_command(&root, command, &path, &argument);
                }
                false => "does not take",
            };
            let global = inherited(&root, arguments);
            let meant = meant_option(command, &global, &argument);
            format!("{path} {what} '{argument}'{meant}; {}", allowed(&options(command, &global)))
        }
        ErrorKind::InvalidSubcommand => {
            let given = text(ContextKind::InvalidSubcommand);
            no_command(&root, command, &path, &given)
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("{path} needs a command; {}", allowed(&commands(command)))
        }
        ErrorKind::MissingRequiredArgument if command.has_subcommands() => {
            format!("{path} needs a command; {}", allowed(&commands(command)))
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = list(ContextKind::InvalidArg);
            let words = match &missing[..] {
                [one] => values(command, one),
                _ => Vec::new(),
            };
            let needs = format!("{path} needs {}", missing.join(", "));
            if words.is_empty() { needs } else { format!("{needs}; {}", allowed(&words)) }
        }
        ErrorKind::ArgumentConflict => {
            let other = spelling(command, &text(ContextKind::PriorArg));
            if other.is_empty() || other == argument {
                format!("{argument} was given twice; allowed is once")
            } else {
                format!("{argument} and {other} exclude each other; allowed is one of them")
            }
        }
        _ => {
            let all = error.to_string();
            let first = all.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first);
            format!("{first}; `{path} --help` says what is allowed")
        }
    }
}

/// How people spell an argument that clap names `--minbytes <SIZE>` or `[COMMAND]...`: by its letter, if
/// it has one, and by what it takes if it has no name.
fn spelling(command: &Command, argument: &str) -> String {
    if let Some(taken) = argument.strip_prefix(['[', '<']) {
        let taken = taken.split([']', '>']).next().unwrap_or_default();
        return format!("<{taken}>");
    }
    let name = argument.split([' ', '[', '=']).next().unwrap_or_default();
    let known = command
        .get_arguments()
        .find(|known| known.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long)));
    match known.and_then(clap::Arg::get_short) {
        Some(short) => format!("-{short}"),
        None => name.to_owned(),
    }
}

/// The command that the arguments reach, and its name in full.
fn addressed<'a>(root: &'a Command, arguments: &[String]) -> (&'a Command, String) {
    let (mut command, mut path) = (root, root.get_name().to_owned());
    for argument in arguments {
        let Some(next) = command.find_subcommand(argument) else { break };
        command = next;
        path = format!("{path} {argument}");
    }
    (command, path)
}

/// Options that the command has from those above it but the first, whose options are everybody's.
fn inherited<'a>(root: &'a Command, arguments: &[String]) -> Vec<&'a clap::Arg> {
    let (mut command, mut found) = (root, Vec::new());
    for argument in arguments {
        let Some(next) = command.find_subcommand(argument) else { break };
        if !std::ptr::eq(command, root) {
            found.extend(command.get_arguments().filter(|argument| argument.is_global_set()));
        }
        command = next;
    }
    found
}

/// Says that a command has no such command below it.
pub(crate) fn no_command(root: &Command, here: &Command, path: &str, given: &str) -> String {
    let meant = meant_command(root, here, given);
    format!("{path} has no command '{given}'{meant}; {}", allowed(&commands(here)))
}

/// A command that was mistyped, or one that stands elsewhere, with its way there.
fn meant_command(root: &Command, here: &Command, given: &str) -> String {
    let near = similar(given, children(here).map(Command::get_name).chain(["help"]));
    if !near.is_empty() {
        return remark(&near);
    }
    let mut elsewhere = Vec::new();
    words::visible(root, &mut |path, _| elsewhere.push(path.to_owned()));
    let same = |path: &&String| path.rsplit(' ').next() == Some(given);
    remark(&elsewhere.iter().filter(same).map(String::as_str).collect::<Vec<_>>())
}

/// An option that was mistyped.
fn meant_option(command: &Command, global: &[&clap::Arg], given: &str) -> String {
    let Some(name) = given.strip_prefix("--") else { return String::new() };
    let all = command.get_arguments().chain(global.iter().copied());
    let visible = all.filter(|argument| !argument.is_hide_set());
    let version = command.get_version().map(|_| "version");
    let long = visible.filter_map(clap::Arg::get_long).chain(["help"]).chain(version);
    let spelled: Vec<String> = similar(name, long).iter().map(|name| format!("--{name}")).collect();
    remark(&spelled.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What an argument that clap names `<SHELL>` takes, where there are a few words only.
fn values(command: &Command, argument: &str) -> Vec<String> {
    let name = argument.trim_start_matches('<').split('>').next().unwrap_or_default();
    let is_it = |known: &&clap::Arg| {
        known.get_value_names().is_some_and(|names| names.iter().any(|known| known == name))
    };
    let known = command.get_positionals().find(is_it);
    let values = known.map(clap::Arg::get_possible_values).unwrap_or_default();
    values.iter().map(|value| value.get_name().to_owned()).collect()
}

/// The commands below this one, and the one of somebody else that it runs, if it does.
fn commands(command: &Command) -> Vec<String> {
    let names = children(command).map(|command| command.get_name().to_owned());
    let others = command.get_positionals().filter(|taken| taken.is_last_set());
    let name = |taken: &clap::Arg| taken.get_value_names().map(|names| format!("-- {}", names[0]));
    names.chain(others.filter_map(name)).collect()
}

fn options(command: &Command, global: &[&clap::Arg]) -> Vec<String> {
    let mut names = Vec::new();
    let all = command.get_arguments().chain(global.iter().copied());
    for argument in all.filter(|argument| !argument.is_hide_set()) {
        match (argument.get_short(), argument.get_long()) {
            (Some(short), _) => names.push(format!("-{short}")),
            (None, Some(long)) => names.push(format!("--{long}")),
            (None, None) => {}
        }
    }
    names.push("--help".into());
    names.extend(command.get_version().map(|_| "--version".into()));
    names
}

fn allowed(words: &[String]) -> String {
    let are = if words.len() == 1 { "is" } else { "are" };
    format!("allowed {are} {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::*;

    #[derive(Clone, Debug, ValueEnum)]
    enum Colour {
        Blue,
        Red,
    }

    #[derive(Debug, Parser)]
    #[command(name = "paint")]
    struct Paint {
        #[arg(value_enum, value_name = "COLOUR")]
        _colour: Colour,
        #[arg(required = true, num_args = 1.., value_name = "WALL")]
        _walls: Vec<String>,
    }

    fn said(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let program = std::iter::once("paint".to_owned());
        let error = Paint::try_parse_from(program.chain(arguments.clone())).expect_err("wrong");
        sentence::<Paint>(&error, &arguments)
    }

    #[test]
    fn what_is_missing_is_said_with_its_words_where_there_are_a_few() {
        assert_eq!(said(&["blue"]), "paint needs <WALL>...");
        assert_eq!(said(&[]), "paint needs <COLOUR>, <WALL>...");
        assert_eq!(
            said(&["blu", "wall"]),
            "<COLOUR>: 'blu' is not allowed (did you mean 'blue'?); allowed are blue, red"
        );
    }
}

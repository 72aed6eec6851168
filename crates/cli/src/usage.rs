//! What a user did wrong, in one sentence that also says what is allowed; exit status 2.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

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
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
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
                value => format!("{argument}: '{value}' is not allowed"),
            };
            match text(ContextKind::ValidValue).as_str() {
                "" => format!("{what}; `{path} --help` says which are allowed"),
                allowed if allowed.contains(',') => format!("{what}; allowed are {allowed}"),
                allowed => format!("{what}; allowed is {allowed}"),
            }
        }
        ErrorKind::TooManyValues => {
            format!("{argument} takes no value, so '{value}' is not allowed; allowed is {argument}")
        }
        ErrorKind::UnknownArgument => {
            let what = if argument.starts_with('-') { "has no option" } else { "does not take" };
            format!("{path} {what} '{argument}'; allowed are {}", options(command))
        }
        ErrorKind::InvalidSubcommand => {
            let given = text(ContextKind::InvalidSubcommand);
            format!("{path} has no command '{given}'; allowed are {}", commands(command))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("{path} needs a command; allowed are {}", commands(command))
        }
        ErrorKind::MissingRequiredArgument => {
            format!("{path} needs {}", text(ContextKind::InvalidArg))
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

/// How people spell an argument that clap names `--minbytes <SIZE>`: by its letter, if it has one.
fn spelling(command: &Command, argument: &str) -> String {
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

fn commands(command: &Command) -> String {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    visible.map(|command| command.get_name().to_owned()).collect::<Vec<_>>().join(", ")
}

fn options(command: &Command) -> String {
    let mut names = Vec::new();
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        match (argument.get_short(), argument.get_long()) {
            (Some(short), _) => names.push(format!("-{short}")),
            (None, Some(long)) => names.push(format!("--{long}")),
            (None, None) => {}
        }
    }
    names.push("--help".into());
    names.join(", ")
}

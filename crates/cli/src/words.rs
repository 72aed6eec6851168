//! The command's definition as a tree of words.

use clap::Command;

/// Calls `see` for a command and all below it that people see, with their whole names.
pub(crate) fn visible(root: &Command, see: &mut dyn FnMut(&str, &Command)) {
    walk(root, root.get_name(), see);
}

fn walk(command: &Command, path: &str, see: &mut dyn FnMut(&str, &Command)) {
    see(path, command);
    for next in children(command) {
        walk(next, &format!("{path} {}", next.get_name()), see);
    }
}

/// The commands right below this one that people see.
pub(crate) fn children(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

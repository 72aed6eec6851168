//! Ranks on several hosts: each host's part is started there by ssh, with this command.
//!
//! The secret travels over standard input. Ranks are numbered host by host, in the order of the list.

mod command;
mod list;
mod print;
mod run;
mod shell;

pub(super) use list::{HostList, Span};
pub(super) use print::print;
pub(super) use run::run;

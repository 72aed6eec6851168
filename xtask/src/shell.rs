//! Paths of the workspace, and commands that show themselves.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use mscclrs_env::foreign;

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    // cargo sets it when it runs this program; a program that is run by itself has its own.
    let own =
        foreign::CARGO_MANIFEST_DIR.path().unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    own.parent().map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    match foreign::CARGO_TARGET_DIR.path() {
        Some(path) => root().join(path),
        None => root().join("target"),
    }
}

/// cargo in the workspace's folder.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(foreign::CARGO.path().unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Whether a command runs and succeeds; what it writes is thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Shows a command, runs it to its end, and fails if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    show(command);
    let status = command.status().with_context(|| format!("{} does not start", line(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", line(command));
    }
    Ok(())
}

/// As [`run`], and gives what the command wrote, without colours, while passing it on.
pub(crate) fn run_and_read(command: &mut Command) -> Result<String> {
    show(command);
    if std::io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("{} does not start", line(command)))?;
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let (out, err) = std::thread::scope(|scope| {
        let out = scope.spawn(|| stdout.map(|from| pass_on(from, std::io::stdout())));
        let err = stderr.map(|from| pass_on(from, std::io::stderr()));
        (out.join().ok().flatten(), err)
    });
    let status = child.wait().context("waiting for a command")?;
    if !status.success() {
        bail!("`{}` failed ({status})", line(command));
    }
    Ok(out.unwrap_or_default() + &err.unwrap_or_default())
}

fn pass_on(from: impl std::io::Read, mut to: impl Write) -> String {
    let mut text = String::new();
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    while from.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
        // A closed terminal does not stop the tests.
        let _ = to.write_all(&bytes).and_then(|()| to.flush());
        text.push_str(&without_colours(&String::from_utf8_lossy(&bytes)));
        bytes.clear();
    }
    text
}

/// Takes escape sequences out of a terminal's text.
pub(crate) fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\x1b' {
            plain.push(character);
            continue;
        }
        if characters.next() == Some('[') {
            // The sequence ends with its first letter.
            characters.by_ref().find(char::is_ascii_alphabetic);
        }
    }
    plain
}

fn show(command: &Command) {
    eprintln!("$ {}", line(command));
}

fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words =
        vec![program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_taken_out() {
        assert_eq!(without_colours("\x1b[32;1m Summary\x1b[0m [1s]"), " Summary [1s]");
        assert_eq!(without_colours("plain"), "plain");
    }
}

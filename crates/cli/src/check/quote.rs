//! Words as a shell reads them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The word, quoted if it has to be; a shell reads exactly its bytes.
pub(super) fn word(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:=,+@%".contains(byte);
    let bytes = word.as_bytes();
    // What has a sign of equality in front would set a variable.
    let sets = bytes.contains(&b'=') && !bytes.starts_with(b"-");
    match word.to_str() {
        Some(text) if !bytes.is_empty() && bytes.iter().all(is_plain) && !sets => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => {
            let escaped = bytes.iter().map(|&byte| match byte {
                b'\'' | b'\\' => format!("\\{}", char::from(byte)),
                b' '..=b'~' => char::from(byte).to_string(),
                other => format!("\\x{other:02x}"),
            });
            format!("$'{}'", escaped.collect::<String>())
        }
    }
}

/// Words with spaces between.
pub(super) fn words<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    words.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_what_was_meant() {
        let words: Vec<&OsStr> = [
            "cargo",
            "--features=a,b",
            "",
            "two words",
            "it's",
            "$HOME",
            "a\nb",
            "A=1",
            "\\",
            "*",
            "ü",
        ]
        .map(OsStr::new)
        .into_iter()
        .chain([OsStr::from_bytes(b"\xff'\\")])
        .collect();
        if Command::new("bash").arg("--version").output().is_err() {
            return;
        }
        let script = format!("printf '%s\\0' {}", super::words(words.iter().copied()));
        let output = Command::new("bash").args(["-c", &script]).output().expect("bash");
        let read: Vec<_> = output.stdout.split(|&byte| byte == 0).collect();
        let meant: Vec<_> = words.iter().map(|word| word.as_bytes()).chain([&b""[..]]).collect();
        assert_eq!(read, meant, "{script}");
        assert_eq!(word(OsStr::new("target/debug/race")), "target/debug/race");
    }
}

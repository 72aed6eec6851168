//! Words for a POSIX shell.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The word such that a shell reads exactly these bytes; quoted only where it has to be.
pub(super) fn quote(word: impl AsRef<OsStr>) -> Vec<u8> {
    let word = word.as_ref().as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_@%+:,./-".contains(byte);
    if !word.is_empty() && word.iter().all(is_plain) {
        return word.to_vec();
    }
    let mut quoted = vec![b'\''];
    for &byte in word {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let words: [&[u8]; 12] = [
            b"plain-word_1.0/x",
            b"",
            b" ",
            b"it's",
            b"'",
            b"a b\tc",
            b"$HOME `id` $(id) \\ \"",
            b"line\nbreak\n",
            b"*?[a]~{b}!#&;|<>",
            b"-n",
            b"a=b",
            b"\xff\xfe not text",
        ];
        for shell in ["sh", "bash"] {
            for word in words {
                let script = [b"printf %s ", &quote(OsStr::from_bytes(word))[..]].concat();
                let output = Command::new(shell).arg("-c").arg(OsStr::from_bytes(&script)).output();
                let output = output.unwrap();
                assert_eq!(output.stdout, word, "{shell}: {}", script.escape_ascii());
            }
        }
    }

    #[test]
    fn twice_quoted_words_survive_two_shells() {
        let word = OsStr::new("it's $HOME \\'");
        let inner = [b"printf %s ", &quote(word)[..]].concat();
        let outer = [b"sh -c ", &quote(OsStr::from_bytes(&inner))[..]].concat();
        let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&outer)).output().unwrap();
        assert_eq!(output.stdout, word.as_bytes());
    }
}

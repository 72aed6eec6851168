//! What the ranks of a launch prove to each other. It is never written to a command line, where every
//! user of the host can read it.

use std::io::Read;

use anyhow::{Context, Result};
use mscclrs_core::env;

use crate::usage::usage;

/// As [`env::SECRET`] asks.
const SHORTEST: usize = 8;
/// Longer ones are a mistake, such as a file.
const LONGEST: usize = 4096;

/// A new secret of 256 bits.
pub(super) fn fresh() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context("no random bytes for a secret")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The secret of the environment, for one part of a larger launch.
pub(super) fn from_environment() -> Result<String> {
    let secret = env::SECRET.text().ok_or_else(|| {
        usage!(
            "a part of a larger launch needs its secret; allowed are {} in the environment and \
             --secret-stdin",
            env::SECRET.name
        )
    })?;
    check(secret, env::SECRET.name)
}

/// The first line of the input; nothing behind it is read.
pub(super) fn read(mut from: impl Read) -> Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while from.read(&mut byte).context("the secret cannot be read")? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
        if line.len() > LONGEST {
            break;
        }
    }
    check(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned(), "--secret-stdin")
}

fn check(secret: String, from: &str) -> Result<String> {
    if (SHORTEST..=LONGEST).contains(&secret.len()) {
        return Ok(secret);
    }
    Err(usage!(
        "{from}: the secret has {} bytes; allowed are {SHORTEST} to {LONGEST} in one line",
        secret.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_and_never_the_same() {
        let (one, other) = (fresh().unwrap(), fresh().unwrap());
        assert_eq!(one.len(), 64);
        assert_ne!(one, other);
    }

    #[test]
    fn a_secret_is_one_line_and_what_follows_is_left() {
        let mut input = &b"long enough\r\nsignal 15\n"[..];
        assert_eq!(read(&mut input).unwrap(), "long enough");
        assert_eq!(input, b"signal 15\n");
        assert_eq!(read(&b"without an end"[..]).unwrap(), "without an end");
        for wrong in [&b""[..], b"short\n", &[b'x'; 5000]] {
            assert!(read(wrong).unwrap_err().to_string().contains("allowed are 8 to 4096"));
        }
    }
}

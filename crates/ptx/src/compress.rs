//! zstd, in both directions.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::At;
use crate::{Error, Result};

const SCRIPT: &str = "import sys, zstandard
sys.stdout.buffer.write(zstandard.ZstdCompressor(level=19).compress(sys.stdin.buffer.read()))";

/// Compresses by Python's zstd, or by the encoder in Rust where there is none.
pub(crate) fn compress(python: Option<&Path>, bytes: &[u8]) -> Result<Vec<u8>> {
    let Some(python) = python else {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        return Ok(ruzstd::encoding::compress_to_vec(bytes, level));
    };
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .at(python)?;
    // The script reads all before it writes, so neither pipe can fill up against the other.
    if let Some(mut input) = child.stdin.take() {
        input.write_all(bytes).at(python)?;
    }
    let output = child.wait_with_output().at(python)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(Error::Command {
        what: "compressing".to_owned(),
        status: output.status.to_string(),
        output: "its message is above".to_owned(),
        command: format!("{} -c '{SCRIPT}'", python.display()),
    })
}

/// Unpacks what [`compress`] made; `path` is for the error.
pub(crate) fn decompress(bytes: &[u8], path: &Path) -> Result<Vec<u8>> {
    // The decoder's own words are about blocks and tables, which nobody can act on.
    let damaged = || std::io::Error::other("not a whole zstd file; make it again");
    let mut unpacked = Vec::new();
    let mut decoder =
        ruzstd::decoding::StreamingDecoder::new(bytes).map_err(|_| damaged()).at(path)?;
    decoder.read_to_end(&mut unpacked).map_err(|_| damaged()).at(path)?;
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rust_packs_comes_back() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        let packed = compress(None, &bytes).unwrap();
        assert!(packed.len() < bytes.len());
        assert_eq!(decompress(&packed, Path::new("x")).unwrap(), bytes);
    }

    #[test]
    fn damaged_file_is_named() {
        let error = decompress(b"no zstd", Path::new("a.cubin.zst")).unwrap_err().to_string();
        assert!(error.contains("a.cubin.zst"), "{error}");
    }
}

//! `cargo xtask gpu bundle`: what a machine with GPUs needs, and nothing it would have to build.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, root, run, target};

/// Package and program of each file.
const PROGRAMS: [(&str, &str); 2] =
    [("mscclrs-cli", "mscclrs"), ("mscclrs-conformance", "mscclrs-conformance")];
/// The oldest C library that the programs have to run with.
const GLIBC: (u32, u32) = (2, 39);
const MOST_BYTES: u64 = 48 << 20;

/// Builds, strips and gathers.
pub(crate) fn bundle() -> Result<()> {
    let mut arguments = vec!["build", "--release"];
    for (package, program) in PROGRAMS {
        arguments.extend(["--package", package, "--bin", program]);
    }
    run(&mut cargo(&arguments))?;
    let folder = root().join(".gpu");
    // Only what this command puts there: an older bundle's files would be taken for this one's.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut total = 0;
    for (_, program) in PROGRAMS {
        let from = target().join("release").join(program);
        let to = folder.join(program);
        run(Command::new("strip").arg("-o").arg(&to).arg(&from))?;
        let bytes = fs::read(&to).with_context(|| to.display().to_string())?;
        let needs = newest_glibc(&bytes);
        if needs > GLIBC {
            bail!(
                "{} needs glibc {}.{}, more than {}.{}; build on an older system",
                to.display(),
                needs.0,
                needs.1,
                GLIBC.0,
                GLIBC.1
            );
        }
        println!("{:>10} bytes, glibc {}.{}: {}", bytes.len(), needs.0, needs.1, shown(&to));
        total += bytes.len() as u64;
    }
    println!("{total:>10} bytes in all");
    if total > MOST_BYTES {
        bail!("the bundle is larger than {MOST_BYTES} bytes");
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The highest version among the symbol versions `GLIBC_2.34` that a program names.
fn newest_glibc(program: &[u8]) -> (u32, u32) {
    const MARK: &[u8] = b"GLIBC_";
    let mut newest = (0, 0);
    for (start, _) in program.windows(MARK.len()).enumerate().filter(|(_, bytes)| *bytes == MARK) {
        let text = &program[start + MARK.len()..];
        let end = text.iter().position(|b| !b.is_ascii_digit() && *b != b'.').unwrap_or(text.len());
        let text = String::from_utf8_lossy(&text[..end]);
        let mut parts = text.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        newest = newest.max((parts.next().unwrap_or(0), parts.next().unwrap_or(0)));
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_symbol_version_counts() {
        assert_eq!(newest_glibc(b"..\0GLIBC_2.9\0x\0GLIBC_2.34\0GLIBC_PRIVATE\0"), (2, 34));
        assert_eq!(newest_glibc(b"static"), (0, 0));
    }
}

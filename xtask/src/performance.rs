//! `cargo xtask performance`: the tables of docs/src/performance.md, made of the measured files.
//!
//! Invariant: what stands between the two marks of the page is a function of the files in
//! docs/performance, so no figure on it can differ from what was measured.

mod measured;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::page::Page;
use crate::shell::root;
use measured::Measured;

const PAGE: Page = Page { command: "performance", path: "docs/src/performance.md" };
/// What stands there while nothing has been measured.
const NONE: &str = "There are no figures yet.\n";

/// Writes the tables into the page.
pub(crate) fn write() -> Result<()> {
    PAGE.write(&tables(&folder())?)
}

/// Fails if the page is not what the files make.
pub(crate) fn check() -> Result<()> {
    PAGE.check(&tables(&folder())?, "the files in docs/performance")
}

fn folder() -> PathBuf {
    root().join("docs/performance")
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The text for all files of a folder, in the order of their names; a folder that is not there has
/// none.
fn tables(folder: &Path) -> Result<String> {
    let mut paths = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            paths.push(entry?.path());
        }
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut sections = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let section = Measured::parse(&read(&path)?).and_then(|file| table::section(&name, &file));
        sections.push(section.with_context(|| path.display().to_string())?);
    }
    Ok(if sections.is_empty() { NONE.to_owned() } else { sections.join("\n") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_what_the_measured_files_make() {
        check().unwrap();
    }

    #[test]
    fn figures_of_a_file_stand_in_its_table() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        assert!(tables(&fixtures).unwrap().contains("2.19"));
    }

    #[test]
    fn folder_without_files_says_so() {
        assert_eq!(tables(Path::new("/nowhere/at/all")).unwrap(), NONE);
    }
}

//! `cargo xtask performance`: the tables of docs/src/performance.md, made of the measured files.
//!
//! Invariant: what stands between the two marks of the page is a function of the files in
//! docs/performance, so no figure on it can differ from what was measured.

mod measured;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::root;
use measured::Measured;

const BEGIN: &str = "<!-- made by `cargo xtask performance`: begin -->";
const END: &str = "<!-- made by `cargo xtask performance`: end -->";
/// What stands there while nothing has been measured.
const NONE: &str = "There are no figures yet.\n";

/// Writes the tables into the page.
pub(crate) fn write() -> Result<()> {
    let path = page();
    let old = read(&path)?;
    let new = replaced(&old, &tables(&folder())?)?;
    if new != old {
        fs::write(&path, new).with_context(|| path.display().to_string())?;
        println!("{}: written", path.display());
    }
    Ok(())
}

/// Fails if the page is not what the files make.
pub(crate) fn check() -> Result<()> {
    let path = page();
    let is = read(&path)?;
    let should = replaced(&is, &tables(&folder())?)?;
    if let Some(difference) = first_difference(&is, &should) {
        bail!(
            "{}: {difference}; change the files in {}, run `cargo xtask performance` and commit both",
            path.display(),
            folder().display()
        );
    }
    println!("the page of figures is what the measured files make");
    Ok(())
}

fn page() -> PathBuf {
    root().join("docs/src/performance.md")
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

/// The page with other text between its marks.
fn replaced(page: &str, text: &str) -> Result<String> {
    let inside = page.split_once(BEGIN).and_then(|(head, rest)| {
        let (_, tail) = rest.split_once(END)?;
        Some((head, tail))
    });
    let Some((head, tail)) = inside else {
        bail!("the page lacks the lines `{BEGIN}` and `{END}`");
    };
    Ok(format!("{head}{BEGIN}\n\n{text}\n{END}{tail}"))
}

fn first_difference(is: &str, should: &str) -> Option<String> {
    if is == should {
        return None;
    }
    let (mut old, mut new) = (is.lines(), should.lines());
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (old, new) if old == new => {}
            (old, new) => {
                let quoted =
                    |line: Option<&str>| line.map_or("nothing".into(), |l| format!("`{l}`"));
                return Some(format!("line {number} is {}, not {}", quoted(old), quoted(new)));
            }
        }
    }
    Some("its line ends differ".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_what_the_measured_files_make() {
        check().unwrap();
    }

    #[test]
    fn changed_figure_is_found_with_its_line() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let page = format!("# Title\n\n{BEGIN}\nold\n{END}\nmore\n");
        let page = replaced(&page, &tables(&fixtures).unwrap()).unwrap();
        assert_eq!(first_difference(&page, &page), None);
        let wrong = page.replacen("2.19", "2.18", 1);
        assert_ne!(wrong, page);
        let difference = first_difference(&wrong, &page).unwrap();
        assert!(difference.starts_with("line ") && difference.contains("2.18"), "{difference}");
        assert!(replaced("no marks", "x").is_err());
    }

    #[test]
    fn folder_without_files_says_so() {
        assert_eq!(tables(Path::new("/nowhere/at/all")).unwrap(), NONE);
    }
}

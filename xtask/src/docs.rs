//! The pages are true to the files they speak of: links lead somewhere, and quoted code is code that
//! is compiled and run elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::root;

fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in [root(), root().join("docs/src")] {
        for entry in fs::read_dir(folder).unwrap() {
            pages.push(entry.unwrap().path());
        }
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages
}

/// The targets of `](..)` that are files of the project.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// The code that stands between "```" and "```". What programs print is text: their tests hold it.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    text.split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.split_once('\n'))
        .filter(|(language, _)| *language != "text")
        .map(|(_, code)| code)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn assert_quotes(page: &str, files: &[&str]) {
    let text = read(&root().join(page));
    let sources: Vec<_> = files.iter().map(|file| read(&root().join(file))).collect();
    assert!(blocks(&text).count() > 0);
    for block in blocks(&text) {
        let quoted = sources.iter().any(|source| source.contains(block.trim_end()));
        assert!(quoted, "{page}: this stands in none of {}:\n{block}", files.join(", "));
    }
}

#[test]
fn links_lead_to_files() {
    for page in pages() {
        let folder = page.parent().unwrap();
        for link in links(&read(&page)) {
            assert!(folder.join(link).exists(), "{}: there is no {link}", page.display());
        }
    }
}

#[test]
fn quoted_code_is_that_of_the_examples() {
    assert_quotes("docs/src/quick-start.md", &["examples/allreduce.rs"]);
    let crate_of_kernels = [
        "examples/ping_pong/Cargo.toml",
        "examples/ping_pong/src/lib.rs",
        "examples/ping_pong/src/main.rs",
    ];
    assert_quotes("docs/src/own-kernel.md", &crate_of_kernels);
    assert_quotes("docs/src/checking.md", &["examples/race/src/lib.rs"]);
}

#[test]
fn every_page_is_in_the_book() {
    let summary = read(&root().join("docs/src/SUMMARY.md"));
    for entry in fs::read_dir(root().join("docs/src")).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") && name != "SUMMARY.md" {
            assert!(links(&summary).any(|link| link == name), "{name} is not in SUMMARY.md");
        }
    }
}

/// The variants of the enum `name` in a source file.
fn variants(source: &str, name: &str) -> Vec<String> {
    let start = source.find(&format!("pub enum {name} {{")).expect(name);
    source[start..]
        .lines()
        .skip(1)
        .take_while(|line| *line != "}")
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned())
        .collect()
}

#[test]
fn every_error_has_its_line_and_every_line_its_error() {
    let page = read(&root().join("docs/src/when-it-fails.md"));
    for (heading, source) in [
        ("mscclrs_core::Error", "crates/core/src/error.rs"),
        ("mscclrs_core::RendezvousError", "crates/core/src/bootstrap/verdict.rs"),
        ("mscclrs_collectives::Error", "crates/collectives/src/error.rs"),
        ("mscclrs_gpu::Error", "crates/gpu/src/error.rs"),
    ] {
        let (_, name) = heading.split_once("::").unwrap();
        let mut wanted = variants(&read(&root().join(source)), name);
        wanted.sort();
        let start = page.find(&format!("## `{heading}`")).expect(heading);
        let section = page[start + 3..].split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let there: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(there, wanted, "the rows of {heading}, in the order of the alphabet");
    }
}

//! The sources keep rules that no compiler knows.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::root;

/// Files that end in `.rs`, in a folder and all below it but those that a build makes.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name != "target" && !name.starts_with('.') {
                rust_files(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The lines of code, without comments, that read an environment variable.
fn reads_of_the_environment(source: &str) -> Vec<&str> {
    let calls = ["env::var", "var_os(", "vars_os(", "env::vars", "getenv", "option_env!"];
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.filter(|line| calls.iter().any(|call| line.contains(call))).collect()
}

/// The registry, and tests of whole programs, which tell their children what to do.
fn may_read(path: &Path) -> bool {
    let path = path.strip_prefix(root()).unwrap();
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    path.starts_with("crates/env/src")
        || path == Path::new("xtask/src/sources.rs")
        || (parts[0] == "crates" && parts[2] == "tests")
        || path.starts_with("tests/tests")
}

#[test]
fn the_environment_is_read_through_the_registry_only() {
    let mut files = Vec::new();
    for folder in ["crates", "examples", "tests", "xtask"] {
        rust_files(&root().join(folder), &mut files);
    }
    assert!(files.len() > 100, "{}", files.len());
    for path in files.iter().filter(|path| !may_read(path)) {
        let reads = reads_of_the_environment(&fs::read_to_string(path).unwrap()).join("\n");
        assert!(
            reads.is_empty(),
            "{}: give the variable an entry in crates/env and read it through that:\n{reads}",
            path.display()
        );
    }
}

#[test]
fn a_read_is_seen() {
    for line in [
        "let x = std::env::var(\"X\");",
        "env::var_os(NAME)",
        "for (name, value) in std::env::vars() {",
        "use std::env::var;",
        "unsafe { libc::getenv(name) }",
        "const X: Option<&str> = option_env!(\"X\");",
    ] {
        assert_eq!(reads_of_the_environment(line), [line]);
    }
    let others = "// std::env::var\nenv::TIMEOUT.text();\nenv!(\"CARGO_PKG_VERSION\");";
    assert!(reads_of_the_environment(others).is_empty());
}

//! The record beside a module's device files: from what, by what, and what came out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::At;
use crate::{Error, PTX_ARCHITECTURES, Result};

/// What a build records, as `NAME.json` beside the device files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name of the crate's library.
    pub module: String,
    /// The compiler's name for itself.
    pub rustc: String,
    /// The assembler's version; absent where there was none.
    pub ptxas: Option<String>,
    /// What went in.
    pub sources: SourceRecord,
    /// SHA-256 of each file's content before compression.
    pub images: BTreeMap<String, String>,
    /// The entries.
    pub entries: BTreeMap<String, EntryRecord>,
}

/// The sources of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRecord {
    /// SHA-256 of the files, their names and the compiler's options.
    pub sha256: String,
    /// Files that the GPU code is made of, from the root of the workspace. A new file can only come in
    /// by a change to one of these.
    pub files: Vec<String>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryRecord {
    /// Layout hash of the parameters, in hexadecimal.
    pub abi: String,
    /// Most lanes a block.
    pub max_threads: u32,
    /// Registers a lane, by architecture.
    pub registers: BTreeMap<String, u32>,
    /// Bytes of stack or spills a lane, by architecture: only a draft has any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spills: BTreeMap<String, u32>,
}

impl Manifest {
    /// Where the record of a module lies.
    pub fn path(folder: &Path, module: &str) -> PathBuf {
        folder.join(format!("{module}.json"))
    }

    /// Reads a record.
    pub fn read(path: &Path) -> Result<Manifest> {
        let text = fs::read_to_string(path).at(path)?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Manifest { path: path.to_owned(), why: error.to_string() })
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::Manifest { path: path.to_owned(), why: error.to_string() })?;
        text.push('\n');
        fs::write(path, text).at(path)
    }
}

impl SourceRecord {
    /// Records files under `root`; others (the compiler's own, a registry's) are left out, since
    /// compiler and lock file name them. Each crate's Cargo.toml is added.
    pub(crate) fn of(root: &Path, files: &[PathBuf]) -> Result<SourceRecord> {
        let mut names = Vec::new();
        for file in files {
            let Ok(name) = file.strip_prefix(root) else { continue };
            names.push(name.display().to_string());
            let folders = name.ancestors().skip(1);
            let manifest = folders.map(|folder| folder.join("Cargo.toml"));
            names.extend(
                manifest
                    .filter(|manifest| root.join(manifest).is_file())
                    .take(1)
                    .map(|manifest| manifest.display().to_string()),
            );
        }
        names.sort();
        names.dedup();
        let sha256 = hash_sources(root, &names)?;
        Ok(SourceRecord { sha256, files: names })
    }

    /// Whether the files under `root` are still what was recorded. A file that is gone is a change.
    pub fn is_current(&self, root: &Path) -> bool {
        hash_sources(root, &self.files).is_ok_and(|hash| hash == self.sha256)
    }
}

fn hash_sources(root: &Path, names: &[String]) -> Result<String> {
    let mut hash = Sha256::new();
    for architecture in PTX_ARCHITECTURES {
        hash.update(architecture.recipe());
    }
    for name in names {
        let path = root.join(name);
        let bytes = fs::read(&path).at(&path)?;
        hash.update(format!("\n{name} {}\n", bytes.len()));
        hash.update(bytes);
    }
    Ok(hex(&hash.finalize()))
}

/// SHA-256 of an image, as a record has it.
pub fn hash_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_of_a_source_shows() {
        let root = std::env::temp_dir().join(format!("mscclrs-manifest-{}", std::process::id()));
        fs::create_dir_all(root.join("k/src")).unwrap();
        fs::write(root.join("k/Cargo.toml"), "[package]").unwrap();
        fs::write(root.join("k/src/lib.rs"), "one").unwrap();
        let files = [root.join("k/src/lib.rs"), PathBuf::from("/usr/core/lib.rs")];
        let record = SourceRecord::of(&root, &files).unwrap();
        assert_eq!(record.files, ["k/Cargo.toml", "k/src/lib.rs"]);
        assert!(record.is_current(&root));
        fs::write(root.join("k/src/lib.rs"), "two").unwrap();
        assert!(!record.is_current(&root));
        fs::remove_dir_all(&root).unwrap();
        assert!(!record.is_current(&root));
    }
}

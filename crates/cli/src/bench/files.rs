//! Files of results: whole, or as they were before.
//!
//! Invariant: a file is only ever replaced by one that is complete. It is written under another name in
//! the same folder and renamed, so that a run which fails or is interrupted changes nothing. What is no
//! regular file (a pipe, a device) cannot be replaced and is written to.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{Access, access};

use crate::output::written;
use crate::usage::usage;

/// An error if a file that results go to cannot be written, before any rank starts. Changes nothing.
pub(crate) fn require_writable(option: &str, path: &Path) -> Result<()> {
    check(path).map_err(|why| {
        usage!(
            "{option}: '{}' cannot be written ({why}); allowed is a file in a folder that exists and \
             that you may write to",
            path.display()
        )
    })
}

/// Replaces the file, or makes it.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    written(replace(path, text.as_bytes()), &path.display().to_string())
}

/// Whether both name one file, however they are spelt.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    target(one) == target(other)
}

fn check(path: &Path) -> io::Result<()> {
    let target = target(path);
    match fs::metadata(&target) {
        Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => access(&target, Access::WRITE_OK)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if is_replaced(&target) {
        access(folder(&target), Access::WRITE_OK | Access::EXEC_OK)?;
    }
    Ok(())
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = target(path);
    if !is_replaced(&target) {
        return File::options().write(true).open(&target)?.write_all(bytes);
    }
    let mut file = tempfile::Builder::new()
        .prefix(".mscclrs-")
        // As any new file's; the process's mask takes away from it.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder(&target))?;
    file.write_all(bytes)?;
    if let Ok(old) = fs::metadata(&target) {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.persist(&target).map_err(|failed| failed.error)?;
    Ok(())
}

/// The file itself, where the path is a link to it.
fn target(path: &Path) -> PathBuf {
    if let Ok(target) = fs::canonicalize(path) {
        return target;
    }
    match (fs::canonicalize(folder(path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn is_replaced(target: &Path) -> bool {
    fs::metadata(target).map_or(true, |found| found.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("read").map(|entry| entry.expect("entry"));
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_file_is_replaced_and_keeps_its_permissions() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("rows.json");
        write(&path, "first").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("changed");
        write(&path, "second").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "second");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
        assert_eq!(names(folder.path()), ["rows.json"]);
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().expect("folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").expect("written");
        std::os::unix::fs::symlink("file", &link).expect("linked");
        assert!(is_same(&file, &link));
        write(&link, "new").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "new");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    }

    #[test]
    fn a_device_is_written_to() {
        let null = Path::new("/dev/null");
        require_writable("--json", null).expect("a device");
        write(null, "text").expect("written");
        assert!(!fs::metadata(null).expect("there").is_file());
        let full = write(Path::new("/dev/full"), "text").unwrap_err();
        assert!(format!("{full:#}").starts_with("/dev/full cannot be written"), "{full:#}");
    }

    #[test]
    fn looking_whether_a_file_can_be_written_makes_none() {
        let folder = tempfile::tempdir().expect("folder");
        require_writable("--json", &folder.path().join("new.json")).expect("can be made");
        assert!(names(folder.path()).is_empty());
        for (path, why) in [
            (folder.path().to_owned(), "directory"),
            (folder.path().join("none/new.json"), "No such file"),
            (PathBuf::from("/proc/new.json"), "cannot be written"),
        ] {
            // Root may write anywhere but where nobody can.
            if path.starts_with("/proc") {
                assert!(write(&path, "text").is_err());
                continue;
            }
            let error = require_writable("--json", &path).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("allowed is a file"), "{error}");
        }
    }

    #[test]
    fn one_file_has_many_names() {
        let folder = tempfile::tempdir().expect("folder");
        let plain = folder.path().join("a.svg");
        assert!(is_same(&plain, &folder.path().join("./a.svg")));
        assert!(!is_same(&plain, &folder.path().join("b.svg")));
    }
}

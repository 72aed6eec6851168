//! How much memory the control groups of this process allow.
//!
//! A limit holds for all processes of a group and of the groups below it, so the limits of every group
//! from the process's own up to the outermost that can be seen hold for it. Who goes past one is killed
//! rather than refused: the limit has to be known before.

use std::fmt;
use std::path::{Component, Path, PathBuf};

/// What a control group allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// The most that its processes may use together.
    pub bytes: u64,
    /// What they use, with what the system keeps of files and can give back.
    pub used_bytes: u64,
    /// Where the limit is set.
    pub file: PathBuf,
}

/// As a sentence of who may use how much.
impl fmt::Display for GroupLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupLimit { bytes, used_bytes, file } = self;
        write!(
            f,
            "the control group of this process may use {bytes} bytes ({}), and uses {used_bytes}",
            file.display()
        )
    }
}

/// The control group that allows this process the least memory; none if none limits it, or if that
/// cannot be seen from here. Reads files of the system's and does not wait.
pub fn group_memory_limit() -> Option<GroupLimit> {
    lowest(Path::new("/"))
}

/// The group of this process that has the least memory left.
pub(crate) fn fullest_group() -> Option<GroupLimit> {
    limits(Path::new("/"))
        .into_iter()
        .min_by_key(|limit| limit.bytes.saturating_sub(limit.used_bytes))
}

fn lowest(system: &Path) -> Option<GroupLimit> {
    limits(system).into_iter().min_by_key(|limit| limit.bytes)
}

/// One of the two hierarchies that can hold the memory controller.
struct Version {
    limit: &'static str,
    used: &'static str,
    /// Whether the controllers of a line of /proc/self/cgroup are its own.
    has: fn(&str) -> bool,
    /// Whether a file system of that type with these options shows it.
    shows: fn(&str, &str) -> bool,
}

const VERSIONS: [Version; 2] = [
    Version {
        limit: "memory.max",
        used: "memory.current",
        has: str::is_empty,
        shows: |kind, _| kind == "cgroup2",
    },
    Version {
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        has: |controllers| controllers.split(',').any(|one| one == "memory"),
        shows: |kind, options| kind == "cgroup" && options.split(',').any(|one| one == "memory"),
    },
];

/// Where no limit is set, the first version has a number as large as it can count.
const NO_LIMIT: u64 = 1 << 62;

/// All limits that hold, those of inner groups first; `system` is the root of the file tree.
fn limits(system: &Path) -> Vec<GroupLimit> {
    let read = |path: &Path| {
        let below = path.strip_prefix("/").unwrap_or(path);
        std::fs::read_to_string(system.join(below)).unwrap_or_default()
    };
    let (groups, mounts) =
        (read(Path::new("/proc/self/cgroup")), read(Path::new("/proc/self/mountinfo")));
    let mut found = Vec::new();
    for version in &VERSIONS {
        let Some((mount, below)) = folder(version, &groups, &mounts) else { continue };
        for folder in mount.join(&below).ancestors().take(below.components().count() + 1) {
            let number = |name| read(&folder.join(name)).trim().parse::<u64>().ok();
            // "max" is no number, and the outermost group has no such file.
            if let Some(bytes) = number(version.limit).filter(|&bytes| bytes < NO_LIMIT) {
                let used_bytes = number(version.used).unwrap_or(0);
                found.push(GroupLimit { bytes, used_bytes, file: folder.join(version.limit) });
            }
        }
    }
    found
}

/// Where the process's group lies: what of the hierarchy is mounted, and the way from there.
fn folder(version: &Version, groups: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    let group = groups.lines().find_map(|line| {
        // 4:cpu,memory:/user.slice
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        (version.has)(controllers).then_some(path)
    })?;
    let (root, mount) = mounts.lines().find_map(|line| {
        // 32 31 0:29 /root /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        let (kind, options) = (what.next()?, what.nth(1)?);
        let mut place = place.split(' ').skip(3);
        let (root, mount) = (unescaped(place.next()?), unescaped(place.next()?));
        (version.shows)(kind, options).then_some((root, mount))
    })?;
    // A container may see its own group as the root of all, under a path that does not say so.
    let below = Path::new(group).strip_prefix(&root).unwrap_or(Path::new(""));
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    let below = if is_plain { below.to_owned() } else { PathBuf::new() };
    Some((mount.into(), below))
}

/// A path of mountinfo, which has octal numbers for what would end a field or a line.
fn unescaped(field: &str) -> String {
    let characters = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    characters.iter().fold(field.to_owned(), |text, (number, is)| text.replace(number, is))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file tree with these files, and what holds in it.
    fn found(files: &[(&str, &str)]) -> Vec<(u64, u64, String)> {
        let system = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = system.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let shown = |limit: GroupLimit| {
            (limit.bytes, limit.used_bytes, limit.file.to_str().unwrap().to_owned())
        };
        let all: Vec<_> = limits(system.path()).into_iter().map(shown).collect();
        let lowest = lowest(system.path()).map(shown);
        assert_eq!(lowest, all.iter().min_by_key(|(bytes, ..)| bytes).cloned());
        all
    }

    const MOUNT_2: (&str, &str) = (
        "proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
         30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    );
    const MOUNT_1: (&str, &str) = (
        "proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
         33 31 0:30 / /sys/fs/cgroup/cpu rw shared:9 master:2 - cgroup cgroup rw,cpu\n\
         35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    );

    #[test]
    fn limits_of_a_group_and_of_those_above_it_hold() {
        let all = found(&[
            MOUNT_2,
            ("proc/self/cgroup", "0::/job.slice/step/rank\n"),
            ("sys/fs/cgroup/job.slice/step/rank/memory.max", "max\n"),
            ("sys/fs/cgroup/job.slice/step/memory.max", "4096000\n"),
            ("sys/fs/cgroup/job.slice/step/memory.current", "1000000\n"),
            ("sys/fs/cgroup/job.slice/memory.max", "2048000\n"),
            ("sys/fs/cgroup/job.slice/memory.current", "1200000\n"),
            ("sys/fs/cgroup/other/memory.max", "1\n"),
        ]);
        let at = |folder: &str| format!("/sys/fs/cgroup/{folder}/memory.max");
        let step = (4096000, 1000000, at("job.slice/step"));
        assert_eq!(all, [step, (2048000, 1200000, at("job.slice"))]);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_outermost() {
        // With a namespace of groups; from outside of it; and with its group mounted at the usual place.
        let mounted = MOUNT_2.1.replace(" / /sys", " /docker/a\\134x2db\\040c /sys");
        for (group, mounts) in [
            ("0::/\n", MOUNT_2.1),
            ("0::/../../elsewhere\n", MOUNT_2.1),
            ("0::/docker/a\\x2db c\n", mounted.as_str()),
            ("0::/another\n", mounted.as_str()),
        ] {
            let all = found(&[
                (MOUNT_2.0, mounts),
                ("proc/self/cgroup", group),
                ("sys/fs/cgroup/memory.max", "8192\n"),
                ("sys/fs/cgroup/memory.current", "4096\n"),
                ("sys/memory.max", "1\n"),
                ("memory.max", "1\n"),
            ]);
            assert_eq!(all, [(8192, 4096, "/sys/fs/cgroup/memory.max".into())], "{group}");
        }
    }

    #[test]
    fn first_version_has_limits_of_other_names() {
        let folder = "sys/fs/cgroup/memory";
        let all = found(&[
            MOUNT_1,
            ("proc/self/cgroup", "4:cpuacct,memory:/job\n1:cpu:/deep/in\n0::/elsewhere\n"),
            (&format!("{folder}/memory.limit_in_bytes"), "9223372036854771712\n"),
            (&format!("{folder}/memory.usage_in_bytes"), "77\n"),
            (&format!("{folder}/job/memory.limit_in_bytes"), "65536\n"),
            (&format!("{folder}/job/memory.usage_in_bytes"), "4096\n"),
        ]);
        assert_eq!(all, [(65536, 4096, format!("/{folder}/job/memory.limit_in_bytes"))]);
    }

    #[test]
    fn what_cannot_be_seen_or_read_is_no_limit() {
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[MOUNT_2]), []);
        assert_eq!(found(&[("proc/self/cgroup", "0::/\n")]), []);
        for (group, mounts, limit) in [
            ("0::/a\n", MOUNT_2.1, "max\n"),
            ("0::/a\n", MOUNT_2.1, ""),
            ("0::/a\n", MOUNT_2.1, "-1\n"),
            ("0::/a\n", "30 22 0:26 / - cgroup2\n30 - cgroup2 x rw\n\n", "1\n"),
            ("0\n:\n\n0:\n", MOUNT_2.1, "1\n"),
        ] {
            let files = [
                (MOUNT_2.0, mounts),
                ("proc/self/cgroup", group),
                ("sys/fs/cgroup/a/memory.max", limit),
            ];
            assert_eq!(found(&files), [], "{group:?} {limit:?}");
        }
    }

    #[test]
    fn a_limit_without_a_count_of_use_holds() {
        let all = found(&[
            MOUNT_2,
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "4096\n"),
        ]);
        assert_eq!(all, [(4096, 0, "/sys/fs/cgroup/a/memory.max".into())]);
    }
}

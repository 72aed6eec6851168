//! The libraries that are opened at run time: whether they are here, where, and which version.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::PathBuf;

use super::model::Library;
use crate::nccl;

/// A library to look for.
struct Wanted {
    /// The names by which the loader is asked, in turn.
    names: &'static [&'static str],
    used_for: &'static str,
    /// A function that it has.
    function: &'static CStr,
    version: Version,
}

/// How a library says its version.
#[derive(Clone, Copy)]
enum Version {
    Cuda,
    Gdrcopy,
    /// Found and asked by the part of this program that uses it.
    Nccl,
    /// It has no call for it.
    NoCall,
    Nvml,
}

const WANTED: [Wanted; 6] = [
    Wanted {
        names: &["libcuda.so.1", "libcuda.so"],
        used_for: "GPUs",
        function: c"cuDriverGetVersion",
        version: Version::Cuda,
    },
    Wanted {
        names: &["libnvidia-ml.so.1"],
        used_for: "links of GPUs",
        function: c"nvmlSystemGetNVMLVersion",
        version: Version::Nvml,
    },
    Wanted {
        names: &["libibverbs.so.1"],
        used_for: "RDMA (not used yet)",
        function: c"ibv_get_device_list",
        version: Version::NoCall,
    },
    Wanted {
        names: &["libmlx5.so.1"],
        used_for: "queues of mlx5 (not used yet)",
        function: c"mlx5dv_query_device",
        version: Version::NoCall,
    },
    Wanted {
        names: &["libgdrapi.so.2", "libgdrapi.so"],
        used_for: "GDRCopy (not used yet)",
        function: c"gdr_runtime_get_version",
        version: Version::Gdrcopy,
    },
    Wanted {
        names: &["libnccl.so.2"],
        used_for: "bench --compare nccl",
        function: c"ncclGetVersion",
        version: Version::Nccl,
    },
];

/// How many there are to look for.
pub(super) const COUNT: usize = WANTED.len();

/// Opens one, which runs its initialisers.
pub(super) fn look(index: usize) -> Library {
    let wanted = &WANTED[index % COUNT];
    let found = match wanted.version {
        Version::Nccl => {
            nccl::installed().map_err(|error| error.to_string()).map(|(path, version)| Found {
                path: resolved(&path, wanted.function),
                version: Some(version),
            })
        }
        _ => open(wanted),
    };
    match found {
        Ok(Found { path, version }) => {
            Library { found: true, path: Some(path), version, ..described(index) }
        }
        Err(why) => Library { why: Some(why), ..described(index) },
    }
}

/// One that was not looked at.
pub(super) fn described(index: usize) -> Library {
    let wanted = &WANTED[index % COUNT];
    Library {
        name: wanted.names[0].into(),
        used_for: wanted.used_for.into(),
        found: false,
        path: None,
        version: None,
        why: None,
    }
}

struct Found {
    path: String,
    version: Option<String>,
}

fn open(wanted: &Wanted) -> Result<Found, String> {
    let mut why = String::new();
    for name in wanted.names {
        // SAFETY: these libraries' initialisers have no demands on the caller.
        match unsafe { libloading::Library::new(*name) } {
            Ok(library) => {
                let path = resolved(name, wanted.function);
                let version = version(&library, wanted.version);
                // It is never closed: what it started may run until the process ends.
                std::mem::forget(library);
                return Ok(Found { path, version });
            }
            Err(error) if why.is_empty() => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                why = cause.unwrap_or_else(|| error.to_string());
            }
            Err(_) => {}
        }
    }
    Err(why)
}

/// The file that holds a function of an open library; the name where that cannot be told.
fn resolved(name: &str, function: &CStr) -> String {
    // SAFETY: the library is open already, so this runs nothing.
    let Ok(library) = (unsafe { libloading::Library::new(name) }) else { return name.into() };
    // SAFETY: only the function's address is used.
    let symbol = unsafe { library.get::<unsafe extern "C" fn()>(function.to_bytes_with_nul()) };
    let address = symbol.map(|symbol| *symbol as usize as u64);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = address.ok().and_then(|address| mapped_file(&maps, address));
    path.map_or_else(|| name.to_owned(), |path| path.display().to_string())
}

/// The file that is mapped at an address, by the lines of /proc/self/maps.
fn mapped_file(maps: &str, address: u64) -> Option<PathBuf> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        if !(number(from)?..number(to)?).contains(&address) {
            return None;
        }
        // Permissions, offset, device, inode, and the path with all its spaces.
        let path = rest.trim_start().splitn(5, ' ').nth(4)?.trim_start();
        path.starts_with('/').then(|| PathBuf::from(path.trim_end_matches(" (deleted)")))
    })
}

fn version(library: &libloading::Library, how: Version) -> Option<String> {
    match how {
        Version::Cuda => {
            let mut code: c_int = 0;
            // SAFETY: the function has this type, and may be called before any other.
            let status = unsafe {
                let call = library
                    .get::<unsafe extern "C" fn(*mut c_int) -> c_int>(
                        c"cuDriverGetVersion".to_bytes_with_nul(),
                    )
                    .ok()?;
                call(&raw mut code)
            };
            (status == 0).then(|| format!("CUDA {}.{}", code / 1000, code % 1000 / 10))
        }
        Version::Gdrcopy => {
            let (mut major, mut minor): (c_int, c_int) = (0, 0);
            // SAFETY: the function has this type, and may be called before any other.
            unsafe {
                let call = library
                    .get::<unsafe extern "C" fn(*mut c_int, *mut c_int)>(
                        c"gdr_runtime_get_version".to_bytes_with_nul(),
                    )
                    .ok()?;
                call(&raw mut major, &raw mut minor);
            }
            Some(format!("{major}.{minor}"))
        }
        Version::Nvml => {
            let mut text = [0 as c_char; 96];
            // SAFETY: the functions have these types; the second writes a text that ends with 0 and
            // is at most so long.
            let status = unsafe {
                let init = library
                    .get::<unsafe extern "C" fn() -> c_int>(c"nvmlInit_v2".to_bytes_with_nul())
                    .ok()?;
                let call = library
                    .get::<unsafe extern "C" fn(*mut c_char, c_uint) -> c_int>(
                        c"nvmlSystemGetNVMLVersion".to_bytes_with_nul(),
                    )
                    .ok()?;
                if init() != 0 {
                    return None;
                }
                call(text.as_mut_ptr(), text.len() as c_uint - 1)
            };
            // SAFETY: the last byte was left zero.
            let text = unsafe { CStr::from_ptr(text.as_ptr()) };
            (status == 0).then(|| text.to_string_lossy().into_owned())
        }
        Version::Nccl | Version::NoCall => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f0000001000-7f0000002000 r--p 00000000 08:01 42                         /usr/lib/liba.so.1.2
7f0000002000-7f0000004000 r-xp 00001000 08:01 42                         /usr/lib/lib with space.so (deleted)
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
7f0000005000-7f0000006000 rw-p 00000000 00:00 0                          [heap]
";

    #[test]
    fn the_file_at_an_address_is_found() {
        let at = |address| mapped_file(MAPS, address).map(|path| path.display().to_string());
        assert_eq!(at(0x7f00_0000_1000).as_deref(), Some("/usr/lib/liba.so.1.2"));
        assert_eq!(at(0x7f00_0000_3fff).as_deref(), Some("/usr/lib/lib with space.so"));
        assert_eq!(at(0x7f00_0000_4000), None);
        assert_eq!(at(0x7f00_0000_5000), None);
        assert_eq!(at(0x1000), None);
    }

    #[test]
    fn a_library_that_is_here_is_found_with_its_file() {
        let wanted = Wanted {
            names: &["libnobody-has-this.so.1", "libc.so.6"],
            used_for: "tests",
            function: c"getpid",
            version: Version::NoCall,
        };
        let found = open(&wanted).expect("every process has it");
        assert!(found.path.starts_with('/') && found.path.contains("libc"), "{}", found.path);
        assert_eq!(found.version, None);
    }

    #[test]
    fn a_library_that_is_missing_says_so_in_the_loaders_words() {
        let wanted = Wanted { names: &["libnobody-has-this.so.1"], ..WANTED[0] };
        let why = open(&wanted).err().expect("missing");
        assert!(why.contains("libnobody-has-this.so.1"), "{why}");
    }

    #[test]
    fn a_library_of_another_kind_has_no_version() {
        // SAFETY: it is open in every process.
        let libc = unsafe { libloading::Library::new("libc.so.6") }.expect("open");
        for how in [Version::Cuda, Version::Gdrcopy, Version::Nvml] {
            assert_eq!(version(&libc, how), None);
        }
    }
}

//! NVML, opened at run time: what it says of the GPUs that the driver found.
//!
//! Invariant: no number of NVML becomes a Rust enum unless it is one that is known, and a call that
//! an older library lacks, or that a GPU does not answer, leaves its fact open.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::{Distance, PciAddress};
use crate::cuda::Found;

/// What NVML says.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) driver_version: Option<String>,
    /// In the order of those asked about.
    pub(super) gpus: Vec<GpuFacts>,
    /// By the places of the two, the lower first.
    pub(super) distances: BTreeMap<(usize, usize), Distance>,
}

/// What NVML says of one GPU.
#[derive(Debug, Default)]
pub(super) struct GpuFacts {
    pub(super) free_bytes: Option<u64>,
    pub(super) mig: Option<bool>,
    /// What is at the other end of each link that is up; none where NVML does not say.
    pub(super) nvlinks: Option<Vec<Remote>>,
    pub(super) nvlink_version: Option<&'static str>,
    pub(super) nvlink_bytes_per_second: Option<u64>,
    pub(super) fabric: Option<FabricFacts>,
}

/// What is at the other end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    Gpu(PciAddress),
    Other,
    Switch,
}

/// A GPU's part in an NVLink domain, as NVML codes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FabricFacts {
    pub(super) cluster: [u8; 16],
    pub(super) status: u32,
    pub(super) clique: u32,
    pub(super) state: u8,
}

type Status = c_int;
type Handle = *mut c_void;

#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
struct PciInfo {
    legacy: [c_char; 16],
    numbers: [c_uint; 5],
    address: [c_char; 32],
}

#[repr(C)]
struct FabricInfo {
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
}

#[repr(C)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency_us: i64,
    kind: c_uint,
    status: Status,
    value: u64,
}

/// `NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON`.
const SPEED_OF_LINKS: c_uint = 90;
/// `NVML_FI_DEV_NVLINK_GET_SPEED`, of the link that is the scope; newer GPUs have only this one.
const SPEED_OF_ONE_LINK: c_uint = 164;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED: c_uint = 1;
/// More than any GPU has; NVML refuses the first number that a GPU does not have.
const MOST_LINKS: c_uint = 64;
/// `NVML_ERROR_INVALID_ARGUMENT`.
const INVALID: Status = 2;

struct Nvml {
    library: Library,
}

/// Asks about these GPUs; an error says why NVML cannot be asked.
pub(super) fn ask(gpus: &[Found]) -> Result<Facts, String> {
    let nvml = Nvml::open("libnvidia-ml.so.1")?;
    let handles: Vec<Option<Handle>> =
        gpus.iter().map(|gpu| nvml.handle(gpu.pci.as_deref()?)).collect();
    let mut distances = BTreeMap::new();
    for (first, one) in handles.iter().enumerate() {
        for (second, other) in handles.iter().enumerate().skip(first + 1) {
            if let (Some(one), Some(other)) = (one, other)
                && let Some(distance) = nvml.distance(*one, *other)
            {
                distances.insert((first, second), distance);
            }
        }
    }
    let facts =
        |handle: &Option<Handle>| handle.map(|handle| nvml.facts(handle)).unwrap_or_default();
    Ok(Facts {
        driver_version: nvml.driver_version(),
        gpus: handles.iter().map(facts).collect(),
        distances,
    })
}

/// Calls a function of the library with these arguments; none if the library lacks it or it fails.
macro_rules! call {
    ($nvml:expr, $name:literal, ($($type:ty),*), ($($argument:expr),*)) => {
        $nvml.status::<unsafe extern "C" fn($($type),*) -> Status>($name, |call| {
            // SAFETY: NVML is initialised, the signature is the function's, and what it writes to
            // lives through the call.
            unsafe { call($($argument),*) }
        })
    };
}

impl Nvml {
    fn open(name: &str) -> Result<Nvml, String> {
        // SAFETY: NVML's initialisers have no demands on the caller.
        let library = unsafe { Library::new(name) }
            .map_err(|error| format!("{name} cannot be opened ({})", cause(&error)))?;
        let nvml = Nvml { library };
        match call!(nvml, "nvmlInit_v2", (), ()) {
            None => Err(format!("{name} has no nvmlInit_v2")),
            Some(0) => Ok(nvml),
            Some(status) => Err(format!("nvmlInit failed: {}", nvml.words(status))),
        }
    }

    /// What a function gave; none if there is no such function.
    fn status<F: Copy>(&self, name: &str, call: impl FnOnce(F) -> Status) -> Option<Status> {
        // SAFETY: the caller of `call!` names the function's own type.
        let function = unsafe { self.library.get::<F>(name.as_bytes()) }.ok()?;
        Some(call(*function))
    }

    /// NVML's words for a code.
    fn words(&self, status: Status) -> String {
        type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;
        // SAFETY: the function has had this type in every version.
        let Ok(text) = (unsafe { self.library.get::<ErrorString>("nvmlErrorString") }) else {
            return status.to_string();
        };
        // SAFETY: gives a constant text for any number.
        let text = unsafe { CStr::from_ptr(text(status)) };
        format!("{status} ({})", text.to_string_lossy())
    }

    fn driver_version(&self) -> Option<String> {
        let mut text = [0; 96];
        let length = text.len() as c_uint - 1;
        done(call!(
            self,
            "nvmlSystemGetDriverVersion",
            (*mut c_char, c_uint),
            (text.as_mut_ptr(), length)
        ))?;
        words_of(&text)
    }

    fn handle(&self, pci: &str) -> Option<Handle> {
        let pci = CString::new(pci).ok()?;
        let mut handle = std::ptr::null_mut();
        done(call!(
            self,
            "nvmlDeviceGetHandleByPciBusId_v2",
            (*const c_char, *mut Handle),
            (pci.as_ptr(), &raw mut handle)
        ))?;
        Some(handle)
    }

    fn distance(&self, one: Handle, other: Handle) -> Option<Distance> {
        let mut level: c_uint = 0;
        done(call!(
            self,
            "nvmlDeviceGetTopologyCommonAncestor",
            (Handle, Handle, *mut c_uint),
            (one, other, &raw mut level)
        ))?;
        distance_of(level)
    }

    fn facts(&self, gpu: Handle) -> GpuFacts {
        let nvlinks = self.nvlinks(gpu);
        let first = nvlinks.as_ref().and_then(|links| links.first()).map(|(link, _)| *link);
        GpuFacts {
            free_bytes: self.free_bytes(gpu),
            mig: self.mig(gpu),
            nvlink_version: first.and_then(|link| self.nvlink_version(gpu, link)),
            nvlinks: nvlinks.map(|links| links.into_iter().map(|(_, remote)| remote).collect()),
            nvlink_bytes_per_second: first.and_then(|link| self.nvlink_speed(gpu, link)),
            fabric: self.fabric(gpu),
        }
    }

    fn free_bytes(&self, gpu: Handle) -> Option<u64> {
        let mut memory = Memory { total: 0, free: 0, used: 0 };
        done(call!(
            self,
            "nvmlDeviceGetMemoryInfo",
            (Handle, *mut Memory),
            (gpu, &raw mut memory)
        ))?;
        Some(memory.free)
    }

    fn mig(&self, gpu: Handle) -> Option<bool> {
        let (mut now, mut next): (c_uint, c_uint) = (0, 0);
        done(call!(
            self,
            "nvmlDeviceGetMigMode",
            (Handle, *mut c_uint, *mut c_uint),
            (gpu, &raw mut now, &raw mut next)
        ))?;
        Some(now == 1)
    }

    /// The links that are up, by number, with what is at their other ends.
    fn nvlinks(&self, gpu: Handle) -> Option<Vec<(c_uint, Remote)>> {
        let mut up = Vec::new();
        for link in 0..MOST_LINKS {
            let mut active: c_uint = 0;
            let status = call!(
                self,
                "nvmlDeviceGetNvLinkState",
                (Handle, c_uint, *mut c_uint),
                (gpu, link, &raw mut active)
            );
            match status {
                Some(0) if active == 1 => up.push((link, self.remote(gpu, link))),
                Some(INVALID) => break,
                None => return None,
                // Not up, or not a link of this GPU although its number is allowed.
                Some(_) => {}
            }
        }
        Some(up)
    }

    fn remote(&self, gpu: Handle, link: c_uint) -> Remote {
        let mut kind: c_uint = c_uint::MAX;
        let known = done(call!(
            self,
            "nvmlDeviceGetNvLinkRemoteDeviceType",
            (Handle, c_uint, *mut c_uint),
            (gpu, link, &raw mut kind)
        ));
        let mut pci = PciInfo { legacy: [0; 16], numbers: [0; 5], address: [0; 32] };
        let address = done(call!(
            self,
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
            (Handle, c_uint, *mut PciInfo),
            (gpu, link, &raw mut pci)
        ))
        .and_then(|()| words_of(&pci.address));
        remote_of(known.map(|()| kind), address.as_deref())
    }

    fn nvlink_version(&self, gpu: Handle, link: c_uint) -> Option<&'static str> {
        let mut version: c_uint = 0;
        done(call!(
            self,
            "nvmlDeviceGetNvLinkVersion",
            (Handle, c_uint, *mut c_uint),
            (gpu, link, &raw mut version)
        ))?;
        version_of(version)
    }

    fn nvlink_speed(&self, gpu: Handle, link: c_uint) -> Option<u64> {
        let megabytes = self
            .field(gpu, SPEED_OF_ONE_LINK, link)
            .or_else(|| self.field(gpu, SPEED_OF_LINKS, 0))?;
        (megabytes > 0).then(|| u64::from(megabytes) * 1_000_000)
    }

    /// A field that is a number of 32 bits.
    fn field(&self, gpu: Handle, field: c_uint, scope: c_uint) -> Option<u32> {
        let mut value = FieldValue {
            field,
            scope,
            timestamp: 0,
            latency_us: 0,
            kind: 0,
            status: INVALID,
            value: 0,
        };
        done(call!(
            self,
            "nvmlDeviceGetFieldValues",
            (Handle, c_int, *mut FieldValue),
            (gpu, 1, &raw mut value)
        ))?;
        // It lies in the first half of the value.
        let number = value.value.to_le() as u32;
        (value.status == 0 && value.kind == UNSIGNED).then_some(number)
    }

    fn fabric(&self, gpu: Handle) -> Option<FabricFacts> {
        let mut info = FabricInfo { cluster: [0; 16], status: 0, clique: 0, state: 0 };
        done(call!(
            self,
            "nvmlDeviceGetGpuFabricInfo",
            (Handle, *mut FabricInfo),
            (gpu, &raw mut info)
        ))?;
        Some(FabricFacts {
            cluster: info.cluster,
            status: info.status as u32,
            clique: info.clique,
            state: info.state,
        })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // There is nothing to do about a failure.
        let _ = call!(self, "nvmlShutdown", (), ());
    }
}

fn done(status: Option<Status>) -> Option<()> {
    (status == Some(0)).then_some(())
}

/// The loader's own words.
fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A text that NVML wrote, up to its end.
fn words_of(text: &[c_char]) -> Option<String> {
    let bytes: Vec<u8> =
        text.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// `nvmlGpuTopologyLevel_t`.
fn distance_of(level: c_uint) -> Option<Distance> {
    match level {
        0 => Some(Distance::Board),
        10 => Some(Distance::Switch),
        20 => Some(Distance::Switches),
        30 => Some(Distance::HostBridge),
        40 => Some(Distance::Node),
        50 => Some(Distance::System),
        _ => None,
    }
}

/// `nvmlNvlinkVersion_t`.
fn version_of(number: c_uint) -> Option<&'static str> {
    match number {
        1 => Some("1.0"),
        2 => Some("2.0"),
        3 => Some("2.2"),
        4 => Some("3.0"),
        5 => Some("3.1"),
        6 => Some("4.0"),
        7 => Some("5.0"),
        8 => Some("6.0"),
        _ => None,
    }
}

/// By `nvmlIntNvLinkDeviceType_t` where the library tells it, and where the other end is.
fn remote_of(kind: Option<c_uint>, address: Option<&str>) -> Remote {
    const GPU: c_uint = 0;
    const SWITCH: c_uint = 2;
    let gpu = || address.and_then(|text| text.parse().ok()).map_or(Remote::Other, Remote::Gpu);
    match kind {
        Some(SWITCH) => Remote::Switch,
        Some(GPU) | None => gpu(),
        Some(_) => Remote::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_layout_of_nvml() {
        assert_eq!(size_of::<Memory>(), 24);
        assert_eq!(size_of::<PciInfo>(), 68);
        assert_eq!(size_of::<FabricInfo>(), 28);
        assert_eq!(size_of::<FieldValue>(), 40);
    }

    #[test]
    fn the_other_end_of_a_link_is_what_nvml_calls_it() {
        let address = Some("00000000:3B:00.0");
        let gpu = Remote::Gpu("0000:3b:00.0".parse().unwrap());
        for (kind, address, expected) in [
            (Some(0), address, gpu),
            (None, address, gpu),
            (Some(2), address, Remote::Switch),
            (Some(2), None, Remote::Switch),
            (Some(1), address, Remote::Other),
            (Some(255), address, Remote::Other),
            (Some(0), Some("FFFFFFFF:"), Remote::Other),
            (None, None, Remote::Other),
        ] {
            assert_eq!(remote_of(kind, address), expected, "{kind:?} {address:?}");
        }
    }

    #[test]
    fn numbers_that_are_not_known_mean_nothing() {
        assert_eq!(distance_of(40), Some(Distance::Node));
        assert_eq!(distance_of(60), None);
        assert_eq!(version_of(6), Some("4.0"));
        assert_eq!(version_of(0), None);
    }

    #[test]
    fn texts_end_at_their_zero() {
        let text = [b'5', b'8', 0, b'x'].map(|byte| byte as c_char);
        assert_eq!(words_of(&text).as_deref(), Some("58"));
        assert_eq!(words_of(&[0; 4]), None);
    }

    #[test]
    fn a_library_that_is_missing_or_another_is_named() {
        let missing = Nvml::open("libnvidia-ml-that-nobody-has.so.1").err().unwrap();
        assert!(
            missing.contains("libnvidia-ml-that-nobody-has.so.1 cannot be opened"),
            "{missing}"
        );
        let other = Nvml::open("libc.so.6").err().unwrap();
        assert_eq!(other, "libc.so.6 has no nvmlInit_v2");
    }
}

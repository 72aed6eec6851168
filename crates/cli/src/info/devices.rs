//! The devices that ranks can run on.

use mscclrs_gpu::topology::{self, Path};
use mscclrs_gpu::{BackendKind, Error, Limits, Topology};
use serde::{Deserialize, Serialize};

use super::handles;
use super::model::{Cuda, Device, Fabric, FabricState, Link, NvLinks};

/// The GPUs and how they are joined.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Gpus {
    pub(super) cuda: Cuda,
    pub(super) devices: Vec<Device>,
    pub(super) links: Vec<Link>,
}

/// The CPU device, or why it cannot be used. It runs no kernel.
pub(super) fn cpu() -> Result<Device, String> {
    let device =
        mscclrs_gpu::Device::open(BackendKind::Cpu, 0).map_err(|error| error.to_string())?;
    let (free, total) = device.memory().map_err(|error| error.to_string())?;
    Ok(Device {
        memory_bytes: total,
        free_bytes: Some(free),
        handles: handles::of(&device, 1),
        ..bare(BackendKind::Cpu, 0, device.name(), device.limits())
    })
}

/// Asks the driver and NVML. No GPU is opened.
pub(super) fn gpus() -> Gpus {
    match Topology::query() {
        Ok(topology) => of(&topology),
        Err(error) => {
            let (why, fix) = reason(&error);
            let cuda =
                Cuda { why: Some(why), fix, device_files: device_files(), ..Cuda::default() };
            Gpus { cuda, ..Gpus::default() }
        }
    }
}

/// How the system shows GPUs: /dev/nvidia0 and so on.
fn device_files() -> u32 {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok())
    };
    entries.filter(|entry| is_gpu(&entry.file_name().to_string_lossy())).count() as u32
}

/// What was wrong, and what to do about it where the error says so.
fn reason(error: &Error) -> (String, Option<String>) {
    match error {
        Error::Call { call, code, name, hint } => {
            let fix = hint.strip_prefix("; ").filter(|fix| !fix.is_empty());
            (format!("{call} failed: {code} ({name})"), fix.map(str::to_owned))
        }
        Error::Unsupported { why, .. } => match why.split_once(": ") {
            Some((why, fix)) => (why.to_owned(), Some(fix.to_owned())),
            None => (why.clone(), None),
        },
        other => (other.to_string(), None),
    }
}

fn of(topology: &Topology) -> Gpus {
    let cuda = Cuda {
        usable: true,
        cuda_version: Some(topology.cuda_version.clone()),
        driver_version: topology.driver_version.clone(),
        nvml_missing: topology.nvml_missing.clone(),
        device_files: device_files(),
        ..Cuda::default()
    };
    let link = |link: &topology::Link| Link {
        between: link.between,
        path: link.path.map(|path| path.to_string()),
        through_switch: matches!(link.path, Some(Path::NvSwitch { .. })),
        peer_access: link.peer_access,
    };
    Gpus {
        cuda,
        devices: topology.gpus.iter().map(gpu).collect(),
        links: topology.links.iter().map(link).collect(),
    }
}

fn gpu(gpu: &topology::Gpu) -> Device {
    let nvlinks = gpu.nvlinks.map(|links| NvLinks {
        count: links.count,
        version: links.version.map(str::to_owned),
        bytes_per_second: links.bytes_per_second,
    });
    Device {
        uuid: Some(uuid(&gpu.uuid, if gpu.mig == Some(true) { "MIG-" } else { "GPU-" })),
        pci: gpu.pci.map(|address| address.to_string()),
        numa_node: gpu.numa_node,
        memory_bytes: gpu.memory_bytes,
        free_bytes: gpu.free_bytes,
        mig: gpu.mig,
        nvlinks,
        fabric: gpu.fabric.map(fabric),
        ..bare(BackendKind::Cuda, gpu.ordinal, gpu.name.clone(), &gpu.limits)
    }
}

fn bare(kind: BackendKind, ordinal: u32, name: String, limits: &Limits) -> Device {
    let capability = (limits.sm > 0).then(|| format!("{}.{}", limits.sm / 10, limits.sm % 10));
    Device {
        kind: kind.name().into(),
        ordinal,
        name,
        uuid: None,
        pci: None,
        numa_node: None,
        compute_capability: capability,
        memory_bytes: 0,
        free_bytes: None,
        multiprocessors: limits.multiprocessors,
        threads_per_multiprocessor: limits.threads_per_multiprocessor,
        threads_per_block: limits.threads_per_block,
        warp: limits.warp,
        shared_bytes_per_block: limits.shared_bytes_per_block,
        mig: None,
        nvlinks: None,
        fabric: None,
        handles: Vec::new(),
    }
}

fn fabric(fabric: topology::Fabric) -> Fabric {
    let state = |state| Fabric { state, cluster: None, clique: None };
    match fabric {
        topology::Fabric::None => state(FabricState::None),
        topology::Fabric::Joining => state(FabricState::Joining),
        topology::Fabric::Failed(_) => state(FabricState::Failed),
        topology::Fabric::Joined { cluster, clique } => Fabric {
            cluster: Some(uuid(&cluster, "")),
            clique: Some(clique),
            ..state(FabricState::Joined)
        },
    }
}

/// As nvidia-smi and CUDA_VISIBLE_DEVICES write it.
fn uuid(bytes: &[u8; 16], before: &str) -> String {
    let mut text = before.to_owned();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_taken_apart_into_what_was_wrong_and_what_to_do() {
        let call = Error::Call {
            call: "cuInit",
            code: 802,
            name: "CUDA_ERROR_SYSTEM_NOT_READY".into(),
            hint: "; start the fabric manager".into(),
        };
        let (why, fix) = reason(&call);
        assert_eq!(why, "cuInit failed: 802 (CUDA_ERROR_SYSTEM_NOT_READY)");
        assert_eq!(fix.as_deref(), Some("start the fabric manager"));
        let missing = Error::Unsupported {
            what: "CUDA",
            why: "no libcuda.so.1 found: install it (x: y)".into(),
        };
        let (why, fix) = reason(&missing);
        assert_eq!(
            (why.as_str(), fix.as_deref()),
            ("no libcuda.so.1 found", Some("install it (x: y)"))
        );
    }

    #[test]
    fn uuids_are_written_as_elsewhere() {
        let bytes = std::array::from_fn(|at| at as u8);
        assert_eq!(uuid(&bytes, "GPU-"), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn a_gpu_keeps_what_is_known_of_it() {
        let limits = Limits {
            sm: 90,
            multiprocessors: 132,
            threads_per_multiprocessor: 2048,
            threads_per_block: 1024,
            warp: 32,
            shared_bytes_per_block: 232_448,
        };
        let found = topology::Gpu {
            ordinal: 1,
            name: "a GPU".into(),
            uuid: [1; 16],
            limits,
            memory_bytes: 100,
            free_bytes: Some(50),
            pci: Some("0000:3B:00.0".parse().expect("address")),
            numa_node: Some(1),
            mig: Some(true),
            nvlinks: None,
            fabric: Some(topology::Fabric::Joined { cluster: [2; 16], clique: 3 }),
        };
        let topology = Topology {
            cuda_version: "13.0".into(),
            driver_version: None,
            nvml_missing: None,
            gpus: vec![found],
            links: vec![topology::Link {
                between: (0, 1),
                path: Some(Path::NvSwitch { count: 18 }),
                peer_access: true,
            }],
        };
        let gpus = of(&topology);
        let device = &gpus.devices[0];
        assert!(gpus.cuda.usable);
        assert_eq!(device.compute_capability.as_deref(), Some("9.0"));
        assert!(device.uuid.as_deref().expect("uuid").starts_with("MIG-01010101-"));
        assert_eq!(device.pci.as_deref(), Some("0000:3b:00.0"));
        let fabric = device.fabric.as_ref().expect("fabric");
        assert_eq!((fabric.state, fabric.clique), (FabricState::Joined, Some(3)));
        let link = &gpus.links[0];
        assert_eq!((link.path.as_deref(), link.through_switch), (Some("NV18"), true));
    }
}

//! What is told of GPUs without opening them is what they say when they are open.

use mscclrs_gpu::{BackendKind, Device, HandleKind, MemoryKind, Topology, device_count};

use crate::device;

#[test]
fn the_topology_is_that_of_the_open_devices() {
    let Some((first, _alone)) = device() else { return };
    let topology = Topology::query().unwrap();
    assert_eq!(topology.gpus.len() as u32, device_count(BackendKind::Cuda).unwrap());
    for gpu in &topology.gpus {
        let device = Device::open(BackendKind::Cuda, gpu.ordinal).unwrap();
        assert_eq!((&gpu.name, gpu.uuid), (&device.name(), device.uuid()));
        assert_eq!(&gpu.limits, device.limits());
        // The context's view leaves out what the driver keeps for itself.
        let (_, total) = device.memory().unwrap();
        assert!(gpu.memory_bytes.abs_diff(total) < gpu.memory_bytes / 10);
        assert!(gpu.free_bytes.is_none_or(|free| free <= gpu.memory_bytes));
    }
    for link in &topology.links {
        let (one, other) = link.between;
        assert!(one < other);
        let uuid = |ordinal: u32| topology.gpus[ordinal as usize].uuid;
        let open = |ordinal| Device::open(BackendKind::Cuda, ordinal).unwrap();
        let reach = open(one).can_reach(&uuid(other)) && open(other).can_reach(&uuid(one));
        assert_eq!(link.peer_access, reach, "{link:?}");
    }
    assert!(topology.cuda_version.contains('.'), "{first:?}: {}", topology.cuda_version);
}

#[test]
fn the_forms_that_a_device_offers_are_the_ones_that_it_exports() {
    let Some((device, _alone)) = device() else { return };
    let plain = device.handle_kinds(MemoryKind::Plain);
    let shareable = device.handle_kinds(MemoryKind::Shareable);
    for kind in [HandleKind::Fabric, HandleKind::PosixFd, HandleKind::RuntimeIpc] {
        let offered = device.require_handle(kind).is_ok();
        assert_eq!(offered, plain.contains(&kind) || shareable.contains(&kind), "{kind:?}");
    }
}

#[test]
fn without_gpus_the_error_says_why() {
    let Err(missing) = device_count(BackendKind::Cuda) else { return };
    assert_eq!(Topology::query().unwrap_err().to_string(), missing.to_string());
}

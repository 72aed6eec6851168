//! Machines for tests.

use mscclrs_core::env::Source;

use super::model::*;
use super::{libraries, variables};

/// A host with two GPUs and an RDMA device, where a launcher started this process and all is well.
pub(super) fn info() -> Info {
    let values = |name: &str| (name == "MSCCLRS_DEVICE").then(|| "auto".to_owned());
    let mut info = Info {
        host: Host {
            name: "node7".into(),
            kernel: "Linux 6.8.0".into(),
            cpus: 64,
            memory_bytes: Some(256 << 30),
        },
        device_kind: Some("cuda".into()),
        cuda: Cuda {
            usable: true,
            cuda_version: Some("13.0".into()),
            driver_version: Some("580.95.05".into()),
            device_files: 2,
            ..Cuda::default()
        },
        devices: vec![gpu(0), gpu(1)],
        links: vec![link(0, 1)],
        launch: Launch {
            launcher: Some("torchrun".into()),
            rank: Some(3),
            world_size: Some(8),
            local_rank: Some(1),
            local_world_size: Some(4),
            rendezvous: Some("node0:29501".into()),
            error: None,
        },
        limits: Limits {
            open_files: Limit { soft: Some(1 << 20), hard: Some(1 << 20) },
            locked_bytes: Limit { soft: None, hard: None },
            shared_memory: Some(SharedMemory { bytes: 64 << 30, free_bytes: 60 << 30 }),
            group_memory: Some(GroupMemory {
                bytes: 128 << 30,
                used_bytes: 3 << 30,
                file: "/sys/fs/cgroup/job_7/memory.max".into(),
            }),
        },
        variables: variables::all(Source::new(&values)),
        other_variables: vec![OtherVariable {
            name: "TORCHELASTIC_RUN_ID".into(),
            value: "set, 6 bytes".into(),
            text: "torchrun: names the job.".into(),
        }],
        ..bare()
    };
    let eth0 = interface("eth0", InterfaceKind::Ethernet, &["10.0.0.7", "fe80::7"]);
    info.network.interfaces = vec![
        Interface {
            bits_per_second: Some(100_000_000_000),
            mtu: Some(9000),
            pci: Some("0000:17:00.0".into()),
            numa_node: Some(0),
            chosen: true,
            ..eth0
        },
        interface("lo", InterfaceKind::Loopback, &["127.0.0.1"]),
    ];
    info.network.rdma = vec![RdmaDevice {
        name: "mlx5_0".into(),
        firmware: Some("28.39.1002".into()),
        board: Some("MT_838".into()),
        pci: Some("0000:18:00.0".into()),
        numa_node: Some(0),
        interfaces: vec!["ib0".into()],
        ports: vec![Port {
            number: 1,
            state: "active".into(),
            physical_state: "linkup".into(),
            bits_per_second: Some(400_000_000_000),
            link_layer: "InfiniBand".into(),
        }],
    }];
    for library in &mut info.libraries {
        library.found = true;
        library.path = Some(format!("/usr/lib/x86_64-linux-gnu/{}", library.name));
        library.why = None;
    }
    info.libraries[0].path = Some("/usr/lib/libcuda.so.580.95.05".into());
    info.libraries[0].version = Some("CUDA 13.0".into());
    info
}

/// The same with eight GPUs.
pub(super) fn eight_gpus() -> Info {
    let pairs = (0..8).flat_map(|one| (one + 1..8).map(move |other| link(one, other)));
    Info { devices: (0..8).map(gpu).collect(), links: pairs.collect(), ..info() }
}

/// A machine without GPUs, where nothing is set and all is well.
pub(super) fn bare() -> Info {
    let mut lo = interface("lo", InterfaceKind::Loopback, &["127.0.0.1"]);
    lo.mtu = Some(65_536);
    let mut eth0 = interface("eth0", InterfaceKind::Ethernet, &["192.168.0.2"]);
    eth0.chosen = true;
    Info {
        format: FORMAT,
        version: "0.0.0".into(),
        host: Host {
            name: "laptop".into(),
            kernel: "Linux 6.8.0".into(),
            cpus: 1,
            memory_bytes: Some(8 << 30),
        },
        device_kind: Some("cpu".into()),
        cuda: Cuda {
            why: Some("no libcuda.so.1 found".into()),
            fix: Some("install the NVIDIA driver".into()),
            ..Cuda::default()
        },
        devices: vec![cpu()],
        links: Vec::new(),
        network: Network {
            interfaces: vec![
                eth0,
                interface("ifb0", InterfaceKind::Virtual, &[]),
                interface("ifb1", InterfaceKind::Virtual, &[]),
                lo,
            ],
            error: None,
            rdma: Vec::new(),
        },
        libraries: (0..libraries::COUNT).map(libraries::described).collect(),
        launch: Launch::default(),
        limits: Limits {
            open_files: Limit { soft: Some(1024), hard: Some(524_288) },
            locked_bytes: Limit { soft: Some(8 << 20), hard: Some(8 << 20) },
            shared_memory: Some(SharedMemory { bytes: 4 << 30, free_bytes: 4 << 30 }),
            group_memory: None,
        },
        variables: variables::all(Source::new(&|_| None)),
        other_variables: Vec::new(),
        unknown_variables: Vec::new(),
        problems: Vec::new(),
    }
}

fn interface(name: &str, kind: InterfaceKind, addresses: &[&str]) -> Interface {
    Interface {
        name: name.into(),
        kind,
        state: "up".into(),
        bits_per_second: None,
        mtu: None,
        addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
        pci: None,
        numa_node: None,
        chosen: false,
    }
}

fn handle(kind: &str, why: Option<&str>) -> Handle {
    Handle { kind: kind.into(), works: why.is_none(), why: why.map(str::to_owned) }
}

fn cpu() -> Device {
    let why = Some("the CPU device exports memory as file descriptors only");
    Device {
        kind: "cpu".into(),
        ordinal: 0,
        name: "CPU device (4 x 256 lanes)".into(),
        uuid: None,
        pci: None,
        numa_node: None,
        compute_capability: None,
        memory_bytes: 8 << 30,
        free_bytes: Some(8 << 30),
        multiprocessors: 4,
        threads_per_multiprocessor: 256,
        threads_per_block: 256,
        warp: 32,
        shared_bytes_per_block: 48 << 10,
        mig: None,
        nvlinks: None,
        fabric: None,
        handles: vec![handle("Fabric", why), handle("PosixFd", None), handle("RuntimeIpc", why)],
    }
}

fn gpu(ordinal: u32) -> Device {
    Device {
        kind: "cuda".into(),
        ordinal,
        name: "NVIDIA H200".into(),
        uuid: Some(format!("GPU-0000000{ordinal}-0000-0000-0000-000000000000")),
        pci: Some(format!("0000:{:02x}:00.0", 0x3b + ordinal)),
        numa_node: Some(0),
        compute_capability: Some("9.0".into()),
        memory_bytes: 140 << 30,
        free_bytes: Some(139 << 30),
        multiprocessors: 132,
        threads_per_multiprocessor: 2048,
        threads_per_block: 1024,
        shared_bytes_per_block: 227 << 10,
        mig: Some(false),
        nvlinks: Some(NvLinks {
            count: 18,
            version: Some("4.0".into()),
            bytes_per_second: Some(26_562_000_000),
        }),
        fabric: Some(Fabric { state: FabricState::None, cluster: None, clique: None }),
        handles: vec![
            handle("Fabric", Some("the driver does not offer it")),
            handle("PosixFd", None),
            handle("RuntimeIpc", None),
        ],
        ..cpu()
    }
}

fn link(one: u32, other: u32) -> Link {
    Link {
        between: (one, other),
        path: Some("NV18".into()),
        through_switch: true,
        peer_access: true,
    }
}

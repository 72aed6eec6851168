//! What is told, for people.

use super::layout::{bits_per_second, bytes, bytes_per_second, paragraph, table};
use super::model::{
    Area, Device, FabricState, GroupMemory, Info, Interface, InterfaceKind, Limit, Problem,
    RdmaDevice, Variable,
};

/// The whole report; the problems come last, where a terminal ends.
pub(super) fn text(info: &Info) -> String {
    let mut text = String::new();
    let host = &info.host;
    let memory = host.memory_bytes.map(|memory| format!(", {} of memory", bytes(memory)));
    let cpus = plural(u64::from(host.cpus), "CPU");
    let head = format!("on {}: {}, {cpus}{}", host.name, host.kernel, memory.unwrap_or_default());
    paragraph(&mut text, &format!("mscclrs {} ", info.version), &head);
    devices(&mut text, info);
    links(&mut text, info);
    network(&mut text, info);
    libraries(&mut text, info);
    launch(&mut text, info);
    limits(&mut text, info);
    variables(&mut text, info);
    problems(&mut text, &info.problems);
    text
}

fn heading(to: &mut String, title: &str) {
    to.push_str(&format!("\n{title}\n"));
}

fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn devices(to: &mut String, info: &Info) {
    let used = match info.device_kind.as_deref() {
        Some("cuda") => "Devices (GPUs are used where nobody says otherwise)",
        Some(_) => "Devices (the CPU device is used where nobody says otherwise)",
        None => "Devices",
    };
    heading(to, used);
    let cuda = &info.cuda;
    if cuda.usable {
        let version = |name: &str, version: &Option<String>| {
            version.as_ref().map(|version| format!("{name} {version}"))
        };
        let versions =
            [version("driver", &cuda.driver_version), version("CUDA", &cuda.cuda_version)];
        let versions: Vec<String> = versions.into_iter().flatten().collect();
        paragraph(to, "  CUDA     ", &versions.join(", "));
    } else {
        let why = cuda.why.as_deref().unwrap_or("it was not asked");
        paragraph(to, "  CUDA     ", &format!("no GPU can be used: {why}"));
    }
    for (place, device) in info.devices.iter().enumerate() {
        let equal = info.devices[..place].iter().find(|before| is_alike(before, device));
        one_device(to, device, equal);
    }
}

/// Whether two devices differ in their places only.
fn is_alike(one: &Device, other: &Device) -> bool {
    one.kind == other.kind
        && one.name == other.name
        && shape(one) == shape(other)
        && one.handles == other.handles
}

fn one_device(to: &mut String, device: &Device, equal: Option<&Device>) {
    let first = format!("  {:<8} ", format!("{}:{}", device.kind, device.ordinal));
    let rest = " ".repeat(first.len());
    let mut parts = vec![device.name.clone()];
    if let Some(capability) = &device.compute_capability {
        parts.push(format!("sm_{}", capability.replace('.', "")));
    } else {
        parts.push("any number of them".into());
    }
    parts.push(match device.free_bytes {
        Some(free) => format!("{} of {} free", bytes(free), bytes(device.memory_bytes)),
        None => bytes(device.memory_bytes),
    });
    if device.mig == Some(true) {
        parts.push("divided into instances (MIG)".into());
    }
    paragraph(to, &first, &parts.join(", "));
    if equal.is_none() {
        paragraph(to, &rest, &shape(device));
    }
    let place = [
        device.pci.as_ref().map(|pci| format!("PCI {pci}")),
        device.numa_node.map(|node| format!("NUMA node {node}")),
        device.uuid.clone(),
    ];
    let place: Vec<String> = place.into_iter().flatten().collect();
    if !place.is_empty() {
        paragraph(to, &rest, &place.join(", "));
    }
    joined(to, &rest, device);
    if let Some(equal) = equal {
        paragraph(to, &rest, &format!("otherwise as {}:{}", equal.kind, equal.ordinal));
        return;
    }
    for handle in &device.handles {
        let outcome = if handle.works { "works" } else { "no" };
        let why = handle.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        paragraph(to, &format!("{rest}{:<11} ", handle.kind), &format!("{outcome}{why}"));
    }
}

fn shape(device: &Device) -> String {
    format!(
        "{} with {} resident lanes each, blocks of up to {} lanes, warps of {}, {} of shared memory",
        plural(device.multiprocessors.into(), "multiprocessor"),
        device.threads_per_multiprocessor,
        device.threads_per_block,
        device.warp,
        bytes(device.shared_bytes_per_block.into())
    )
}

/// What it is joined to others by.
fn joined(to: &mut String, rest: &str, device: &Device) {
    let mut parts = Vec::new();
    if let Some(links) = &device.nvlinks {
        let version = links.version.as_ref().map(|version| format!(" {version}"));
        let rate =
            links.bytes_per_second.map(|rate| format!(", {} each way", bytes_per_second(rate)));
        parts.push(format!(
            "{}{}{}",
            plural(links.count.into(), "NVLink"),
            version.unwrap_or_default(),
            rate.unwrap_or_default()
        ));
    }
    if let Some(fabric) = &device.fabric {
        let clique = fabric.clique.map(|clique| format!(", clique {clique}")).unwrap_or_default();
        let cluster = fabric.cluster.as_deref().unwrap_or("unknown");
        match fabric.state {
            FabricState::Failed => parts.push("did not join its NVLink domain".into()),
            FabricState::Joined => parts.push(format!("in NVLink domain {cluster}{clique}")),
            FabricState::Joining => parts.push("has not joined its NVLink domain yet".into()),
            FabricState::None => {}
        }
    }
    if !parts.is_empty() {
        paragraph(to, rest, &parts.join("; "));
    }
}

/// A matrix, as nvidia-smi draws it.
fn links(to: &mut String, info: &Info) {
    if info.links.is_empty() {
        return;
    }
    heading(to, "Links between GPUs (NV: NVLinks; PIX, PXB, PHB, NODE, SYS: ever farther on PCIe)");
    let gpus = info.devices.iter().filter(|device| device.kind == "cuda").map(|gpu| gpu.ordinal);
    let gpus: Vec<u32> = gpus.collect();
    let mut rows = vec![[vec![String::new()], gpus.iter().map(u32::to_string).collect()].concat()];
    let mut apart = false;
    for one in &gpus {
        let mut row = vec![one.to_string()];
        for other in &gpus {
            let pair = (*one.min(other), *one.max(other));
            let link = info.links.iter().find(|link| link.between == pair);
            row.push(match link {
                _ if one == other => "-".into(),
                None => "?".into(),
                Some(link) => {
                    apart |= !link.peer_access;
                    let path = link.path.as_deref().unwrap_or("?");
                    format!("{path}{}", if link.peer_access { "" } else { "!" })
                }
            });
        }
        rows.push(row);
    }
    table(to, 2, &rows);
    if apart {
        paragraph(to, "  ", "! they do not reach each other's memory");
    }
}

fn network(to: &mut String, info: &Info) {
    heading(to, "Network (* set-up between hosts uses it)");
    let shown = |interface: &&Interface| {
        !interface.addresses.is_empty()
            || matches!(interface.kind, InterfaceKind::Ethernet | InterfaceKind::Infiniband)
    };
    let mut rows = Vec::new();
    for interface in info.network.interfaces.iter().filter(shown) {
        let mark = if interface.chosen { "*" } else { " " };
        rows.push(vec![
            format!("{mark} {}", interface.name),
            kind_name(interface.kind).into(),
            interface.state.clone(),
            interface.bits_per_second.map(bits_per_second).unwrap_or_default(),
            interface.mtu.map(|mtu| format!("MTU {mtu}")).unwrap_or_default(),
            interface.numa_node.map(|node| format!("NUMA {node}")).unwrap_or_default(),
            interface.addresses.join(" "),
        ]);
    }
    let rest = info.network.interfaces.iter().filter(|one| !shown(one)).count();
    without_empty_columns(&mut rows);
    table(to, 2, &rows);
    if rest > 0 {
        paragraph(to, "    ", &format!("and {rest} virtual without an address"));
    }
    if info.network.rdma.is_empty() {
        paragraph(to, "    ", "no RDMA devices");
    }
    let mut rows: Vec<_> = info.network.rdma.iter().flat_map(rdma_rows).collect();
    without_empty_columns(&mut rows);
    table(to, 4, &rows);
}

const fn kind_name(kind: InterfaceKind) -> &'static str {
    match kind {
        InterfaceKind::Ethernet => "Ethernet",
        InterfaceKind::Infiniband => "InfiniBand",
        InterfaceKind::Loopback => "loopback",
        InterfaceKind::Other => "other",
        InterfaceKind::Virtual => "virtual",
    }
}

fn rdma_rows(device: &RdmaDevice) -> Vec<Vec<String>> {
    let about = [
        device.firmware.as_ref().map(|firmware| format!("firmware {firmware}")),
        device.board.clone(),
        device.pci.as_ref().map(|pci| format!("PCI {pci}")),
        (!device.interfaces.is_empty()).then(|| device.interfaces.join(" ")),
    ];
    let about: Vec<String> = about.into_iter().flatten().collect();
    let row = |port: &super::model::Port| {
        vec![
            format!("{} port {}", device.name, port.number),
            port.link_layer.clone(),
            port.state.clone(),
            port.bits_per_second.map(bits_per_second).unwrap_or_default(),
            device.numa_node.map(|node| format!("NUMA {node}")).unwrap_or_default(),
            about.join(", "),
        ]
    };
    if device.ports.is_empty() {
        return vec![vec![device.name.clone(), about.join(", ")]];
    }
    device.ports.iter().map(row).collect()
}

/// Takes out columns that say nothing in any row.
fn without_empty_columns(rows: &mut [Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    for column in (0..columns).rev() {
        if rows.iter().all(|row| row.get(column).is_none_or(String::is_empty)) {
            rows.iter_mut().filter(|row| row.len() > column).for_each(|row| {
                row.remove(column);
            });
        }
    }
}

fn libraries(to: &mut String, info: &Info) {
    heading(to, "Libraries, opened at run time");
    let row = |library: &super::model::Library| {
        let what = match (&library.path, &library.why) {
            (Some(path), _) => {
                let version = library.version.as_ref().map(|version| format!("{version} in "));
                format!("{}{path}", version.unwrap_or_default())
            }
            // The loader repeats the name.
            (None, Some(why)) if why.contains("No such file") => "not here".into(),
            (None, Some(why)) => why.clone(),
            (None, None) => "not here".into(),
        };
        vec![library.name.clone(), format!("{}: {what}", library.used_for)]
    };
    table(to, 2, &info.libraries.iter().map(row).collect::<Vec<_>>());
}

fn launch(to: &mut String, info: &Info) {
    heading(to, "Launch");
    let launch = &info.launch;
    let line = match (&launch.launcher, &launch.error) {
        (None, None) => "no launcher: commands start their ranks themselves".to_owned(),
        (None, Some(_)) => "half of a launch; see the problems below".to_owned(),
        (Some(launcher), _) => {
            let number = |number: Option<u32>| number.map_or("?".into(), |n: u32| n.to_string());
            let here = launch.local_rank.map(|rank| {
                format!(", {rank} of {} on this host", number(launch.local_world_size))
            });
            let meet = launch.rendezvous.as_deref().unwrap_or("nobody says where");
            format!(
                "{launcher}: rank {} of {}{}, ranks meet at {meet}",
                number(launch.rank),
                number(launch.world_size),
                here.unwrap_or_default()
            )
        }
    };
    paragraph(to, "  ", &line);
}

fn limits(to: &mut String, info: &Info) {
    heading(to, "Limits of a process");
    let unlimited = || "unlimited".to_owned();
    let row = |name: &str, limit: Limit, show: &dyn Fn(u64) -> String| {
        let (soft, hard) = (limit.soft.map_or_else(unlimited, show), limit.hard.map(show));
        let most = if limit.soft == limit.hard {
            String::new()
        } else {
            format!(", can be raised to {}", hard.unwrap_or_else(unlimited))
        };
        vec![name.to_owned(), format!("{soft}{most}")]
    };
    let limits = &info.limits;
    let shared = limits.shared_memory.map_or("not there".into(), |memory| {
        format!("{}, {} free", bytes(memory.bytes), bytes(memory.free_bytes))
    });
    let mut rows = vec![
        row("open files", limits.open_files, &|files| files.to_string()),
        row("locked memory", limits.locked_bytes, &bytes),
        vec!["/dev/shm".into(), shared],
    ];
    if let Some(GroupMemory { bytes: most, used_bytes, file }) = &limits.group_memory {
        let text = format!("{}, {} in use: {file}", bytes(*most), bytes(*used_bytes));
        rows.push(vec!["control group".into(), text]);
    }
    table(to, 2, &rows);
}

fn variables(to: &mut String, info: &Info) {
    heading(to, "Environment variables (* set)");
    for variable in &info.variables {
        one_variable(to, variable);
    }
    // It is long, and says nothing of ranks.
    let mut others = info.other_variables.iter().filter(|other| other.name != "PATH").peekable();
    if others.peek().is_some() {
        heading(to, "Others' variables that are set and read");
    }
    for other in others {
        paragraph(to, "  ", &format!("{} = {}", other.name, other.value));
    }
}

fn one_variable(to: &mut String, variable: &Variable) {
    let alias = variable.alias.as_ref().map(|alias| format!(" or {alias}")).unwrap_or_default();
    match (&variable.set_as, &variable.value) {
        (Some(set_as), Some(value)) => paragraph(to, "  * ", &format!("{set_as} = {value}")),
        _ => paragraph(to, "    ", &format!("{}{alias}", variable.name)),
    }
    let about = format!("{} Default: {}.", variable.text, variable.default);
    paragraph(to, "        ", &about);
}

fn problems(to: &mut String, problems: &[Problem]) {
    if problems.is_empty() {
        heading(to, "Problems: none");
        return;
    }
    heading(to, "Problems");
    for (place, problem) in problems.iter().enumerate() {
        let number = format!("  {}. ", place + 1);
        paragraph(to, &number, &format!("{}: {}", area_name(problem.area), problem.what));
        paragraph(to, &format!("{}fix: ", " ".repeat(number.len())), &problem.fix);
    }
}

const fn area_name(area: Area) -> &'static str {
    match area {
        Area::Devices => "devices",
        Area::Launch => "launch",
        Area::Libraries => "libraries",
        Area::Limits => "limits",
        Area::Network => "network",
        Area::Variables => "variables",
    }
}

#[cfg(test)]
mod tests {
    use super::super::canned;
    use super::super::layout::WIDTH;
    use super::*;

    #[test]
    fn no_line_is_wider_than_the_page() {
        for info in [canned::info(), canned::bare(), canned::eight_gpus()] {
            for line in text(&info).lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
                assert_eq!(line, line.trim_end());
            }
        }
    }

    #[test]
    fn a_host_with_gpus_is_told_whole() {
        let text = text(&canned::info());
        for part in [
            "mscclrs 0.0.0 on node7: Linux 6.8.0, 64 CPUs, 256 GiB of memory\n",
            "  CUDA     driver 580.95.05, CUDA 13.0\n",
            "  cuda:0   NVIDIA H200, sm_90, 139 GiB of 140 GiB free\n",
            "PCI 0000:3b:00.0, NUMA node 0, GPU-0",
            "18 NVLinks 4.0, 26.6 GB/s each way\n",
            "           Fabric      no: the driver does not offer it\n",
            "           PosixFd     works\n",
            "     0     1\n  0  -     NV18\n  1  NV18  -\n",
            "  * eth0  Ethernet  up  100 Gb/s  MTU 9000  NUMA 0  10.0.0.7 fe80::7\n",
            "mlx5_0 port 1  InfiniBand  active  400 Gb/s  NUMA 0  firmware 28.39.1002, MT_838, PCI",
            "libcuda.so.1       GPUs: CUDA 13.0 in /usr/lib/libcuda.so.580.95.05\n",
            "torchrun: rank 3 of 8, 1 of 4 on this host, ranks meet at node0:29501\n",
            "open files     1048576\n",
            "locked memory  unlimited\n",
            "control group  128 GiB, 3 GiB in use: /sys/fs/cgroup/job_7/memory.max\n",
            "  * MSCCLRS_DEVICE = auto\n",
            "    MSCCLRS_HOSTID or MSCCLPP_HOSTID\n        Ranks with equal values",
            "  TORCHELASTIC_RUN_ID = set, 6 bytes\n",
            "Problems: none\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn a_machine_without_gpus_is_told_without_noise() {
        let text = text(&canned::bare());
        for part in [
            "  CUDA     no GPU can be used: no libcuda.so.1 found\n",
            "  cpu:0    CPU device (4 x 256 lanes), any number of them,",
            "and 2 virtual without an address\n",
            "no RDMA devices\n",
            "no launcher: commands start their ranks themselves\n",
            "open files     1024, can be raised to 524288\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        for noise in ["Links", "Others", "ifb0", "None", "null", "NUMA"] {
            assert!(!text.contains(noise), "{noise:?} is in\n{text}");
        }
    }

    #[test]
    fn problems_are_numbered_with_their_fixes_below() {
        let mut info = canned::bare();
        info.problems = vec![
            Problem { area: Area::Limits, what: "a is low".into(), fix: "raise it".into() },
            Problem { area: Area::Variables, what: "b is wrong".into(), fix: "unset it".into() },
        ];
        let text = text(&info);
        let end = "\nProblems\n  1. limits: a is low\n     fix: raise it\n  2. variables: b is wrong\n     \
                   fix: unset it\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn equal_gpus_are_described_once() {
        let mut info = canned::eight_gpus();
        let told = text(&info);
        assert_eq!(told.matches("132 multiprocessors").count(), 1);
        assert_eq!(told.matches("otherwise as cuda:0\n").count(), 7);
        info.devices[3].handles[1].works = false;
        let told = text(&info);
        assert_eq!(told.matches("132 multiprocessors").count(), 2);
        assert_eq!(told.matches("otherwise as cuda:0\n").count(), 6);
    }

    #[test]
    fn gpus_that_do_not_reach_each_other_are_marked() {
        let mut info = canned::info();
        info.links[0].peer_access = false;
        info.links[0].path = None;
        let text = text(&info);
        assert!(text.contains("  0  -   ?!\n") && text.contains("! they do not reach"), "{text}");
    }
}

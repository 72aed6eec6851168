//! What was found wrong, each with what to do about it.
//!
//! Invariant: what is here is a function of what is told, so that each problem can be shown with
//! canned input; and what is usual on a machine that works is no problem.

use super::model::{Area, Device, FabricState, Info, Limit, Problem};

/// Less is a shortage: each rank keeps connections to its neighbours, and descriptors of memory.
const OPEN_FILES: u64 = 1024;
/// Less is a shortage: containers have 64 MiB unless they are given more.
const SHARED_BYTES: u64 = 512 << 20;
/// Less free is a shortage.
const FREE_SHARED_BYTES: u64 = 64 << 20;
/// Less is a shortage where memory is registered with an RDMA device.
const LOCKED_BYTES: u64 = 1 << 30;
/// The driver's library, by the name under which it is looked for.
const DRIVER: &str = "libcuda.so.1";

/// All of them: what could not be looked at, where no other problem is the reason, and what was seen.
pub(super) fn problems(info: &Info, failures: Vec<Problem>) -> Vec<Problem> {
    let mut found = failures;
    found.retain(|failure| !is_told(info, &failure.what));
    variables(info, &mut found);
    launch(info, &mut found);
    driver(info, &mut found);
    for device in &info.devices {
        device_problems(device, &mut found);
    }
    links(info, &mut found);
    network(info, &mut found);
    libraries(info, &mut found);
    limits(info, &mut found);
    found
}

fn problem(area: Area, what: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem { area, what: what.into(), fix: fix.into() }
}

fn variables(info: &Info, found: &mut Vec<Problem>) {
    for variable in &info.variables {
        let Some(set_as) = &variable.set_as else { continue };
        if let Some(error) = &variable.error {
            let value = variable.value.as_deref().unwrap_or_default();
            found.push(problem(
                Area::Variables,
                format!("{set_as}={value}: {error}"),
                format!("set it to {}, or unset it", variable.allowed),
            ));
        }
        if let Some(shadowed) = &variable.shadowed {
            found.push(problem(
                Area::Variables,
                format!("{set_as} and {shadowed} are set to different values; {set_as} holds"),
                "unset one of them",
            ));
        }
    }
    for unknown in &info.unknown_variables {
        let fix = match &unknown.meant {
            Some(meant) => format!("did you mean {meant}? rename it, or unset it"),
            None => "unset it; the variables that there are stand above".into(),
        };
        found.push(problem(
            Area::Variables,
            format!("{} is set, and nobody reads it", unknown.name),
            fix,
        ));
    }
}

fn launch(info: &Info, found: &mut Vec<Problem>) {
    let Some(error) = &info.launch.error else { return };
    if !is_told(info, error) {
        let fix = match &info.launch.launcher {
            Some(_) => "set MSCCLRS_ADDRESS to a host and port of rank 0's, the same on every rank",
            None => {
                "start all ranks with one launcher, which sets all of its variables, or unset these"
            }
        };
        found.push(problem(Area::Launch, error.clone(), fix));
    }
}

/// Whether an error is about a variable's value, which is told of by itself.
fn is_told(info: &Info, error: &str) -> bool {
    info.variables.iter().filter(|variable| variable.error.is_some()).any(|variable| {
        variable.set_as.as_ref().is_some_and(|name| error.contains(&format!("{name}=")))
    })
}

fn driver(info: &Info, found: &mut Vec<Problem>) {
    let cuda = &info.cuda;
    let device = info.variables.iter().find(|variable| variable.name == "MSCCLRS_DEVICE");
    let wants_gpus = device.and_then(|device| device.value.as_deref()) == Some("cuda");
    let library = info.libraries.iter().find(|library| library.name == DRIVER);
    let library = library.filter(|library| library.found);
    if cuda.usable {
        if let Some(why) = &cuda.nvml_missing {
            found.push(problem(
                Area::Libraries,
                format!("how the GPUs are joined is not known: {why}"),
                "install the whole NVIDIA driver; in a container, have its NVIDIA_DRIVER_CAPABILITIES \
                 include utility",
            ));
        }
        return;
    }
    let why = cuda.why.as_deref().unwrap_or("nobody knows why");
    let fix = cuda.fix.clone().unwrap_or_else(|| "see `nvidia-smi`".into());
    match library {
        Some(library) => {
            let path = library.path.as_deref().unwrap_or(DRIVER);
            found.push(problem(
                Area::Devices,
                format!("{path} is here, but no GPU can be used: {why}"),
                fix,
            ));
        }
        None if cuda.device_files > 0 => found.push(problem(
            Area::Devices,
            format!(
                "the system has {} GPUs in /dev, but no GPU can be used: {why}",
                cuda.device_files
            ),
            "install the NVIDIA driver's libraries; in a container, have it started with GPUs (for \
             Docker --gpus all)",
        )),
        None if wants_gpus => found.push(problem(
            Area::Devices,
            format!("MSCCLRS_DEVICE is cuda, but no GPU can be used: {why}"),
            fix,
        )),
        None => {}
    }
}

fn device_problems(device: &Device, found: &mut Vec<Problem>) {
    let name = format!("{}:{}", device.kind, device.ordinal);
    let oldest = mscclrs_ptx::PTX_ARCHITECTURES.iter().map(|architecture| architecture.sm).min();
    let capability = device.compute_capability.as_deref().map(|text| text.replace('.', ""));
    let capability = capability.and_then(|text| text.parse::<u32>().ok());
    if let (Some(oldest), Some(capability)) = (oldest, capability)
        && capability < oldest
    {
        found.push(problem(
            Area::Devices,
            format!("{name} is an sm_{capability}, and there is no code for it"),
            format!("use GPUs from sm_{oldest} on (CUDA_VISIBLE_DEVICES), or MSCCLRS_DEVICE=cpu"),
        ));
    }
    if !device.handles.is_empty() && device.handles.iter().all(|handle| !handle.works) {
        // The form that most devices have.
        let usual = device.handles.iter().find(|handle| handle.kind == "PosixFd");
        let why = usual.and_then(|handle| handle.why.as_deref()).unwrap_or("no form works");
        found.push(problem(
            Area::Devices,
            format!("memory of {name} cannot go to another process: {why}"),
            "run ranks as threads of one process (--threads), or mend what is said above",
        ));
    }
    let fabric = device.fabric.as_ref().map(|fabric| fabric.state);
    if let Some(state @ (FabricState::Failed | FabricState::Joining)) = fabric {
        let what = if state == FabricState::Failed { "could not join" } else { "has not joined" };
        found.push(problem(
            Area::Devices,
            format!("{name} {what} its NVLink domain"),
            "see `nvidia-smi -q` under Fabric, and whether the fabric manager runs",
        ));
    }
    let works =
        |kind: &str| device.handles.iter().any(|handle| handle.kind == kind && handle.works);
    if fabric == Some(FabricState::Joined) && !device.handles.is_empty() && !works("Fabric") {
        found.push(problem(
            Area::Devices,
            format!("{name} is in an NVLink domain over hosts, but its memory has no fabric handles"),
            "give the process an IMEX channel (/dev/nvidia-caps-imex-channels), the same on all hosts",
        ));
    }
}

fn links(info: &Info, found: &mut Vec<Problem>) {
    let apart: Vec<String> = info
        .links
        .iter()
        .filter(|link| !link.peer_access)
        .map(|link| format!("{} and {}", link.between.0, link.between.1))
        .collect();
    if !apart.is_empty() {
        found.push(problem(
            Area::Devices,
            format!("GPUs that do not reach each other's memory: {}", apart.join(", ")),
            "see `nvidia-smi topo -p2p r`; a virtual machine or an IOMMU may keep them apart",
        ));
    }
}

fn network(info: &Info, found: &mut Vec<Problem>) {
    if let Some(error) = &info.network.error
        && !is_told(info, error)
    {
        found.push(problem(
            Area::Network,
            error.clone(),
            "name one that is up in MSCCLRS_SOCKET_IFNAME, or unset it and MSCCLRS_SOCKET_FAMILY",
        ));
    }
    let rdma = &info.network.rdma;
    let mut ports = rdma.iter().flat_map(|device| &device.ports);
    if !rdma.is_empty() && !ports.any(|port| port.state == "active") {
        let names: Vec<&str> = rdma.iter().map(|device| device.name.as_str()).collect();
        found.push(problem(
            Area::Network,
            format!("no port of {} is active", names.join(", ")),
            "see to the cable and the switch, for InfiniBand to its subnet manager, and bring the \
             interface up",
        ));
    }
}

fn libraries(info: &Info, found: &mut Vec<Problem>) {
    let variable = info.variables.iter().find(|variable| variable.name == "MSCCLRS_NCCL_LIBRARY");
    let named = variable.is_some_and(|variable| variable.value.is_some());
    let is_new = |name: &str| !found.iter().any(|problem| problem.what.starts_with(name));
    let missing: Vec<_> =
        info.libraries.iter().filter(|library| !library.found && is_new(&library.name)).collect();
    for library in missing {
        let why = library.why.as_deref().unwrap_or("it is not there");
        match library.name.as_str() {
            "libnccl.so.2" if named => found.push(problem(
                Area::Libraries,
                format!("MSCCLRS_NCCL_LIBRARY: {why}"),
                "name a libnccl.so.2 from 2.27 on, or unset it",
            )),
            "libibverbs.so.1" if !info.network.rdma.is_empty() => found.push(problem(
                Area::Libraries,
                format!("there are RDMA devices, but no libibverbs: {why}"),
                "install rdma-core (on Debian libibverbs1 and ibverbs-providers)",
            )),
            _ => {}
        }
    }
}

fn limits(info: &Info, found: &mut Vec<Problem>) {
    let Limit { soft, hard } = info.limits.open_files;
    if let Some(files) = soft.filter(|files| *files < OPEN_FILES) {
        let most = hard.map_or("as high as you like".into(), |hard| format!("up to {hard}"));
        found.push(problem(
            Area::Limits,
            format!("a process may have {files} files open, and ranks need connections and memory"),
            format!("ulimit -n {OPEN_FILES} or more (here {most}) before starting ranks"),
        ));
    }
    let locked = info.limits.locked_bytes.soft.filter(|bytes| *bytes < LOCKED_BYTES);
    if let (Some(bytes), false) = (locked, info.network.rdma.is_empty()) {
        found.push(problem(
            Area::Limits,
            format!("a process may lock {bytes} bytes of memory, too few to register it for RDMA"),
            "ulimit -l unlimited; in a container --ulimit memlock=-1",
        ));
    }
    let given =
        "in a container --shm-size=8g or --ipc=host; else mount -o remount,size=8G /dev/shm";
    match info.limits.shared_memory {
        None => found.push(problem(
            Area::Limits,
            "there is no /dev/shm, which NCCL and frameworks beside need",
            "mount a tmpfs there",
        )),
        Some(memory) if memory.bytes < SHARED_BYTES => found.push(problem(
            Area::Limits,
            format!(
                "/dev/shm has {} MiB, too few for NCCL and frameworks beside",
                memory.bytes >> 20
            ),
            given,
        )),
        Some(memory) if memory.free_bytes < FREE_SHARED_BYTES => found.push(problem(
            Area::Limits,
            format!("/dev/shm has {} MiB free", memory.free_bytes >> 20),
            "remove what ended programs left in /dev/shm, or make it larger",
        )),
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::canned;
    use super::super::model::{Fabric, Handle, SharedMemory, UnknownVariable};
    use super::*;

    /// What is told of an otherwise good machine after a change.
    fn after(change: impl FnOnce(&mut Info)) -> Vec<Problem> {
        let mut info = canned::info();
        change(&mut info);
        problems(&info, Vec::new())
    }

    fn only(change: impl FnOnce(&mut Info), area: Area, what: &str, fix: &str) {
        let found = after(change);
        let [problem] = &found[..] else { panic!("one problem with {what:?}, not {found:#?}") };
        assert_eq!(problem.area, area);
        assert!(problem.what.contains(what), "{problem:?} lacks {what:?}");
        assert!(problem.fix.contains(fix), "{problem:?} lacks {fix:?}");
    }

    fn set(info: &mut Info, name: &str, value: &str, error: Option<&str>) {
        let variable = info.variables.iter_mut().find(|variable| variable.name == name);
        let variable = variable.expect("known");
        variable.set_as = Some(name.into());
        variable.value = Some(value.into());
        variable.error = error.map(str::to_owned);
    }

    #[test]
    fn a_good_machine_has_none() {
        assert_eq!(after(|_| {}), []);
        assert_eq!(problems(&canned::bare(), Vec::new()), []);
    }

    #[test]
    fn wrong_variables_are_told_once() {
        let wrong = |info: &mut Info| {
            set(info, "MSCCLRS_TIMEOUT", "soon", Some("the value is not allowed"));
        };
        let what = "MSCCLRS_TIMEOUT=soon: the value is not allowed";
        only(wrong, Area::Variables, what, "set it to seconds, more than 0");
        let rank = |info: &mut Info| {
            set(info, "MSCCLRS_RANK", "x", Some("the value is not allowed"));
            info.launch.error = Some("MSCCLRS_RANK=x: allowed is a number".into());
        };
        only(rank, Area::Variables, "MSCCLRS_RANK=x", "or unset it");
        let list = |info: &mut Info| {
            set(info, "MSCCLRS_SOCKET_IFNAME", "a,", Some("the list cannot be read"));
            info.network.error =
                Some("MSCCLRS_SOCKET_IFNAME=a,: allowed is interface names".into());
        };
        only(list, Area::Variables, "MSCCLRS_SOCKET_IFNAME=a,", "interface names with commas");
    }

    #[test]
    fn both_spellings_and_unknown_names_are_told() {
        let both = |info: &mut Info| {
            set(info, "MSCCLRS_HOSTID", "a", None);
            info.variables.iter_mut().for_each(|variable| {
                if variable.name == "MSCCLRS_HOSTID" {
                    variable.shadowed = Some("MSCCLPP_HOSTID".into());
                }
            });
        };
        only(both, Area::Variables, "MSCCLRS_HOSTID and MSCCLPP_HOSTID are set", "unset one");
        let name = |meant: Option<&str>| {
            let meant = meant.map(str::to_owned);
            move |info: &mut Info| {
                info.unknown_variables.push(UnknownVariable { name: "MSCCLRS_X".into(), meant });
            }
        };
        let what = "MSCCLRS_X is set, and nobody reads it";
        only(name(Some("MSCCLRS_Y")), Area::Variables, what, "did you mean MSCCLRS_Y?");
        only(name(None), Area::Variables, what, "unset it");
    }

    #[test]
    fn half_a_launch_is_told() {
        let half = |info: &mut Info| {
            info.launch.launcher = None;
            info.launch.error = Some("RANK is not set, but WORLD_SIZE needs it; set both".into());
        };
        only(half, Area::Launch, "RANK is not set", "one launcher");
        let nowhere = |info: &mut Info| {
            info.launch.error = Some("MSCCLRS_ADDRESS is not set, but a rank needs it".into());
        };
        only(nowhere, Area::Launch, "MSCCLRS_ADDRESS is not set", "host and port of rank 0's");
    }

    #[test]
    fn a_driver_that_fails_is_told_and_none_at_all_is_not() {
        let failing = |info: &mut Info| {
            info.cuda.usable = false;
            info.cuda.why = Some("cuInit failed: 999".into());
            info.cuda.fix = Some("restart it".into());
            info.devices.clear();
            info.links.clear();
        };
        only(failing, Area::Devices, "libcuda.so.580.95.05 is here, but no GPU", "restart it");
        let gone = |info: &mut Info| {
            failing(info);
            info.libraries[0].found = false;
        };
        only(gone, Area::Devices, "has 2 GPUs in /dev", "--gpus all");
        let none = |info: &mut Info| {
            gone(info);
            info.cuda.device_files = 0;
        };
        assert_eq!(after(none), []);
        let wanted = |info: &mut Info| {
            none(info);
            set(info, "MSCCLRS_DEVICE", "cuda", None);
        };
        only(wanted, Area::Devices, "MSCCLRS_DEVICE is cuda", "restart it");
        let nvml = |info: &mut Info| info.cuda.nvml_missing = Some("no libnvidia-ml".into());
        only(nvml, Area::Libraries, "no libnvidia-ml", "utility");
    }

    #[test]
    fn what_is_wrong_with_a_device_is_told() {
        let old = |info: &mut Info| info.devices[0].compute_capability = Some("7.5".into());
        only(old, Area::Devices, "cuda:0 is an sm_75", "from sm_80 on");
        let stuck = |info: &mut Info| {
            let handle = |kind: &str| Handle {
                kind: kind.into(),
                works: false,
                why: Some(format!("{kind} did not")),
            };
            info.devices[1].handles = vec![handle("Fabric"), handle("PosixFd")];
        };
        only(
            stuck,
            Area::Devices,
            "cuda:1 cannot go to another process: PosixFd did not",
            "--threads",
        );
        let fabric = |state| {
            move |info: &mut Info| {
                info.devices[0].fabric = Some(Fabric { state, cluster: None, clique: None });
            }
        };
        only(fabric(FabricState::Failed), Area::Devices, "could not join", "nvidia-smi -q");
        only(fabric(FabricState::Joining), Area::Devices, "has not joined", "fabric manager");
        only(fabric(FabricState::Joined), Area::Devices, "no fabric handles", "IMEX");
        assert_eq!(after(fabric(FabricState::None)), []);
        let apart = |info: &mut Info| info.links[0].peer_access = false;
        only(apart, Area::Devices, "each other's memory: 0 and 1", "nvidia-smi topo");
    }

    #[test]
    fn what_is_wrong_with_the_network_is_told() {
        let none = |info: &mut Info| info.network.error = Some("no interface fits \"x\"".into());
        only(none, Area::Network, "no interface fits", "MSCCLRS_SOCKET_IFNAME");
        let down = |info: &mut Info| info.network.rdma[0].ports[0].state = "down".into();
        only(down, Area::Network, "no port of mlx5_0 is active", "cable");
        let library = |info: &mut Info| {
            info.libraries.iter_mut().for_each(|library| {
                library.found &= library.name != "libibverbs.so.1";
            });
        };
        only(library, Area::Libraries, "no libibverbs", "rdma-core");
        let locked = |info: &mut Info| info.limits.locked_bytes.soft = Some(8 << 20);
        only(locked, Area::Limits, "may lock 8388608 bytes", "ulimit -l");
    }

    #[test]
    fn a_named_library_that_cannot_be_used_is_told() {
        let named = |info: &mut Info| {
            set(info, "MSCCLRS_NCCL_LIBRARY", "/x", None);
            info.libraries.iter_mut().filter(|l| l.name == "libnccl.so.2").for_each(|library| {
                library.found = false;
                library.why = Some("/x cannot be used".into());
            });
        };
        only(named, Area::Libraries, "/x cannot be used", "2.27");
    }

    #[test]
    fn what_could_not_be_looked_at_is_told_unless_the_reason_is() {
        let failure = |what: &str| problem(Area::Devices, what, "do something");
        let mut info = canned::info();
        let failures =
            vec![failure("the CPU device could not be looked at: MSCCLRS_CPU_THREADS=1: no")];
        assert_eq!(problems(&info, failures.clone()), failures);
        set(&mut info, "MSCCLRS_CPU_THREADS", "1", Some("the value is not allowed"));
        let [told] = &problems(&info, failures)[..] else { panic!("one problem") };
        assert_eq!(told.area, Area::Variables);

        let mut info = canned::info();
        set(&mut info, "MSCCLRS_NCCL_LIBRARY", "/x", None);
        info.libraries
            .iter_mut()
            .for_each(|library| library.found = library.name != "libnccl.so.2");
        let failures = vec![failure("libnccl.so.2 could not be looked at: it hangs")];
        assert_eq!(problems(&info, failures.clone()), failures);
    }

    #[test]
    fn low_limits_are_told() {
        let files = |info: &mut Info| info.limits.open_files.soft = Some(256);
        only(files, Area::Limits, "256 files", "ulimit -n 1024");
        let small = |info: &mut Info| {
            info.limits.shared_memory =
                Some(SharedMemory { bytes: 64 << 20, free_bytes: 64 << 20 });
        };
        only(small, Area::Limits, "/dev/shm has 64 MiB,", "--shm-size");
        let full = |info: &mut Info| {
            info.limits.shared_memory = Some(SharedMemory { bytes: 64 << 30, free_bytes: 1 << 20 });
        };
        only(full, Area::Limits, "/dev/shm has 1 MiB free", "remove");
        only(|info| info.limits.shared_memory = None, Area::Limits, "no /dev/shm", "tmpfs");
    }
}

//! What `mscclrs info` tells, as it is written with `--json`.
//!
//! Invariant: a field is always there. What is not known is null, and a field never changes its
//! meaning without another [`FORMAT`]; docs/src/command.md describes each.

use serde::{Deserialize, Serialize};

/// Grows when a field goes or changes its meaning, not when one comes.
pub(super) const FORMAT: u32 = 1;

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Info {
    pub(super) format: u32,
    pub(super) version: String,
    pub(super) host: Host,
    pub(super) device_kind: Option<String>,
    pub(super) cuda: Cuda,
    pub(super) devices: Vec<Device>,
    pub(super) links: Vec<Link>,
    pub(super) network: Network,
    pub(super) libraries: Vec<Library>,
    pub(super) launch: Launch,
    pub(super) limits: Limits,
    pub(super) variables: Vec<Variable>,
    pub(super) other_variables: Vec<OtherVariable>,
    pub(super) unknown_variables: Vec<UnknownVariable>,
    pub(super) problems: Vec<Problem>,
}

/// The machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) kernel: String,
    pub(super) cpus: u32,
    pub(super) memory_bytes: Option<u64>,
}

/// What is known of CUDA besides its devices.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Cuda {
    pub(super) usable: bool,
    /// Why it is not.
    pub(super) why: Option<String>,
    /// What to do about that.
    pub(super) fix: Option<String>,
    pub(super) cuda_version: Option<String>,
    pub(super) driver_version: Option<String>,
    /// Why NVML could not be asked.
    pub(super) nvml_missing: Option<String>,
    /// GPUs that have a file in /dev.
    pub(super) device_files: u32,
}

/// A device that ranks can run on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Device {
    pub(super) kind: String,
    pub(super) ordinal: u32,
    pub(super) name: String,
    pub(super) uuid: Option<String>,
    pub(super) pci: Option<String>,
    pub(super) numa_node: Option<u32>,
    pub(super) compute_capability: Option<String>,
    pub(super) memory_bytes: u64,
    pub(super) free_bytes: Option<u64>,
    pub(super) multiprocessors: u32,
    pub(super) threads_per_multiprocessor: u32,
    pub(super) threads_per_block: u32,
    pub(super) warp: u32,
    pub(super) shared_bytes_per_block: u32,
    pub(super) mig: Option<bool>,
    pub(super) nvlinks: Option<NvLinks>,
    pub(super) fabric: Option<Fabric>,
    pub(super) handles: Vec<Handle>,
}

/// A GPU's NVLinks that are up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NvLinks {
    pub(super) count: u32,
    pub(super) version: Option<String>,
    pub(super) bytes_per_second: Option<u64>,
}

/// A GPU's part in an NVLink domain over several hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Fabric {
    pub(super) state: FabricState,
    pub(super) cluster: Option<String>,
    pub(super) clique: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FabricState {
    Failed,
    Joined,
    Joining,
    None,
}

/// Whether memory went to another process in one form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Handle {
    /// As the library names it: Fabric, PosixFd, RuntimeIpc.
    pub(super) kind: String,
    pub(super) works: bool,
    /// Why it did not.
    pub(super) why: Option<String>,
}

/// What joins two GPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) between: (u32, u32),
    /// As nvidia-smi names it: NV18, PIX.
    pub(super) path: Option<String>,
    pub(super) through_switch: bool,
    pub(super) peer_access: bool,
}

/// How this host reaches others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Network {
    pub(super) interfaces: Vec<Interface>,
    /// Why set-up could use none of them.
    pub(super) error: Option<String>,
    pub(super) rdma: Vec<RdmaDevice>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) kind: InterfaceKind,
    pub(super) state: String,
    pub(super) bits_per_second: Option<u64>,
    pub(super) mtu: Option<u32>,
    pub(super) addresses: Vec<String>,
    pub(super) pci: Option<String>,
    pub(super) numa_node: Option<u32>,
    /// Set-up would use it.
    pub(super) chosen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InterfaceKind {
    Ethernet,
    Infiniband,
    Loopback,
    Other,
    Virtual,
}

/// A network card that reads and writes memory by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RdmaDevice {
    pub(super) name: String,
    pub(super) firmware: Option<String>,
    pub(super) board: Option<String>,
    pub(super) pci: Option<String>,
    pub(super) numa_node: Option<u32>,
    /// The interfaces of the same card.
    pub(super) interfaces: Vec<String>,
    pub(super) ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Port {
    pub(super) number: u32,
    pub(super) state: String,
    pub(super) physical_state: String,
    pub(super) bits_per_second: Option<u64>,
    pub(super) link_layer: String,
}

/// A library that is opened at run time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Library {
    pub(super) name: String,
    pub(super) used_for: String,
    pub(super) found: bool,
    pub(super) path: Option<String>,
    pub(super) version: Option<String>,
    /// Why it cannot be used.
    pub(super) why: Option<String>,
}

/// What a launcher says.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Launch {
    pub(super) launcher: Option<String>,
    pub(super) rank: Option<u32>,
    pub(super) world_size: Option<u32>,
    pub(super) local_rank: Option<u32>,
    pub(super) local_world_size: Option<u32>,
    pub(super) rendezvous: Option<String>,
    /// What is wrong with it.
    pub(super) error: Option<String>,
}

/// What the system allows this process.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Limits {
    pub(super) open_files: Limit,
    pub(super) locked_bytes: Limit,
    pub(super) shared_memory: Option<SharedMemory>,
    pub(super) group_memory: Option<GroupMemory>,
}

/// A limit; null is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Limit {
    pub(super) soft: Option<u64>,
    pub(super) hard: Option<u64>,
}

/// /dev/shm.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct SharedMemory {
    pub(super) bytes: u64,
    pub(super) free_bytes: u64,
}

/// What the control group that allows the least lets its processes use together.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GroupMemory {
    pub(super) bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) file: String,
}

/// An environment variable of the project's.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) alias: Option<String>,
    /// The spelling that is set and holds.
    pub(super) set_as: Option<String>,
    /// Of a secret only how long it is.
    pub(super) value: Option<String>,
    /// Another spelling that is set too, to something else, and does not hold.
    pub(super) shadowed: Option<String>,
    pub(super) default: String,
    pub(super) allowed: String,
    pub(super) text: String,
    /// What is wrong with the value.
    pub(super) error: Option<String>,
}

/// A variable of somebody else's that is set and read.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OtherVariable {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) text: String,
}

/// A variable that looks like the project's, and that nobody reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct UnknownVariable {
    pub(super) name: String,
    /// What it may be meant for.
    pub(super) meant: Option<String>,
}

/// Something that was found wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    pub(super) area: Area,
    pub(super) what: String,
    pub(super) fix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Area {
    Devices,
    Launch,
    Libraries,
    Limits,
    Network,
    Variables,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::super::canned;
    use super::*;

    /// The whole names of a value's fields, as in `devices[].name`.
    fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                for (name, value) in object {
                    let dot = if path.is_empty() { "" } else { "." };
                    fields(value, &format!("{path}{dot}{name}"), found);
                }
            }
            // A list of plain values is a field like any other.
            Value::Array(list) if list.iter().any(Value::is_object) => {
                found.insert(format!("{path}[]"));
                list.iter().for_each(|value| fields(value, &format!("{path}[]"), found));
            }
            _ => {
                found.insert(path.to_owned());
            }
        }
    }

    /// All fields, of a machine that has something of everything.
    fn all() -> BTreeSet<String> {
        let mut info = canned::info();
        info.unknown_variables = vec![UnknownVariable { name: "MSCCLRS_X".into(), meant: None }];
        info.problems =
            vec![Problem { area: Area::Limits, what: String::new(), fix: String::new() }];
        let mut found = BTreeSet::new();
        fields(&serde_json::to_value(info).expect("an object"), "", &mut found);
        found
    }

    #[test]
    fn the_page_has_every_field_and_no_other() {
        let page = include_str!("../../../../docs/src/command.md");
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        let named = rows.filter_map(|row| row.split('|').nth(1));
        let named = named.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let documented: BTreeSet<String> = named.map(str::to_owned).collect();
        let all = all();
        assert_eq!(all.difference(&documented).collect::<Vec<_>>(), [""; 0], "are not on the page");
        // Objects have rows of their own.
        let stale = documented.iter().filter(|name| {
            !all.contains(*name) && !all.iter().any(|field| field.starts_with(&format!("{name}.")))
        });
        assert_eq!(stale.collect::<Vec<_>>(), [""; 0], "are no fields");
    }

    #[test]
    fn a_field_is_there_whether_it_is_known_or_not() {
        let known = serde_json::to_value(canned::info()).expect("an object");
        let unknown = serde_json::to_value(canned::bare()).expect("an object");
        for (one, other) in [(&known, &unknown), (&known["launch"], &unknown["launch"])] {
            let names = |value: &Value| -> Vec<String> {
                value.as_object().expect("an object").keys().cloned().collect()
            };
            assert_eq!(names(one), names(other));
        }
        assert_eq!(unknown["launch"]["rank"], Value::Null);
        assert_eq!(unknown["devices"][0]["nvlinks"], Value::Null);
    }
}

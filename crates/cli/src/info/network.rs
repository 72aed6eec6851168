//! Network interfaces and RDMA devices, as the system's files describe them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mscclrs_core::bootstrap::{self, InterfaceFilter};

use super::model::{Interface, InterfaceKind, Network, Port, RdmaDevice};

/// Of this host.
pub(super) fn look() -> Network {
    let mut network = read(Path::new("/sys/class"));
    match bootstrap::interfaces() {
        Ok(all) => {
            let chosen = InterfaceFilter::from_environment().and_then(|filter| filter.choose(&all));
            let chosen = chosen.unwrap_or_else(|error| {
                network.error = Some(error.to_string());
                Vec::new()
            });
            let addresses = all.into_iter().map(|one| {
                let is_chosen = chosen.contains(&one.address);
                (one.name, one.address.ip().to_string(), is_chosen)
            });
            add_addresses(&mut network.interfaces, addresses);
        }
        Err(error) => network.error = Some(error.to_string()),
    }
    network
}

/// Puts addresses to their interfaces; one that the system's files do not have is added.
fn add_addresses(
    interfaces: &mut Vec<Interface>,
    addresses: impl Iterator<Item = (String, String, bool)>,
) {
    for (name, address, chosen) in addresses {
        let place = interfaces.iter().position(|interface| interface.name == name);
        let place = place.unwrap_or_else(|| {
            interfaces.push(unknown(&name));
            interfaces.len() - 1
        });
        interfaces[place].addresses.push(address);
        interfaces[place].chosen |= chosen;
    }
}

fn unknown(name: &str) -> Interface {
    Interface {
        name: name.into(),
        kind: InterfaceKind::Other,
        state: "unknown".into(),
        bits_per_second: None,
        mtu: None,
        addresses: Vec::new(),
        pci: None,
        numa_node: None,
        chosen: false,
    }
}

/// What stands in a folder that is laid out as /sys/class.
fn read(class: &Path) -> Network {
    let interfaces = folders(&class.join("net"));
    let rdma = folders(&class.join("infiniband"));
    Network {
        interfaces: interfaces.iter().map(|(name, at)| interface(name, at)).collect(),
        error: None,
        rdma: rdma.iter().map(|(name, at)| rdma_device(name, at)).collect(),
    }
}

/// The names in a folder and where they lead, sorted; a folder that is not there has none.
fn folders(at: &Path) -> BTreeMap<String, std::path::PathBuf> {
    let entries = fs::read_dir(at).into_iter().flatten().flatten();
    let named =
        entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    named.collect()
}

/// What a file says, without its end of line; some cannot be read unless the device is up.
fn text(at: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(at.join(file)).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn number<T: std::str::FromStr>(at: &Path, file: &str) -> Option<T> {
    text(at, file)?.parse().ok()
}

/// Where the device of a class's entry is on its PCI bus: the name of the folder that it leads to.
fn pci(at: &Path) -> Option<String> {
    let device = fs::canonicalize(at.join("device")).ok()?;
    // A virtio device hangs below its PCI device.
    device.ancestors().find_map(|folder| {
        let name = folder.file_name()?.to_str()?;
        name.parse::<mscclrs_gpu::topology::PciAddress>().ok().map(|address| address.to_string())
    })
}

fn interface(name: &str, at: &Path) -> Interface {
    const ETHERNET: u32 = 1;
    const INFINIBAND: u32 = 32;
    const LOOPBACK: u32 = 772;
    let kind = match number(at, "type") {
        Some(LOOPBACK) => InterfaceKind::Loopback,
        Some(INFINIBAND) => InterfaceKind::Infiniband,
        _ if !at.join("device").exists() => InterfaceKind::Virtual,
        Some(ETHERNET) => InterfaceKind::Ethernet,
        _ => InterfaceKind::Other,
    };
    // Megabits a second; -1 or no answer where there is no such thing.
    let speed = number::<u64>(at, "speed").filter(|speed| *speed < u64::from(u32::MAX));
    Interface {
        name: name.into(),
        kind,
        state: text(at, "operstate").unwrap_or_else(|| "unknown".into()),
        bits_per_second: speed.map(|speed| speed * 1_000_000),
        mtu: number(at, "mtu"),
        addresses: Vec::new(),
        pci: pci(at),
        numa_node: number(at, "device/numa_node"),
        chosen: false,
    }
}

fn rdma_device(name: &str, at: &Path) -> RdmaDevice {
    let mut ports: Vec<Port> =
        folders(&at.join("ports")).iter().filter_map(|(number, at)| port(number, at)).collect();
    ports.sort_by_key(|port| port.number);
    RdmaDevice {
        name: name.into(),
        firmware: text(at, "fw_ver"),
        board: text(at, "board_id"),
        pci: pci(at),
        numa_node: number(at, "device/numa_node"),
        interfaces: folders(&at.join("device/net")).into_keys().collect(),
        ports,
    }
}

fn port(number: &str, at: &Path) -> Option<Port> {
    Some(Port {
        number: number.parse().ok()?,
        state: state(text(at, "state")),
        physical_state: state(text(at, "phys_state")),
        bits_per_second: text(at, "rate").as_deref().and_then(rate),
        link_layer: text(at, "link_layer").unwrap_or_else(|| "unknown".into()),
    })
}

/// "4: ACTIVE" as "active".
fn state(text: Option<String>) -> String {
    let text = text.unwrap_or_else(|| "unknown".into());
    let word = text.split_once(": ").map_or(text.as_str(), |(_, word)| word);
    word.to_ascii_lowercase()
}

/// "400 Gb/sec (4X NDR)" and "2.5 Gb/sec (1X SDR)" in bits a second.
fn rate(text: &str) -> Option<u64> {
    let (number, _) = text.split_once(" Gb/sec")?;
    let gigabits: f64 = number.trim().parse().ok()?;
    (gigabits > 0.0).then_some((gigabits * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files below a folder, which a test keeps.
    fn class(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("folder");
        for (file, text) in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        folder
    }

    #[test]
    fn interfaces_are_what_the_system_says() {
        let folder = class(&[
            ("net/eth0/type", "1\n"),
            ("net/eth0/operstate", "up\n"),
            ("net/eth0/speed", "100000\n"),
            ("net/eth0/mtu", "9000\n"),
            ("net/eth0/device/numa_node", "1\n"),
            ("net/eth1/type", "1\n"),
            ("net/eth1/speed", "-1\n"),
            ("net/eth1/device/numa_node", "-1\n"),
            ("net/ib0/type", "32\n"),
            ("net/ib0/device/vendor", "0x15b3\n"),
            ("net/lo/type", "772\n"),
            ("net/docker0/type", "1\n"),
            ("net/docker0/operstate", "down\n"),
        ]);
        let mut network = read(folder.path());
        let addresses = [
            ("eth0".to_owned(), "10.0.0.1".to_owned(), true),
            ("eth0".into(), "fe80::1".into(), false),
            ("tun0".into(), "10.9.0.1".into(), false),
        ];
        add_addresses(&mut network.interfaces, addresses.into_iter());
        let by_name = |name: &str| {
            network.interfaces.iter().find(|interface| interface.name == name).expect("there")
        };
        let eth0 = by_name("eth0");
        assert_eq!((eth0.kind, eth0.state.as_str()), (InterfaceKind::Ethernet, "up"));
        assert_eq!((eth0.bits_per_second, eth0.mtu), (Some(100_000_000_000), Some(9000)));
        assert_eq!((eth0.numa_node, eth0.chosen), (Some(1), true));
        assert_eq!(eth0.addresses, ["10.0.0.1", "fe80::1"]);
        let eth1 = by_name("eth1");
        assert_eq!((eth1.bits_per_second, eth1.numa_node, eth1.chosen), (None, None, false));
        assert_eq!(eth1.state, "unknown");
        assert_eq!(by_name("ib0").kind, InterfaceKind::Infiniband);
        assert_eq!(by_name("lo").kind, InterfaceKind::Loopback);
        assert_eq!(by_name("docker0").kind, InterfaceKind::Virtual);
        assert_eq!(by_name("tun0").addresses, ["10.9.0.1"]);
        assert!(network.rdma.is_empty());
    }

    #[test]
    fn rdma_devices_have_their_ports_in_order() {
        let folder = class(&[
            ("infiniband/mlx5_0/fw_ver", "28.39.1002\n"),
            ("infiniband/mlx5_0/board_id", "MT_0000000838\n"),
            ("infiniband/mlx5_0/device/net/ib0/mtu", "4092\n"),
            ("infiniband/mlx5_0/ports/2/state", "1: DOWN\n"),
            ("infiniband/mlx5_0/ports/10/state", "2: INIT\n"),
            ("infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
            ("infiniband/mlx5_0/ports/1/phys_state", "5: LinkUp\n"),
            ("infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"),
            ("infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"),
        ]);
        let network = read(folder.path());
        let [device] = &network.rdma[..] else { panic!("one device") };
        assert_eq!(
            (device.name.as_str(), device.board.as_deref()),
            ("mlx5_0", Some("MT_0000000838"))
        );
        assert_eq!(device.interfaces, ["ib0"]);
        assert_eq!(device.ports.iter().map(|port| port.number).collect::<Vec<_>>(), [1, 2, 10]);
        let port = &device.ports[0];
        assert_eq!((port.state.as_str(), port.physical_state.as_str()), ("active", "linkup"));
        assert_eq!(
            (port.bits_per_second, port.link_layer.as_str()),
            (Some(400_000_000_000), "InfiniBand")
        );
        assert_eq!(device.ports[1].link_layer, "unknown");
    }

    #[test]
    fn rates_are_read_with_fractions() {
        assert_eq!(rate("2.5 Gb/sec (1X SDR)"), Some(2_500_000_000));
        assert_eq!(rate("0 Gb/sec"), None);
        assert_eq!(rate("fast"), None);
    }

    #[test]
    fn a_machine_without_these_folders_has_nothing() {
        let network = read(Path::new("/nowhere"));
        assert!(network.interfaces.is_empty() && network.rdma.is_empty());
    }

    #[test]
    fn this_host_has_loopback_with_its_address() {
        let network = look();
        let lo = network.interfaces.iter().find(|interface| interface.name == "lo").expect("lo");
        assert!(lo.addresses.contains(&"127.0.0.1".to_owned()), "{lo:?}");
    }
}

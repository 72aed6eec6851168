//! What the driver and NVML say, put together.

use super::nvml::{Facts, GpuFacts, Remote};
use super::{Fabric, Gpu, Link, NvLinks, Path, PciAddress, Topology};
use crate::cuda::Survey;

/// Of what the driver found and NVML said of the same GPUs in the same order.
pub(super) fn topology(
    survey: &Survey,
    nvml: Result<Facts, String>,
    numa_node: &dyn Fn(PciAddress) -> Option<u32>,
) -> Topology {
    let (facts, nvml_missing) = match nvml {
        Ok(facts) => (facts, None),
        Err(why) => (Facts::default(), Some(why)),
    };
    let nothing = GpuFacts::default();
    let said = |ordinal: usize| facts.gpus.get(ordinal).unwrap_or(&nothing);
    let address = |ordinal: usize| -> Option<PciAddress> {
        survey.gpus[ordinal].pci.as_deref().and_then(|text| text.parse().ok())
    };
    let gpus = survey.gpus.iter().enumerate().map(|(ordinal, found)| {
        let (said, pci) = (said(ordinal), address(ordinal));
        Gpu {
            ordinal: ordinal as u32,
            name: found.name.clone(),
            uuid: found.uuid,
            limits: found.limits.clone(),
            memory_bytes: found.memory_bytes,
            free_bytes: said.free_bytes,
            pci,
            numa_node: pci.and_then(numa_node),
            mig: said.mig,
            nvlinks: nvlinks(said),
            fabric: said.fabric.map(fabric),
        }
    });
    let mut links = Vec::new();
    for first in 0..survey.gpus.len() {
        for second in first + 1..survey.gpus.len() {
            let reaches = |from: usize, to: usize| {
                survey.gpus[from].reaches.get(to).copied().unwrap_or(false)
            };
            links.push(Link {
                between: (first as u32, second as u32),
                path: path(
                    (said(first), address(first)),
                    (said(second), address(second)),
                    facts.distances.get(&(first, second)).copied().map(Path::Pcie),
                ),
                peer_access: reaches(first, second) && reaches(second, first),
            });
        }
    }
    let version = survey.cuda_version;
    Topology {
        cuda_version: format!("{}.{}", version / 1000, version % 1000 / 10),
        driver_version: facts.driver_version.clone(),
        nvml_missing,
        gpus: gpus.collect(),
        links,
    }
}

fn nvlinks(said: &GpuFacts) -> Option<NvLinks> {
    let links = said.nvlinks.as_ref()?;
    let count = links.len() as u32;
    (count > 0).then_some(NvLinks {
        count,
        version: said.nvlink_version,
        bytes_per_second: said.nvlink_bytes_per_second,
    })
}

type Side<'a> = (&'a GpuFacts, Option<PciAddress>);

/// NVLinks from one to the other, or of both to switches, or else what PCI Express gives.
fn path(first: Side<'_>, second: Side<'_>, pcie: Option<Path>) -> Option<Path> {
    let to = |from: Side<'_>, wanted: Option<Remote>| {
        let links = from.0.nvlinks.as_deref().unwrap_or_default();
        links.iter().filter(|remote| Some(**remote) == wanted).count() as u32
    };
    let direct = to(first, second.1.map(Remote::Gpu)).min(to(second, first.1.map(Remote::Gpu)));
    let switched = to(first, Some(Remote::Switch)).min(to(second, Some(Remote::Switch)));
    match (direct, switched) {
        (0, 0) => pcie,
        (0, count) => Some(Path::NvSwitch { count }),
        (count, _) => Some(Path::NvLink { count }),
    }
}

const STARTING: [u8; 2] = [1, 2];
const COMPLETED: u8 = 3;

/// A GPU that is alone in its host's NVLink domain says that it has joined, with a cluster that is all
/// zeros: then there is no domain over hosts.
fn fabric(said: super::nvml::FabricFacts) -> Fabric {
    match said.state {
        state if STARTING.contains(&state) => Fabric::Joining,
        COMPLETED if said.status != 0 => Fabric::Failed(said.status),
        COMPLETED if said.cluster != [0; 16] => {
            Fabric::Joined { cluster: said.cluster, clique: said.clique }
        }
        _ => Fabric::None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::nvml::FabricFacts;
    use super::super::{Distance, Topology};
    use super::*;
    use crate::Limits;
    use crate::cuda::Found;

    fn found(bus: u8, reaches: &[bool]) -> Found {
        Found {
            name: "a GPU".into(),
            uuid: [bus; 16],
            limits: Limits {
                sm: 90,
                multiprocessors: 132,
                threads_per_multiprocessor: 2048,
                threads_per_block: 1024,
                warp: 32,
                shared_bytes_per_block: 232_448,
            },
            memory_bytes: 141 << 30,
            pci: Some(format!("0000:{bus:02X}:00.0")),
            reaches: reaches.to_vec(),
        }
    }

    fn survey(reaches: &[&[bool]]) -> Survey {
        let gpus = reaches.iter().enumerate();
        Survey {
            cuda_version: 12_080,
            gpus: gpus.map(|(ordinal, reaches)| found(ordinal as u8 + 1, reaches)).collect(),
        }
    }

    fn gpu(bus: u8) -> Remote {
        Remote::Gpu(format!("00000000:{bus:02X}:00.0").parse().unwrap())
    }

    fn with_links(links: Vec<Remote>) -> GpuFacts {
        GpuFacts {
            nvlinks: Some(links),
            nvlink_version: Some("4.0"),
            nvlink_bytes_per_second: Some(26_562_000_000),
            ..GpuFacts::default()
        }
    }

    const BOTH: [&[bool]; 2] = [&[true, true], &[true, true]];

    fn pair(first: GpuFacts, second: GpuFacts) -> Topology {
        let mut facts = Facts { gpus: vec![first, second], ..Facts::default() };
        facts.distances.insert((0, 1), Distance::Node);
        topology(&survey(&BOTH), Ok(facts), &|_| Some(1))
    }

    #[test]
    fn links_through_switches_count_as_many_as_both_have() {
        let (full, part) = (vec![Remote::Switch; 18], vec![Remote::Switch; 17]);
        let pair = pair(with_links(full), with_links(part));
        assert_eq!(pair.links[0].path, Some(Path::NvSwitch { count: 17 }));
        assert_eq!(pair.links[0].path.unwrap().to_string(), "NV17");
        let links = pair.gpus[0].nvlinks.unwrap();
        assert_eq!((links.count, links.version), (18, Some("4.0")));
        assert_eq!(pair.gpus[0].numa_node, Some(1));
        assert_eq!(pair.cuda_version, "12.8");
    }

    #[test]
    fn links_to_each_other_win_over_switches_and_links_to_others_do_not_count() {
        let (a, b) = (vec![gpu(2), gpu(2), gpu(9)], vec![gpu(1), gpu(1), Remote::Other]);
        assert_eq!(
            pair(with_links(a), with_links(b)).links[0].path,
            Some(Path::NvLink { count: 2 })
        );
        let (a, b) = (vec![gpu(9)], vec![Remote::Switch]);
        assert_eq!(
            pair(with_links(a), with_links(b)).links[0].path,
            Some(Path::Pcie(Distance::Node))
        );
    }

    #[test]
    fn without_nvml_what_only_it_knows_is_left_open() {
        let reaches: [&[bool]; 2] = [&[true, true], &[false, true]];
        let alone = topology(&survey(&reaches), Err("no libnvidia-ml.so.1".into()), &|_| None);
        assert_eq!(alone.nvml_missing.as_deref(), Some("no libnvidia-ml.so.1"));
        let link = Link { between: (0, 1), path: None, peer_access: false };
        assert_eq!(alone.links, [link]);
        let gpu = &alone.gpus[1];
        assert_eq!((gpu.ordinal, gpu.uuid, gpu.memory_bytes), (1, [2; 16], 141 << 30));
        assert_eq!(gpu.pci.unwrap().to_string(), "0000:02:00.0");
        assert!(gpu.nvlinks.is_none() && gpu.fabric.is_none() && gpu.free_bytes.is_none());
    }

    #[test]
    fn a_cluster_of_zeros_is_none() {
        let cluster = [7; 16];
        for (state, status, named, expected) in [
            (0, 0, [0; 16], Fabric::None),
            (1, 0, cluster, Fabric::Joining),
            (2, 0, cluster, Fabric::Joining),
            (3, 0, [0; 16], Fabric::None),
            (3, 0, cluster, Fabric::Joined { cluster, clique: 5 }),
            (3, 15, cluster, Fabric::Failed(15)),
            (99, 0, cluster, Fabric::None),
        ] {
            let said = FabricFacts { state, status, cluster: named, clique: 5 };
            assert_eq!(fabric(said), expected, "{said:?}");
        }
    }

    #[test]
    fn one_gpu_has_no_links_and_none_has_no_gpus() {
        let one = topology(&survey(&[&[true]]), Ok(Facts::default()), &|_| None);
        assert_eq!((one.gpus.len(), one.links.len()), (1, 0));
        let none = topology(&survey(&[]), Ok(Facts::default()), &|_| None);
        assert!(none.gpus.is_empty() && none.links.is_empty());
    }
}

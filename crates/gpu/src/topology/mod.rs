//! The GPUs of this host and how they are joined, asked without opening any of them: no context is
//! made and no memory is taken.
//!
//! The driver says what the GPUs are and which reach each other. How they are joined is known by
//! NVML, libnvidia-ml, which is opened at run time and need not be there; what only it knows is then
//! left open.

mod assemble;
mod nvml;
mod pci;

use std::fmt;

use crate::{Limits, Result, cuda};

pub use pci::PciAddress;

/// The GPUs of this host and how they are joined.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// The newest version of CUDA that the driver speaks, e.g. 13.0.
    pub cuda_version: String,
    /// The driver's version, e.g. 580.95.05, where NVML says it.
    pub driver_version: Option<String>,
    /// Why NVML could not be asked, if so.
    pub nvml_missing: Option<String>,
    /// The GPUs, by ordinal.
    pub gpus: Vec<Gpu>,
    /// What joins each pair of them, once a pair.
    pub links: Vec<Link>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Its number among those that this process sees.
    pub ordinal: u32,
    /// Its product name.
    pub name: String,
    /// Names it among all processes of the host.
    pub uuid: [u8; 16],
    /// What it allows.
    pub limits: Limits,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Bytes of it that nobody uses.
    pub free_bytes: Option<u64>,
    /// Where it is on its PCI bus.
    pub pci: Option<PciAddress>,
    /// The NUMA node that its bus belongs to.
    pub numa_node: Option<u32>,
    /// Whether it is divided into instances (MIG).
    pub mig: Option<bool>,
    /// Its NVLinks that are up.
    pub nvlinks: Option<NvLinks>,
    /// Its part in an NVLink domain over several hosts.
    pub fabric: Option<Fabric>,
}

/// A GPU's NVLinks that are up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvLinks {
    /// How many.
    pub count: u32,
    /// Their version, e.g. 4.0.
    pub version: Option<&'static str>,
    /// Bytes a second that one carries in each direction.
    pub bytes_per_second: Option<u64>,
}

/// A GPU's part in an NVLink domain over several hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// It belongs to none.
    None,
    /// It has not joined yet.
    Joining,
    /// It could not join: NVML's code.
    Failed(u32),
    /// It has joined.
    Joined {
        /// Names the cluster.
        cluster: [u8; 16],
        /// GPUs of one clique reach each other.
        clique: u32,
    },
}

/// What joins two GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The two, the lower ordinal first.
    pub between: (u32, u32),
    /// The best way between them; not known without NVML.
    pub path: Option<Path>,
    /// Whether each reaches the other's memory.
    pub peer_access: bool,
}

/// A way between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// NVLinks from one to the other.
    NvLink {
        /// How many.
        count: u32,
    },
    /// NVLinks through switches.
    NvSwitch {
        /// How many of each of the two; the smaller number.
        count: u32,
    },
    /// PCI Express.
    Pcie(Distance),
}

/// What lies between two devices on PCI Express.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// They are on one board.
    Board,
    /// One switch.
    Switch,
    /// Several switches.
    Switches,
    /// A host bridge.
    HostBridge,
    /// Host bridges of one NUMA node.
    Node,
    /// The link between NUMA nodes.
    System,
}

impl Topology {
    /// Asks. An error says why no GPU can be used. Blocks as long as the driver takes, seconds where it
    /// has to wake GPUs.
    pub fn query() -> Result<Topology> {
        let survey = cuda::survey()?;
        Ok(assemble::topology(&survey, nvml::ask(&survey.gpus), &pci::numa_node))
    }
}

impl fmt::Display for Path {
    /// As nvidia-smi names them: NV18, PIX.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::NvLink { count } | Path::NvSwitch { count } => write!(f, "NV{count}"),
            Path::Pcie(distance) => f.write_str(match distance {
                Distance::Board => "PSB",
                Distance::Switch => "PIX",
                Distance::Switches => "PXB",
                Distance::HostBridge => "PHB",
                Distance::Node => "NODE",
                Distance::System => "SYS",
            }),
        }
    }
}

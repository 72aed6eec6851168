//! What queues run: launches and moves of bytes, alone or as a graph.

use std::any::Any;
use std::sync::Arc;

use mscclrs_device::Kernel;

use crate::{DeviceConfig, LaunchError, release_later};

/// Lanes of a block, at most: no GPU takes more.
pub(crate) const MOST_THREADS: u32 = 1024;

/// A launch of a kernel; cheap to clone.
#[derive(Clone)]
pub struct Launch {
    pub(crate) kernel: &'static Kernel,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) args: Arc<[u8]>,
}

impl Launch {
    /// A launch that devices of this configuration can run. The arguments are copied.
    ///
    /// # Safety
    /// The arguments are of the kernel's type, and hold addresses that the kernel may use as it does
    /// until it has run, as often as it is run.
    pub unsafe fn new(
        kernel: &'static Kernel,
        blocks: u32,
        threads: u32,
        shared_bytes: u32,
        args: &[u8],
        config: &DeviceConfig,
    ) -> Result<Launch, LaunchError> {
        let refuse =
            |what, value, allowed| Err(LaunchError { kernel: kernel.name, what, value, allowed });
        let most = kernel.max_threads.min(config.threads).min(MOST_THREADS);
        if blocks == 0 {
            return refuse("number of blocks", 0, "at least 1".into());
        }
        if threads == 0 || threads > most {
            let allowed = format!(
                "from 1 to {most} (the kernel was made for {}, the device has {}, and no GPU takes \
                 more than {MOST_THREADS})",
                kernel.max_threads, config.threads
            );
            return refuse("threads a block", threads.into(), allowed);
        }
        if shared_bytes > config.shared_bytes {
            let allowed = format!("at most {}", config.shared_bytes);
            return refuse("shared memory a block", shared_bytes.into(), allowed);
        }
        if args.len() != kernel.args_bytes {
            let allowed = format!("the kernel takes {}", kernel.args_bytes);
            return refuse("bytes of arguments", args.len() as u64, allowed);
        }
        Ok(Launch { kernel, blocks, threads, shared_bytes, args: args.into() })
    }
}

/// A piece of work that can be done again and again.
#[derive(Clone)]
pub enum Work {
    /// Copies bytes between two addresses.
    Copy {
        /// To this address.
        to: u64,
        /// From this one.
        from: u64,
        /// So many.
        bytes: u64,
    },
    /// Sets bytes.
    Fill {
        /// From this address on.
        to: u64,
        /// To this value.
        byte: u8,
        /// So many.
        bytes: u64,
    },
    /// Runs a kernel.
    Launch(Launch),
    /// Writes these bytes.
    Upload {
        /// To this address.
        to: u64,
        /// The bytes.
        data: Arc<[u8]>,
    },
}

impl Work {
    /// Where it moves bytes to, and how many; none for a launch.
    pub(crate) fn target(&self) -> (u64, u64) {
        match self {
            Work::Copy { to, bytes, .. } | Work::Fill { to, bytes, .. } => (*to, *bytes),
            Work::Upload { to, data } => (*to, data.len() as u64),
            Work::Launch(_) => (0, 0),
        }
    }
}

impl Work {
    /// Where a copy reads.
    pub(crate) fn source(&self) -> Option<u64> {
        match self {
            Work::Copy { from, .. } => Some(*from),
            _ => None,
        }
    }

    /// What it is called in reports.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Work::Copy { .. } => "copy",
            Work::Fill { .. } => "fill",
            Work::Upload { .. } => "upload",
            Work::Launch(launch) => launch.kernel.name,
        }
    }
}

/// Work, and which nodes before it in the graph it waits for.
#[derive(Clone)]
pub struct Node {
    /// The work.
    pub work: Work,
    /// Indexes of nodes; each less than this node's own.
    pub after: Vec<u32>,
}

/// Work with an order. Nodes that do not wait for each other run at the same time.
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) followers: Vec<Vec<u32>>,
    retained: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Graph {
    /// A graph; `retained` is dropped, on a thread of its own, after the graph and its last run.
    ///
    /// # Safety
    /// The addresses in the nodes may be read and written as the work does, until the last run of
    /// the graph has ended.
    pub unsafe fn new(nodes: Vec<Node>, retained: Vec<Arc<dyn Any + Send + Sync>>) -> Graph {
        let mut followers = vec![Vec::new(); nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            for &before in &node.after {
                assert!((before as usize) < index, "a node can only wait for one before it");
                followers[before as usize].push(index as u32);
            }
        }
        Graph { nodes, followers, retained }
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One piece of work.
    ///
    /// # Safety
    /// As [`Graph::new`].
    pub unsafe fn single(work: Work) -> Graph {
        Graph {
            nodes: vec![Node { work, after: Vec::new() }],
            followers: vec![Vec::new()],
            retained: Vec::new(),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.retained.is_empty() {
            release_later(Box::new(std::mem::take(&mut self.retained)));
        }
    }
}

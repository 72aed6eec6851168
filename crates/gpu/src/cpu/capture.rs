//! Captures and graphs.
//!
//! A capture collects nodes; each stream in it has a frontier, the nodes that what comes next on the
//! stream has to wait for. An event recorded in the capture carries the frontier to another stream,
//! which joins the capture by waiting for it. At the end all branches have to be joined again.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mscclrs_sim::{Graph, Node, Work};

use super::stream::{CpuStream, Replay};
use crate::backend::{BackendGraph, BackendGraphExec, BackendStream};
use crate::{Error, Result};

pub(super) struct Capture {
    id: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: Vec<Node>,
    retained: Vec<Arc<dyn Any + Send + Sync>>,
    ended: bool,
}

impl Capture {
    fn new() -> Capture {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Capture { id: NEXT.fetch_add(1, Ordering::Relaxed), state: Mutex::default() }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A list of nodes is whole at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream's part in a capture.
pub(super) struct Branch {
    pub(super) capture: Arc<Capture>,
    pub(super) frontier: Vec<u32>,
    /// The stream that began the capture, and has to end it.
    pub(super) origin: bool,
}

impl Branch {
    pub(super) fn begin() -> Self {
        Branch { capture: Arc::new(Capture::new()), frontier: Vec::new(), origin: true }
    }

    /// Another stream's part, behind what an event says; none if the capture is over.
    pub(super) fn join(capture: &Arc<Capture>, frontier: Vec<u32>) -> Option<Self> {
        (!capture.state().ended).then(|| Branch {
            capture: capture.clone(),
            frontier,
            origin: false,
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.capture.state().ended
    }

    pub(super) fn add(&mut self, work: Work) {
        let mut state = self.capture.state();
        let after = std::mem::take(&mut self.frontier);
        self.frontier.push(state.nodes.len() as u32);
        state.nodes.push(Node { work, after });
    }

    /// A graph within this one.
    fn add_graph(&mut self, graph: &Arc<Graph>) {
        let mut state = self.capture.state();
        let base = state.nodes.len() as u32;
        let mut last = vec![true; graph.nodes().len()];
        for node in graph.nodes() {
            let mut node = node.clone();
            for before in &mut node.after {
                last[*before as usize] = false;
                *before += base;
            }
            if node.after.is_empty() {
                node.after.clone_from(&self.frontier);
            }
            state.nodes.push(node);
        }
        // Keeps what the inner one retains.
        state.retained.push(graph.clone());
        if !last.is_empty() {
            let ends = (base..).zip(last).filter_map(|(node, last)| last.then_some(node));
            self.frontier = ends.collect();
        }
    }

    pub(super) fn wait(&mut self, frontier: &[u32]) {
        self.frontier.extend(frontier);
        self.frontier.sort_unstable();
        self.frontier.dedup();
    }

    pub(super) fn retain(&self, held: Arc<dyn Any + Send + Sync>) {
        self.capture.state().retained.push(held);
    }

    /// Ends the capture for all its streams.
    pub(super) fn end(self) -> Result<CpuGraph> {
        let mut state = self.capture.state();
        state.ended = true;
        let (nodes, retained) =
            (std::mem::take(&mut state.nodes), std::mem::take(&mut state.retained));
        let mut last = vec![true; nodes.len()];
        nodes.iter().flat_map(|node| &node.after).for_each(|&node| last[node as usize] = false);
        let joined = |node: usize| self.frontier.contains(&(node as u32));
        if (0..nodes.len()).any(|node| last[node] && !joined(node)) {
            // Not here: a destructor may ask this very stream whether it is being captured.
            mscclrs_sim::release_later(Box::new(retained));
            return Err(Error::Unsupported {
                what: "ending this capture",
                why: "another stream that joined it has work that the capturing stream does not \
                      wait for; record an event there and wait for it here"
                    .into(),
            });
        }
        // SAFETY: who captured promised for each piece of work, for as long as the graph is run.
        Ok(CpuGraph(Arc::new(unsafe { Graph::new(nodes, retained) })))
    }
}

/// A captured graph.
pub(super) struct CpuGraph(Arc<Graph>);

impl BackendGraph for CpuGraph {
    fn instantiate(&self) -> Result<Box<dyn BackendGraphExec>> {
        Ok(Box::new(CpuGraphExec { graph: self.0.clone(), last: Mutex::default() }))
    }
}

/// One ready to run. Its replays run one after the other, on whatever streams, as CUDA has it.
struct CpuGraphExec {
    graph: Arc<Graph>,
    /// The last replay.
    last: Mutex<Option<Replay>>,
}

impl BackendGraphExec for CpuGraphExec {
    fn launch(&self, stream: &dyn BackendStream) -> Result<()> {
        let stream: &CpuStream = stream.as_any().downcast_ref().ok_or_else(|| Error::Invalid {
            what: "stream to replay a graph on",
            value: "a stream of another back end".into(),
            allowed: "a graph of a CPU device runs on streams of CPU devices".into(),
        })?;
        if let Some(branch) = &mut *stream.branch() {
            branch.add_graph(&self.graph);
            return Ok(());
        }
        // Held, so that two threads' replays are in one order.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(stream.replay(last.as_ref(), self.graph.clone())?);
        Ok(())
    }
}

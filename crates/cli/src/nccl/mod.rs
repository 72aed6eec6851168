//! NVIDIA's NCCL, opened at run time, as a rival to measure beside ours.
//!
//! Multicast objects (NVLS) are a resource of the whole switch domain that a comparison does not take
//! by default: [`prepare_environment`] sets `NCCL_NVLS_ENABLE=0` where the variable is not set, and
//! the library is not opened without it. Who wants NVLS measured sets the variable to 1 or 2.

mod communicator;
mod context;
mod error;
mod library;
mod memory;
mod search;
mod sys;

use std::sync::Arc;

use anyhow::Result;
use mscclrs_core::Communicator;
use mscclrs_gpu::Stream;

use communicator::NcclCommunicator;
use error::Error;
pub(crate) use library::prepare_environment;
use memory::Memory;

use crate::rival::{Call, Collective, Rival};

/// What kind of memory NCCL works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// As a framework's plain allocation gives it.
    Plain,
    /// NCCL's own allocation, registered as a symmetric window.
    Symmetric,
}

impl Mode {
    /// Both, in the order of tables.
    const ALL: [Mode; 2] = [Mode::Plain, Mode::Symmetric];

    /// For tables and JSON.
    const fn name(self) -> &'static str {
        match self {
            Mode::Plain => "nccl plain",
            Mode::Symmetric => "nccl symmetric",
        }
    }
}

/// NCCL in one mode, with an input and an output of its own.
struct NcclRival {
    mode: Mode,
    // Before the communicator, which windows are deregistered from.
    input: Memory,
    output: Memory,
    communicator: Arc<NcclCommunicator>,
}

impl NcclRival {
    /// Allocates and registers `input_bytes` and `output_bytes`. Every rank calls it, with the same
    /// mode and sizes.
    fn new(
        communicator: &Arc<NcclCommunicator>,
        mode: Mode,
        input_bytes: u64,
        output_bytes: u64,
    ) -> Result<NcclRival, Error> {
        Ok(NcclRival {
            mode,
            input: Memory::new(communicator, mode, input_bytes)?,
            output: Memory::new(communicator, mode, output_bytes)?,
            communicator: communicator.clone(),
        })
    }
}

/// An error if there is no NCCL that can be opened.
pub(crate) fn require() -> Result<()> {
    Ok(library::Library::open().map(drop)?)
}

/// Opens NCCL, joins the ranks, and gives both modes, each with memory of these sizes. Every rank
/// calls it; if it fails on one rank it fails on all.
pub(crate) fn rivals(
    communicator: &Communicator,
    input_bytes: u64,
    output_bytes: u64,
) -> Result<Vec<Box<dyn Rival>>> {
    let nccl = NcclCommunicator::new(communicator)?;
    let mut rivals: Vec<Box<dyn Rival>> = Vec::new();
    for mode in Mode::ALL {
        rivals.push(Box::new(NcclRival::new(&nccl, mode, input_bytes, output_bytes)?));
    }
    Ok(rivals)
}

/// Path and version of the library that a comparison would open; an error says why there is none. Opens
/// it, and makes no communicator.
pub(crate) fn installed() -> Result<(String, String), Error> {
    let library = library::Library::find()?;
    Ok((library.path().into(), library.version()))
}

impl Rival for NcclRival {
    fn name(&self) -> &str {
        self.mode.name()
    }

    fn origin(&self) -> String {
        let library = self.communicator.library();
        format!("NCCL {} from {}", library.version(), library.path())
    }

    fn enqueue(&self, call: &Call, stream: &Stream) -> Result<()> {
        let nccl = &self.communicator;
        let element = u64::from(call.data_type.size());
        let (input_count, output_count) = match call.collective {
            Collective::AllGather => {
                (call.count, call.count.saturating_mul(nccl.world_size().into()))
            }
            Collective::AllReduce => (call.count, call.count),
        };
        self.output.holds("output", output_count, element)?;
        let output = self.output.address();
        let input = match (call.in_place, call.collective) {
            (false, _) => {
                self.input.holds("input", input_count, element)?;
                self.input.address()
            }
            (true, Collective::AllGather) => output + u64::from(nccl.rank()) * call.count * element,
            (true, Collective::AllReduce) => output,
        };
        // SAFETY: both ranges lie in live allocations of this rival, as just checked; who enqueues
        // waits for the stream before it drops the rival.
        unsafe {
            match call.collective {
                Collective::AllGather => {
                    nccl.all_gather(input, output, call.count, call.data_type, stream)?;
                }
                Collective::AllReduce => {
                    nccl.all_reduce(input, output, call.count, call.data_type, call.op, stream)?;
                }
            }
        }
        Ok(())
    }
}

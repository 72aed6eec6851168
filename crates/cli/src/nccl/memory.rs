//! Memory that NCCL works on.

use std::sync::Arc;

use mscclrs_gpu::{Buffer, MemoryKind};

use super::communicator::NcclCommunicator;
use super::sys::Window;
use super::{Error, Mode};

/// Sizes are rounded up to this, so that windows end where pages do.
const PAGE: u64 = 4096;

/// An allocation for one mode.
pub(super) struct Memory {
    address: u64,
    bytes: u64,
    _held: Held,
}

enum Held {
    Plain(#[expect(dead_code, reason = "held until it is dropped")] Buffer),
    Symmetric(#[expect(dead_code, reason = "held until it is dropped")] Registered),
}

struct Registered {
    communicator: Arc<NcclCommunicator>,
    address: u64,
    window: Option<Window>,
}

impl Memory {
    /// Allocates `bytes` bytes, and registers them if the mode says so. Every rank calls it, with the
    /// same mode and size.
    pub(super) fn new(
        communicator: &Arc<NcclCommunicator>,
        mode: Mode,
        bytes: u64,
    ) -> Result<Memory, Error> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE).ok_or_else(|| Error::Invalid {
            what: "bytes for NCCL",
            value: bytes.to_string(),
            allowed: "they have to fit in 64 bits".into(),
        })?;
        let device = communicator.device();
        match mode {
            Mode::Plain => {
                let buffer = device.alloc(bytes, MemoryKind::Plain).map_err(Error::from);
                let buffer = communicator.agree(buffer)?;
                Ok(Memory { address: buffer.address(), bytes, _held: Held::Plain(buffer) })
            }
            Mode::Symmetric => {
                // Nobody waits in a registration for a rank that has no memory.
                let mut registered =
                    communicator.agree(communicator.alloc(bytes).map(|address| Registered {
                        communicator: communicator.clone(),
                        address,
                        window: None,
                    }))?;
                let address = registered.address;
                registered.window =
                    Some(communicator.agree(communicator.register(address, bytes))?);
                Ok(Memory { address, bytes, _held: Held::Symmetric(registered) })
            }
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// An error if it has no room for `count` elements.
    pub(super) fn holds(&self, what: &'static str, count: u64, element: u64) -> Result<(), Error> {
        match count.checked_mul(element) {
            Some(needed) if needed <= self.bytes => Ok(()),
            _ => Err(Error::Invalid {
                what,
                value: format!("{count} elements of {element} bytes"),
                allowed: format!("it was made with {} bytes", self.bytes),
            }),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Errors leave nothing to be done: the memory is then freed with the process.
        if let Some(window) = self.window {
            // SAFETY: who measured has waited for its stream, and the window is used nowhere else.
            if unsafe { self.communicator.deregister(window) }.is_err() {
                return;
            }
        }
        // SAFETY: as above, and no window is left on it.
        let _ = unsafe { self.communicator.free(self.address) };
    }
}

// SAFETY: a window is a handle of its communicator, which may move between threads.
unsafe impl Send for Registered {}
// SAFETY: it is used by `&mut self` only, when dropped.
unsafe impl Sync for Registered {}

//! Memory given to peers.
//!
//! Invariant: as long as an [`Export`] lives, its handle can be imported; a descriptor is offered to
//! peers through the process's descriptor service until then.

use std::sync::Arc;

use mscclrs_gpu::{Buffer, Device, ExportedHandle, HandleKind, MemoryKind};

use crate::wire::{Reader, Writer};
use crate::{Error, FdOffer, FdService, FdTicket, Result};

/// Most bytes of a serialized ticket.
const MAX_TICKET: u64 = 1024;

/// What a peer needs to map memory; offered as long as this lives.
pub(crate) struct Export {
    handle: ExportedHandle,
    offer: Option<FdOffer>,
}

/// An [`Export`] as it arrives at a peer.
#[derive(Debug, PartialEq)]
pub(crate) struct Offered {
    pub(crate) handle: ExportedHandle,
    /// What fetches the descriptor, for handles that need one.
    pub(crate) ticket: Option<FdTicket>,
}

impl Export {
    /// Exports in the first form of `kinds` that this memory has.
    pub(crate) fn new(
        buffer: &Buffer,
        kinds: &[HandleKind],
        service: &Arc<FdService>,
    ) -> Result<Self> {
        let mut why = Vec::new();
        for &kind in kinds {
            match buffer.export(kind) {
                Ok(shared) => {
                    mscclrs_log::debug!(
                        MEMORY, handle = ?kind, bytes = buffer.bytes(),
                        "memory is offered to peers"
                    );
                    let offer = shared.fd.map(|fd| service.offer(fd)).transpose()?;
                    return Ok(Export { handle: shared.handle, offer });
                }
                Err(error) => {
                    mscclrs_log::debug!(
                        MEMORY, handle = ?kind, bytes = buffer.bytes(), why = %error,
                        "memory cannot be offered so"
                    );
                    why.push(format!("{kind:?}: {error}"));
                }
            }
        }
        Err(Error::Invalid {
            what: "memory to be shared",
            value: format!("{buffer:?}"),
            allowed: match why.is_empty() {
                true => "no form of sharing memory works for all ranks here".into(),
                false => format!("it cannot be exported ({})", why.join("; ")),
            },
        })
    }

    /// The forms to try, best first: those that all ranks have, and for memory that somebody else
    /// allocated also the ones that only such memory has.
    pub(crate) fn kinds(device: &Device, multi_host: bool) -> Vec<HandleKind> {
        let mut kinds = device.handle_kinds(MemoryKind::Shareable);
        for kind in device.handle_kinds(MemoryKind::Plain) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds.retain(|&kind| !multi_host || kind == HandleKind::Fabric);
        kinds
    }

    pub(crate) fn write(&self, to: &mut Writer) {
        write(to, &self.handle, self.offer.as_ref().map(FdOffer::ticket));
    }
}

impl Offered {
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self> {
        let handle = from.handle()?;
        let bytes = from.bytes("ticket", MAX_TICKET)?;
        let ticket = match bytes {
            [] => None,
            bytes => match serde_json::from_slice::<FdTicket>(bytes) {
                Ok(ticket) => Some(ticket),
                Err(error) => return Err(from.fail("ticket", error.to_string())),
            },
        };
        if (handle.kind == HandleKind::PosixFd) != ticket.is_some() {
            return Err(from.fail("ticket", "descriptors, and only they, come with a ticket"));
        }
        Ok(Offered { handle, ticket })
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn write(&self, to: &mut Writer) {
        write(to, &self.handle, self.ticket.as_ref());
    }
}

fn write(to: &mut Writer, handle: &ExportedHandle, ticket: Option<&FdTicket>) {
    to.handle(handle).bytes(&ticket.map(ticket_bytes).unwrap_or_default());
}

fn ticket_bytes(ticket: &FdTicket) -> Vec<u8> {
    // A struct of a string, a number and an array always has a JSON form.
    serde_json::to_vec(ticket).unwrap_or_default()
}

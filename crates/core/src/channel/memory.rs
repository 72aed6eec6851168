//! A channel over memory that both ranks can reach.

use mscclrs_device::Global;

use crate::{Error, RegisteredMemory, Result, Semaphore};

/// A channel between this rank and a peer over mapped memory. It keeps alive what its kernels use.
#[derive(Clone, Debug)]
pub struct MemoryChannel {
    semaphore: Semaphore,
    remote: RegisteredMemory,
    local: RegisteredMemory,
    packets: Option<(RegisteredMemory, RegisteredMemory)>,
}

impl MemoryChannel {
    /// A channel that puts from `local` to `remote` and gets from `remote` to `local`.
    pub fn new(
        semaphore: &Semaphore,
        remote: &RegisteredMemory,
        local: &RegisteredMemory,
    ) -> Result<Self> {
        require("remote memory", remote, semaphore, false)?;
        require("local memory", local, semaphore, true)?;
        Ok(MemoryChannel {
            semaphore: semaphore.clone(),
            remote: remote.clone(),
            local: local.clone(),
            packets: None,
        })
    }

    /// Gives the channel memory for packets: `inbox` is this rank's, into which the peer's packets
    /// go, `outbox` the peer's. Both begin at a multiple of 16 and hold zeros, or packets of older
    /// flags.
    pub fn with_packets(
        mut self,
        inbox: &RegisteredMemory,
        outbox: &RegisteredMemory,
    ) -> Result<Self> {
        require("inbox", inbox, &self.semaphore, true)?;
        require("outbox", outbox, &self.semaphore, false)?;
        for (what, memory) in [("inbox", inbox), ("outbox", outbox)] {
            if memory.address() % 16 != 0 {
                return Err(Error::Invalid {
                    what,
                    value: format!("{memory:?}"),
                    allowed: "packet memory begins at a multiple of 16 bytes".into(),
                });
            }
        }
        self.packets = Some((inbox.clone(), outbox.clone()));
        Ok(self)
    }

    /// The rank on the other side.
    pub fn peer(&self) -> u32 {
        self.semaphore.peer()
    }

    /// Its signals.
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// The peer's memory.
    pub fn remote(&self) -> &RegisteredMemory {
        &self.remote
    }

    /// This rank's memory.
    pub fn local(&self) -> &RegisteredMemory {
        &self.local
    }

    /// What kernels use, by value in their arguments. It holds addresses: the channel has to live
    /// when a kernel that uses it is launched; what it holds is freed only after that kernel.
    pub fn device_handle(&self) -> mscclrs_device::MemoryChannel {
        let (inbox, outbox) = match &self.packets {
            Some((inbox, outbox)) => (inbox.address(), outbox.address()),
            None => (0, 0),
        };
        mscclrs_device::MemoryChannel {
            semaphore: self.semaphore.device_handle(),
            remote: Global::from_address(self.remote.address()),
            local: Global::from_address(self.local.address()),
            inbox: Global::from_address(inbox),
            outbox: Global::from_address(outbox),
        }
    }
}

fn require(
    what: &'static str,
    memory: &RegisteredMemory,
    semaphore: &Semaphore,
    local: bool,
) -> Result<()> {
    let fits = match local {
        true => memory.is_local(),
        false => !memory.is_local() && memory.rank() == semaphore.peer(),
    };
    if fits {
        return Ok(());
    }
    let peer = semaphore.peer();
    Err(Error::Invalid {
        what,
        value: format!("{memory:?}"),
        allowed: match local {
            true => "it has to be this rank's own".into(),
            false => format!("it has to be of rank {peer}, the semaphore's other side"),
        },
    })
}

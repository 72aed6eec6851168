//! What tells hosts and processes apart.

use std::fs;
use std::sync::Mutex;
use std::sync::PoisonError;

use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// Identifies this host: a hash of its name and of the running kernel's boot id, so that containers
/// with host names of their own count as hosts. MSCCLRS_HOSTID, where set, is hashed instead.
pub(crate) fn host_id() -> u64 {
    if let Some(given) = crate::env::HOSTID.text() {
        return hash(&[b"given", given.as_bytes()]);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    hash(&[b"host", host_name().as_bytes(), boot.trim().as_bytes()])
}

/// This host's name, for people.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Identifies this process among all of all hosts: drawn once, and again by the child of a fork.
pub(crate) fn process_id() -> u64 {
    static DRAWN: Mutex<Option<(u32, u64)>> = Mutex::new(None);
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    match *drawn {
        Some((owner, id)) if owner == pid => id,
        _ => {
            // It need not be secret, so what the system knows of this process does as well.
            let id = random().map(u64::from_le_bytes).unwrap_or_else(|_| {
                let stat = fs::read("/proc/self/stat").unwrap_or_default();
                hash(&[b"process", &host_id().to_le_bytes(), &pid.to_le_bytes(), &stat])
            });
            *drawn = Some((pid, id));
            id
        }
    }
}

/// Bytes nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::io("cannot draw random bytes", std::io::Error::other(error)))?;
    Ok(bytes)
}

fn hash(parts: &[&[u8]]) -> u64 {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update((part.len() as u64).to_le_bytes());
        sha.update(part);
    }
    let digest: [u8; 32] = sha.finalize().into();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

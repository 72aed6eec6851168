//! What only CUDA devices have: contexts, foreign captures, handles between processes, PTX. Each test
//! passes without doing anything where there is no GPU.

#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod contexts;
mod driver;
mod handles;
mod kernels;
mod streams;
mod topology;
mod waits;

use std::sync::{Mutex, MutexGuard, PoisonError};

use mscclrs_gpu::{BackendKind, Device, Stream, device_count};

/// The first device, for one test at a time: some count free memory, some make the device busy.
pub(crate) fn device() -> Option<(Device, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match device_count(BackendKind::Cuda) {
        Ok(_) => Some((Device::open(BackendKind::Cuda, 0).unwrap(), alone)),
        Err(error) => {
            eprintln!("not run: {error}");
            None
        }
    }
}

/// A second device that the first can reach.
pub(crate) fn peer(of: &Device) -> Option<Device> {
    let count = device_count(BackendKind::Cuda).ok()?;
    (0..count)
        .filter(|ordinal| *ordinal != of.ordinal())
        .map(|ordinal| Device::open(BackendKind::Cuda, ordinal).unwrap())
        .find(|peer| of.can_reach(&peer.uuid()) && peer.can_reach(&of.uuid()))
}

pub(crate) fn read(stream: &Stream, address: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0xa5; bytes];
    // SAFETY: the tests give ranges of their own; pageable memory blocks until the copy is done.
    unsafe { stream.copy(data.as_mut_ptr() as u64, address, bytes as u64) }.unwrap();
    data
}

pub(crate) fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

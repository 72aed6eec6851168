//! Entry points: collectives and probes. Each is written once and runs on GPUs and the CPU device.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

pub mod allgather;
pub mod allreduce;
pub mod hop;
#[cfg(not(target_arch = "nvptx64"))]
mod images;
pub mod near;
pub mod probe;
pub mod ranks;
pub mod ways;
pub mod work;

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    mscclrs_device::arch::trap()
}

/// The GPU code of this crate.
#[cfg(not(target_arch = "nvptx64"))]
pub static MODULE: mscclrs_device::DeviceModule = mscclrs_device::DeviceModule {
    name: "mscclrs_kernels",
    source: mscclrs_device::ImageSource::Embedded(&images::IMAGES),
};

/// Every kernel of this crate.
#[cfg(not(target_arch = "nvptx64"))]
pub fn all_kernels() -> impl Iterator<Item = &'static mscclrs_device::Kernel> {
    probe::all()
        .chain(hop::all())
        .chain(ways::all())
        .chain(near::all())
        .chain(allgather::direct::all())
        .chain(allgather::mesh::all())
        .chain(allgather::packet::all())
        .chain(allreduce::direct::all())
        .chain(allreduce::mesh::all())
        .chain(allreduce::one_shot::all())
        .chain(allreduce::push::all())
        .chain(allreduce::two_shot::all())
}

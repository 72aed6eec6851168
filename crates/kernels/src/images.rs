//! The device files in ../device, made by `cargo xtask ptx` from the sources of this crate.

use mscclrs_device::{DeviceImage, ImageFormat};

macro_rules! image {
    ($sm:literal, $format:ident, $extension:literal) => {
        DeviceImage {
            sm: $sm,
            format: ImageFormat::$format,
            bytes: include_bytes!(concat!(
                "../device/mscclrs_kernels.sm_",
                $sm,
                ".",
                $extension,
                ".zst"
            )),
        }
    };
}

/// All images: machine code for GPUs that are known, PTX for those to come.
pub(crate) static IMAGES: [DeviceImage; 8] = [
    image!(80, Cubin, "cubin"),
    image!(86, Cubin, "cubin"),
    image!(89, Cubin, "cubin"),
    image!(90, Cubin, "cubin"),
    image!(100, Cubin, "cubin"),
    image!(120, Cubin, "cubin"),
    image!(80, Ptx, "ptx"),
    image!(90, Ptx, "ptx"),
];

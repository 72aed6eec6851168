//! Images of device modules: which one suits a device, and its bytes.
//!
//! Invariant: machine code runs only on its own major capability, from its own minor one up; text
//! (PTX) on its capability and all higher ones. Machine code is preferred, then the nearest
//! capability.

use std::io::Read;
use std::path::{Path, PathBuf};

use mscclrs_device::{DeviceModule, ImageFormat, ImageSource};

use crate::{Error, Result};

/// More than any module has; a broken file does not fill the memory.
const LARGEST: u64 = 1 << 30;

/// An image that suits a device, still packed.
pub(super) struct Image {
    pub(super) sm: u32,
    pub(super) format: ImageFormat,
    packed: Packed,
}

enum Packed {
    Embedded(&'static [u8]),
    File(PathBuf),
}

/// How well an image suits a device, the least best; `None` if not at all.
fn preference(sm: u32, format: ImageFormat, device_sm: u32) -> Option<(u32, u32)> {
    let distance = device_sm.checked_sub(sm)?;
    match format {
        ImageFormat::Cubin if sm / 10 == device_sm / 10 => Some((0, distance)),
        ImageFormat::Cubin => None,
        ImageFormat::Ptx => Some((1, distance)),
    }
}

/// Capability and form from `NAME.sm_90.cubin.zst`.
fn parse_name(file: &str, module: &str) -> Option<(u32, ImageFormat)> {
    let rest = file.strip_prefix(module)?.strip_prefix(".sm_")?.strip_suffix(".zst")?;
    let (sm, format) = rest.split_once('.')?;
    let format = match format {
        "cubin" => ImageFormat::Cubin,
        "ptx" => ImageFormat::Ptx,
        _ => return None,
    };
    Some((sm.parse().ok()?, format))
}

/// How to make the module's images.
fn rebuild(module: &DeviceModule) -> String {
    match module.source {
        ImageSource::Embedded(_) => "run `cargo xtask ptx` and build the program again".to_owned(),
        ImageSource::Folder(folder) => {
            let package = Path::new(folder).parent().unwrap_or(Path::new("."));
            format!("run `mscclrs kernel build {}`", package.display())
        }
    }
}

pub(super) fn failed(module: &'static DeviceModule, why: &str) -> Error {
    Error::Module { module: module.name, why: format!("{why}; {}", rebuild(module)) }
}

/// The images of a module that suit a device, best first.
pub(super) fn suitable(module: &'static DeviceModule, device_sm: u32) -> Result<Vec<Image>> {
    let images = match module.source {
        ImageSource::Embedded(images) => images
            .iter()
            .map(|image| Image {
                sm: image.sm,
                format: image.format,
                packed: Packed::Embedded(image.bytes),
            })
            .collect(),
        ImageSource::Folder(folder) => in_folder(module, Path::new(folder))?,
    };
    if images.is_empty() {
        return Err(failed(module, "there is no GPU code"));
    }
    let known: Vec<String> = images.iter().map(Image::describe).collect();
    let mut suited: Vec<_> = images
        .into_iter()
        .filter_map(|image| Some((preference(image.sm, image.format, device_sm)?, image)))
        .collect();
    if suited.is_empty() {
        let known = known.join(", ");
        return Err(failed(
            module,
            &format!("no GPU code suits this device, sm_{device_sm}; there is {known}"),
        ));
    }
    suited.sort_by_key(|(preference, _)| *preference);
    Ok(suited.into_iter().map(|(_, image)| image).collect())
}

fn in_folder(module: &'static DeviceModule, folder: &Path) -> Result<Vec<Image>> {
    let entries = std::fs::read_dir(folder).map_err(|error| {
        failed(module, &format!("its GPU code is not in {} ({error})", folder.display()))
    })?;
    Ok(entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let (sm, format) = parse_name(entry.file_name().to_str()?, module.name)?;
            Some(Image { sm, format, packed: Packed::File(entry.path()) })
        })
        .collect())
}

impl Image {
    pub(super) fn describe(&self) -> String {
        let form = match self.format {
            ImageFormat::Cubin => "cubin",
            ImageFormat::Ptx => "PTX",
        };
        format!("sm_{} {form}", self.sm)
    }

    /// The image as the driver wants it, with a NUL at the end.
    pub(super) fn unpack(&self, module: &'static DeviceModule) -> Result<Vec<u8>> {
        let broken = |error: &dyn std::fmt::Display| {
            failed(module, &format!("{} cannot be unpacked ({error})", self.describe()))
        };
        let file;
        let packed = match &self.packed {
            Packed::Embedded(bytes) => *bytes,
            Packed::File(path) => {
                file = std::fs::read(path).map_err(|error| broken(&error))?;
                &file[..]
            }
        };
        let mut image = Vec::new();
        ruzstd::decoding::StreamingDecoder::new(packed)
            .map_err(|error| broken(&error))?
            .take(LARGEST)
            .read_to_end(&mut image)
            .map_err(|error| broken(&error))?;
        image.push(0);
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use mscclrs_device::DeviceImage;

    use super::*;
    use ImageFormat::{Cubin, Ptx};

    fn module(images: &'static [DeviceImage]) -> &'static DeviceModule {
        Box::leak(Box::new(DeviceModule { name: "m", source: ImageSource::Embedded(images) }))
    }

    fn order(images: &[(u32, ImageFormat)], device_sm: u32) -> Vec<(u32, ImageFormat)> {
        let images: Vec<_> =
            images.iter().map(|&(sm, format)| DeviceImage { sm, format, bytes: &[] }).collect();
        suitable(module(Vec::leak(images)), device_sm)
            .map(|images| images.iter().map(|image| (image.sm, image.format)).collect())
            .unwrap_or_default()
    }

    #[test]
    fn machine_code_of_the_exact_capability_comes_first() {
        let all = [(80, Ptx), (90, Ptx), (80, Cubin), (86, Cubin), (89, Cubin), (90, Cubin)];
        assert_eq!(order(&all, 90), [(90, Cubin), (90, Ptx), (80, Ptx)]);
        assert_eq!(order(&all, 89), [(89, Cubin), (86, Cubin), (80, Cubin), (80, Ptx)]);
        assert_eq!(order(&all, 87), [(86, Cubin), (80, Cubin), (80, Ptx)]);
    }

    #[test]
    fn text_serves_newer_devices_and_older_ones_get_nothing() {
        let all = [(80, Ptx), (90, Ptx), (90, Cubin)];
        assert_eq!(order(&all, 120), [(90, Ptx), (80, Ptx)]);
        assert_eq!(order(&all, 103), [(90, Ptx), (80, Ptx)]);
        assert_eq!(order(&all, 75), []);
    }

    #[test]
    fn a_device_that_no_image_suits_is_told_what_there_is() {
        const IMAGES: &[DeviceImage] = &[DeviceImage { sm: 90, format: Cubin, bytes: &[] }];
        let error = suitable(module(IMAGES), 80).err().unwrap().to_string();
        assert!(error.contains("sm_80; there is sm_90 cubin; run `cargo xtask ptx`"), "{error}");
        let error = suitable(module(&[]), 80).err().unwrap().to_string();
        assert!(error.contains("no GPU code; run `cargo xtask ptx`"), "{error}");
    }

    #[test]
    fn files_of_a_folder_are_told_by_their_names() {
        assert_eq!(parse_name("m.sm_90.cubin.zst", "m"), Some((90, Cubin)));
        assert_eq!(parse_name("m.sm_120.ptx.zst", "m"), Some((120, Ptx)));
        for other in ["n.sm_90.ptx.zst", "m.sm_90.ptx", "m.sm_.ptx.zst", "m.sm_90.o.zst", "m.toml"]
        {
            assert_eq!(parse_name(other, "m"), None, "{other}");
        }
    }

    #[test]
    fn a_missing_folder_says_how_to_build_it() {
        static MODULE: DeviceModule =
            DeviceModule { name: "m", source: ImageSource::Folder("/nowhere/at/all") };
        let error = suitable(&MODULE, 90).err().unwrap().to_string();
        assert!(error.contains("not in /nowhere/at/all"), "{error}");
        assert!(error.contains("run `mscclrs kernel build /nowhere/at`"), "{error}");
    }

    #[test]
    fn an_image_is_unpacked_and_ends_in_nul() {
        // "hello" in one raw block, as the zstd format has it.
        const PACKED: &[u8] =
            &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 5, 0x29, 0, 0, b'h', b'e', b'l', b'l', b'o'];
        const IMAGES: &[DeviceImage] = &[DeviceImage { sm: 80, format: Ptx, bytes: PACKED }];
        let module = module(IMAGES);
        let images = suitable(module, 90).unwrap();
        assert_eq!(images[0].unpack(module).unwrap(), b"hello\0");
    }

    #[test]
    fn a_broken_image_is_an_error() {
        const IMAGES: &[DeviceImage] = &[DeviceImage { sm: 80, format: Ptx, bytes: &[1, 2, 3] }];
        let module = module(IMAGES);
        let error = suitable(module, 90).unwrap()[0].unpack(module).unwrap_err().to_string();
        assert!(error.contains("sm_80 PTX cannot be unpacked"), "{error}");
    }
}

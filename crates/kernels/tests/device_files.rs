//! The host's table of kernels and the device files belong together.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use mscclrs_device::ImageSource;
use mscclrs_kernels::{MODULE, all_kernels};
use serde_json::Value;

const REBUILD: &str = "run `cargo xtask ptx`";

fn record() -> Value {
    serde_json::from_str(include_str!("../device/mscclrs_kernels.json")).unwrap()
}

#[test]
fn every_kernel_has_an_entry_with_its_parameters() {
    let record = record();
    for kernel in all_kernels() {
        let entry = &record["entries"][kernel.name];
        assert!(entry.is_object(), "{} is not in the device files: {REBUILD}", kernel.name);
        let abi = format!("{:#018x}", kernel.abi);
        assert_eq!(entry["abi"], abi, "parameters of {}: {REBUILD}", kernel.name);
        assert_eq!(entry["max_threads"], kernel.max_threads, "{}: {REBUILD}", kernel.name);
    }
}

#[test]
fn every_entry_is_in_the_table() {
    let record = record();
    let entries: BTreeSet<&str> =
        record["entries"].as_object().unwrap().keys().map(String::as_str).collect();
    let kernels: BTreeSet<&str> = all_kernels().map(|kernel| kernel.name).collect();
    assert_eq!(entries, kernels, "{REBUILD}, or add the file to all_kernels()");
}

#[test]
fn registers_allow_blocks_of_the_declared_size() {
    const REGISTERS_A_BLOCK: u64 = 65536;
    for (name, entry) in record()["entries"].as_object().unwrap() {
        let threads = entry["max_threads"].as_u64().unwrap();
        for (sm, registers) in entry["registers"].as_object().unwrap() {
            // The machine gives registers out by eights.
            let registers = registers.as_u64().unwrap().next_multiple_of(8);
            assert!(threads * registers <= REGISTERS_A_BLOCK, "{name} on {sm}");
        }
    }
}

#[test]
fn every_recorded_image_is_embedded() {
    let ImageSource::Embedded(images) = MODULE.source else { panic!("not embedded") };
    assert_eq!(images.len(), record()["images"].as_object().unwrap().len());
    for image in images {
        assert_eq!(image.bytes[..4], 0xfd2f_b528_u32.to_le_bytes(), "sm_{}", image.sm);
    }
}

//! `cargo xtask ptx`: the device files of crates/kernels.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use mscclrs_ptx::{
    Architecture, BuildRequest, Built, CUBIN_CAPABILITIES, EntryRecord, Manifest,
    PTX_ARCHITECTURES, Tools, build_one, read_image,
};

use crate::shell::{root, target};

/// What `--check` builds again.
const CHECKED: Architecture = PTX_ARCHITECTURES[1];
const MODULE: &str = "mscclrs_kernels";

/// Where the tools of the device pipeline are kept.
pub(crate) fn cache() -> PathBuf {
    target().join("tools")
}

/// The tools in one line.
pub(crate) fn describe(tools: &Tools) -> String {
    let ptxas = tools.assembler.as_ref().map_or("no ptxas", |ptxas| &ptxas.version);
    format!("device code: {}, ptxas {ptxas}", tools.compiler.version)
}

fn device_folder() -> PathBuf {
    root().join("crates/kernels/device")
}

fn say(step: &str) {
    eprintln!("{step}");
}

fn request(tools: &Tools, draft: bool) -> BuildRequest<'_> {
    BuildRequest {
        manifest: root().join("crates/kernels/Cargo.toml"),
        out: device_folder(),
        work: target().join("ptx"),
        architectures: &PTX_ARCHITECTURES,
        cubins: &CUBIN_CAPABILITIES,
        draft,
        tools,
        progress: &say,
    }
}

/// Makes all device files.
pub(crate) fn build(draft: bool) -> Result<()> {
    let tools = Tools::install(&cache(), &say)?;
    say(&describe(&tools));
    let report = mscclrs_ptx::build(&request(&tools, draft))?;
    let mut total = 0;
    for (path, bytes) in &report.files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        println!("{bytes:>9} {name}");
        total += bytes;
    }
    println!("{total:>9} bytes, {} entries", report.manifest.entries.len());
    for line in spills(&report.manifest) {
        println!("draft: {line}");
    }
    Ok(())
}

/// Fails if the device files are not what the sources make.
pub(crate) fn check() -> Result<()> {
    let folder = device_folder();
    let manifest = Manifest::read(&Manifest::path(&folder, MODULE))?;
    if !manifest.sources.is_current(&root()) {
        bail!(
            "the sources of the device code changed after the device files were made; run `cargo \
             xtask ptx` and commit {}",
            folder.display()
        );
    }
    check_files(&manifest)?;
    let spills = spills(&manifest);
    if !spills.is_empty() {
        bail!("the device files are a draft:\n{}", spills.join("\n"));
    }
    let tools = Tools::install(&cache(), &say)?;
    say(&describe(&tools));
    // Breaking a rule of device code ends here.
    let built = build_one(&request(&tools, false), CHECKED, &[CHECKED.sm])?;
    check_entries(&manifest, &built)?;
    if manifest.sources.files != built.sources.files {
        bail!("the compiler read other files than the record names; run `cargo xtask ptx`");
    }
    let same_compiler = manifest.rustc == tools.compiler.version;
    let ptxas = tools.assembler.as_ref().map(|assembler| &assembler.version);
    if same_compiler && manifest.ptxas.as_ref() == ptxas {
        compare(&manifest, &built)?;
    } else {
        println!(
            "the device files were made by {} and ptxas {}: rebuilt, assembled and searched, but not \
             compared byte for byte",
            manifest.rustc,
            manifest.ptxas.as_deref().unwrap_or("none"),
        );
    }
    println!("{} entries keep the rules of device code", built.module.entries.len());
    Ok(())
}

fn spills(manifest: &Manifest) -> Vec<String> {
    let entry = |(name, entry): (&String, &EntryRecord)| {
        let bytes: Vec<_> =
            entry.spills.iter().map(|(sm, bytes)| format!("{bytes} on {sm}")).collect();
        (!bytes.is_empty()).then(|| format!("{name} spills bytes: {}", bytes.join(", ")))
    };
    manifest.entries.iter().filter_map(entry).collect()
}

/// Every file of the record is there with its content, and no other.
fn check_files(manifest: &Manifest) -> Result<()> {
    let folder = device_folder();
    let mut there = BTreeSet::new();
    for file in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        there.insert(file?.file_name().to_string_lossy().into_owned());
    }
    there.remove(&format!("{MODULE}.json"));
    let recorded: BTreeSet<String> = manifest.images.keys().cloned().collect();
    if let Some(name) = there.symmetric_difference(&recorded).next() {
        bail!(
            "{}: it and the record do not belong together; run `cargo xtask ptx`",
            folder.join(name).display()
        );
    }
    for (name, hash) in &manifest.images {
        let path = folder.join(name);
        if mscclrs_ptx::hash_bytes(&read_image(&path)?) != *hash {
            bail!("{}: its content is not the recorded one; run `cargo xtask ptx`", path.display());
        }
    }
    Ok(())
}

fn check_entries(manifest: &Manifest, built: &Built) -> Result<()> {
    let names: BTreeSet<&str> = built.module.entries.iter().map(|entry| &*entry.name).collect();
    let recorded: BTreeSet<&str> = manifest.entries.keys().map(String::as_str).collect();
    if let Some(name) = names.symmetric_difference(&recorded).next() {
        bail!("entry {name} is in the sources or in the record only; run `cargo xtask ptx`");
    }
    for entry in &built.module.entries {
        let record = &manifest.entries[&entry.name];
        if record.abi != format!("{:#018x}", entry.abi) || record.max_threads != entry.max_threads {
            bail!(
                "entry {}: its parameters or block size changed; run `cargo xtask ptx`",
                entry.name
            );
        }
    }
    Ok(())
}

/// The same tools made the same bytes, with the same registers.
fn compare(manifest: &Manifest, built: &Built) -> Result<()> {
    let sm = CHECKED.sm;
    let same = |name: String, bytes: &[u8]| {
        if manifest.images.get(&name) != Some(&mscclrs_ptx::hash_bytes(bytes)) {
            bail!(
                "{name}: the same compiler made something else of the same sources; run `cargo xtask ptx`"
            );
        }
        Ok(())
    };
    same(format!("{MODULE}.sm_{sm}.ptx.zst"), built.module.text.as_bytes())?;
    for used in &built.resources[&sm] {
        let recorded = manifest.entries[&used.entry].registers.get(&format!("sm_{sm}"));
        if recorded != Some(&used.registers) {
            bail!("entry {}: {} registers, recorded are {recorded:?}", used.entry, used.registers);
        }
    }
    same(format!("{MODULE}.sm_{sm}.cubin.zst"), &built.cubins[&sm])
}

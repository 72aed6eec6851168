//! The whole way: compile, check, assemble, check, compress, record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::compile::{Package, compile};
use crate::error::At;
use crate::manifest::hash_bytes;
use crate::{
    Architecture, EntryRecord, Error, Manifest, Module, Resources, Result, SourceRecord, Tools,
    assemble, compress, rules,
};

/// What to build, and where.
pub struct BuildRequest<'a> {
    /// The crate's Cargo.toml.
    pub manifest: PathBuf,
    /// Where the device files and their record go. Older files of the module there are replaced.
    pub out: PathBuf,
    /// A folder for intermediate files; kept, it makes the next build fast.
    pub work: PathBuf,
    /// PTX to make, lowest first.
    pub architectures: &'a [Architecture],
    /// Compute capabilities to assemble for, if there is an assembler.
    pub cubins: &'a [u32],
    /// Write the files even if entries spill registers, and record it: for measuring a kernel that is
    /// not finished.
    pub draft: bool,
    /// What to build with.
    pub tools: &'a Tools,
    /// Hears of each step.
    pub progress: &'a (dyn Fn(&str) + Sync),
}

/// What a build wrote.
#[derive(Clone, Debug)]
pub struct Report {
    /// The record, also written beside the files.
    pub manifest: Manifest,
    /// Each file with its size in bytes.
    pub files: Vec<(PathBuf, u64)>,
}

/// A module compiled for one architecture, in memory.
#[derive(Clone, Debug)]
pub struct Built {
    /// The PTX, with launch bounds.
    pub module: Module,
    /// The cubins by compute capability.
    pub cubins: BTreeMap<u32, Vec<u8>>,
    /// What each entry takes, by compute capability.
    pub resources: BTreeMap<u32, Vec<Resources>>,
    /// What it was made of.
    pub sources: SourceRecord,
    /// Name of the crate's library.
    pub name: String,
}

/// Builds all of a module's device files; blocks for minutes. Nothing is written to the output folder
/// unless everything compiled and kept the rules.
pub fn build(request: &BuildRequest<'_>) -> Result<Report> {
    let mut manifest: Option<Manifest> = None;
    let mut images: Vec<(String, Vec<u8>)> = Vec::new();
    for (index, architecture) in request.architectures.iter().enumerate() {
        let next = request.architectures.get(index + 1).map_or(u32::MAX, |next| next.sm);
        let cubins: Vec<u32> = request
            .cubins
            .iter()
            .copied()
            .filter(|sm| (architecture.sm..next).contains(sm))
            .collect();
        let built = build_one(request, *architecture, &cubins)?;
        let name = &built.name;
        images.push((
            format!("{name}.sm_{}.ptx.zst", architecture.sm),
            built.module.text.clone().into(),
        ));
        for (sm, cubin) in &built.cubins {
            images.push((format!("{name}.sm_{sm}.cubin.zst"), cubin.clone()));
        }
        record(&mut manifest, request, &built)?;
    }
    let Some(mut manifest) = manifest else {
        return Err(Error::Module {
            place: request.manifest.display().to_string(),
            why: "no architecture was asked for".to_owned(),
        });
    };
    manifest.images =
        images.iter().map(|(name, bytes)| (name.clone(), hash_bytes(bytes))).collect();
    write(request, manifest, &images)
}

/// Builds one architecture in memory and checks it against the rules.
pub fn build_one(
    request: &BuildRequest<'_>,
    architecture: Architecture,
    cubins: &[u32],
) -> Result<Built> {
    let package = Package::find(&request.manifest)?;
    let work = request.work.join(format!("sm_{}", architecture.sm));
    fs::create_dir_all(&work).at(&work)?;
    let target = format!("sm_{}", architecture.sm);
    (request.progress)(&format!("compiling {} for {target}", package.package));
    let (text, files) = compile(&request.tools.compiler, &package, architecture, &work)?;
    let module = Module::from_compiler(&text)?;
    if module.entries.is_empty() {
        return Err(Error::Module {
            place: request.manifest.display().to_string(),
            why:
                "the crate has no kernels; declare them with the macro `kernels!` of mscclrs-device"
                    .to_owned(),
        });
    }
    keep(rules::check_module(&module), &target)?;
    let mut built = Built {
        sources: SourceRecord::of(&package.root, &files)?,
        module,
        cubins: BTreeMap::new(),
        resources: BTreeMap::new(),
        name: package.library,
    };
    let Some(assembler) = &request.tools.assembler else { return Ok(built) };
    let ptx = work.join(format!("{}.ptx", built.name));
    fs::write(&ptx, &built.module.text).at(&ptx)?;
    let assembled = in_parallel(cubins, |sm| {
        (request.progress)(&format!(
            "assembling {} entries for sm_{sm}",
            built.module.entries.len()
        ));
        let cubin = work.join(format!("{}.sm_{sm}.cubin", built.name));
        let resources = assemble::assemble(assembler, sm, &ptx, &cubin)?;
        let violations = rules::check_resources(&built.module, &resources);
        if !request.draft {
            keep(violations, &format!("sm_{sm}"))?;
        }
        Ok((resources, fs::read(&cubin).at(&cubin)?))
    })?;
    for (sm, (resources, cubin)) in assembled {
        built.resources.insert(sm, resources);
        built.cubins.insert(sm, cubin);
    }
    Ok(built)
}

/// Reads a device file and unpacks it.
pub fn read_image(path: &Path) -> Result<Vec<u8>> {
    compress::decompress(&fs::read(path).at(path)?, path)
}

fn keep(violations: Vec<rules::Violation>, target: &str) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    Err(Error::Rules { target: target.to_owned(), violations })
}

/// Adds what was built to the record; the architectures have to agree on their entries.
fn record(
    manifest: &mut Option<Manifest>,
    request: &BuildRequest<'_>,
    built: &Built,
) -> Result<()> {
    let manifest = manifest.get_or_insert_with(|| Manifest {
        module: built.name.clone(),
        rustc: request.tools.compiler.version.clone(),
        ptxas: request.tools.assembler.as_ref().map(|assembler| assembler.version.clone()),
        sources: built.sources.clone(),
        images: BTreeMap::new(),
        entries: entries(&built.module),
    });
    let known = manifest.entries.iter().map(|(name, entry)| (name, &entry.abi, entry.max_threads));
    let own = entries(&built.module);
    if !known.eq(own.iter().map(|(name, entry)| (name, &entry.abi, entry.max_threads))) {
        return Err(Error::Module {
            place: built.name.clone(),
            why: "its architectures have different entries or parameters; remove what depends on the \
                  architecture from `kernels!`"
                .to_owned(),
        });
    }
    for (sm, resources) in &built.resources {
        for used in resources {
            if let Some(entry) = manifest.entries.get_mut(&used.entry) {
                entry.registers.insert(format!("sm_{sm}"), used.registers);
                let memory = used.spill_bytes.max(used.stack_bytes);
                if memory > 0 {
                    entry.spills.insert(format!("sm_{sm}"), memory);
                }
            }
        }
    }
    Ok(())
}

fn entries(module: &Module) -> BTreeMap<String, EntryRecord> {
    let record = |entry: &crate::Entry| EntryRecord {
        abi: format!("{:#018x}", entry.abi),
        max_threads: entry.max_threads,
        registers: BTreeMap::new(),
        spills: BTreeMap::new(),
    };
    module.entries.iter().map(|entry| (entry.name.clone(), record(entry))).collect()
}

fn write(
    request: &BuildRequest<'_>,
    manifest: Manifest,
    images: &[(String, Vec<u8>)],
) -> Result<Report> {
    let out = &request.out;
    fs::create_dir_all(out).at(out)?;
    let mut packed = Vec::new();
    for (name, bytes) in images {
        packed.push((name, compress::compress(request.tools.python.as_deref(), bytes)?));
    }
    let prefix = format!("{}.sm_", manifest.module);
    for file in fs::read_dir(out).at(out)? {
        let file = file.at(out)?;
        if file.file_name().to_string_lossy().starts_with(&prefix) {
            fs::remove_file(file.path()).at(file.path())?;
        }
    }
    let mut files = Vec::new();
    for (name, bytes) in packed {
        let path = out.join(name);
        fs::write(&path, &bytes).at(&path)?;
        files.push((path, bytes.len() as u64));
    }
    // Last: a record without all its files is never left behind.
    manifest.write(&Manifest::path(out, &manifest.module))?;
    Ok(Report { manifest, files })
}

/// Runs `work` for each item on as many threads as there are processors; the first error ends it.
fn in_parallel<T: Send>(
    items: &[u32],
    work: impl Fn(u32) -> Result<T> + Sync,
) -> Result<BTreeMap<u32, T>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Ok(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(*item);
                    let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    match (&mut *done, result) {
                        (Ok(map), Ok(value)) => {
                            map.insert(*item, value);
                        }
                        (Ok(_), Err(error)) => *done = Err(error),
                        (Err(_), _) => return,
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_error_ends_parallel_work() {
        let fails = |item| match item {
            3 => Err(Error::Missing { missing: vec!["three".into()] }),
            other => Ok(other * 2),
        };
        assert_eq!(in_parallel(&[1, 2], fails).unwrap(), BTreeMap::from([(1, 2), (2, 4)]));
        assert!(in_parallel(&[1, 2, 3, 4], fails).is_err());
        assert!(in_parallel(&[], fails).unwrap().is_empty());
    }
}

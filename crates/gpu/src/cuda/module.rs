//! Modules and the kernels in them.
//!
//! Invariant: a function that is handed out is loaded whole, so that its first launch waits for
//! nothing, and its layout word equals the kernel's, so that the driver reads as many argument bytes
//! as there are. Modules are loaded once a device and stay as long as the process.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUfunction, CUfunction_attribute as Attribute, CUjit_option, CUmodule};
use mscclrs_device::{DeviceModule, Kernel};

use crate::backend::{BackendFunction, BackendStream};
use crate::cuda::device::{Gpu, lock};
use crate::cuda::image::{self, Image};
use crate::cuda::library::code;
use crate::{Error, Grid, Result};

/// What a block may have without being asked for more.
const USUAL_SHARED_BYTES: u32 = 48 << 10;
const LOG_BYTES: usize = 8 << 10;

/// What is loaded on a device; modules and kernels are statics, so their addresses name them.
#[derive(Default)]
pub(super) struct Modules {
    loaded: Mutex<HashMap<usize, Loaded>>,
    functions: Mutex<HashMap<usize, Arc<CudaFunction>>>,
}

#[derive(Clone, Copy)]
struct Loaded(CUmodule);

// SAFETY: a module is a handle that the driver lets any thread use.
unsafe impl Send for Loaded {}

impl Modules {
    pub(super) fn function(
        &self,
        gpu: &'static Gpu,
        kernel: &'static Kernel,
    ) -> Result<Arc<CudaFunction>> {
        let mut functions = lock(&self.functions);
        let key = std::ptr::from_ref(kernel) as usize;
        if let Some(function) = functions.get(&key) {
            return Ok(function.clone());
        }
        let module = self.module(gpu, kernel.module)?;
        let function = Arc::new(CudaFunction::find(gpu, kernel, module)?);
        functions.insert(key, function.clone());
        Ok(function)
    }

    fn module(&self, gpu: &'static Gpu, module: &'static DeviceModule) -> Result<CUmodule> {
        let mut loaded = lock(&self.loaded);
        let key = std::ptr::from_ref(module) as usize;
        if let Some(found) = loaded.get(&key) {
            return Ok(found.0);
        }
        let mut first = None;
        for image in image::suitable(module, gpu.limits.sm)? {
            match load(gpu, module, &image) {
                Ok(raw) => {
                    loaded.insert(key, Loaded(raw));
                    return Ok(raw);
                }
                // The driver may be older than the compiler of one image and take the next.
                Err(NotLoaded { error, another_may_do: true }) => {
                    first.get_or_insert(error);
                }
                Err(NotLoaded { error, .. }) => return Err(error),
            }
        }
        Err(first.unwrap_or_else(|| image::failed(module, "there is no GPU code")))
    }
}

struct NotLoaded {
    error: Error,
    another_may_do: bool,
}

impl From<Error> for NotLoaded {
    fn from(error: Error) -> NotLoaded {
        NotLoaded { error, another_may_do: false }
    }
}

fn load(
    gpu: &'static Gpu,
    module: &'static DeviceModule,
    image: &Image,
) -> std::result::Result<CUmodule, NotLoaded> {
    let bytes = image.unpack(module)?;
    let mut log = vec![0u8; LOG_BYTES];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size travels in the place of a pointer.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), (LOG_BYTES - 1) as *mut c_void];
    let mut raw = std::ptr::null_mut();
    let outcome = {
        let _entered = gpu.context.enter_relaxed().map_err(Error::from)?;
        // SAFETY: the image ends in NUL; the log is one byte longer than the driver is told, and
        // both arrays have two elements.
        unsafe {
            gpu.api.cuModuleLoadDataEx(
                &raw mut raw,
                bytes.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        }
    };
    let Err(failure) = outcome else { return Ok(raw) };
    let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
    let mut why = format!("{} was refused: {}", image.describe(), Error::from(failure));
    if !log.trim().is_empty() {
        why = format!("{why}; the driver says: {}", log.trim());
    }
    Err(NotLoaded {
        error: Error::Module { module: module.name, why },
        another_may_do: matches!(
            failure.code,
            code::INVALID_IMAGE
                | code::NO_BINARY_FOR_GPU
                | code::INVALID_PTX
                | code::UNSUPPORTED_PTX_VERSION
        ),
    })
}

/// A kernel on one device.
pub(super) struct CudaFunction {
    gpu: &'static Gpu,
    pub(super) raw: CUfunction,
    kernel: &'static Kernel,
    max_threads: u32,
    max_shared_bytes: u32,
    resident: Mutex<HashMap<(u32, u32), u32>>,
}

// SAFETY: a function is a handle that the driver lets any thread use.
unsafe impl Send for CudaFunction {}
// SAFETY: as above.
unsafe impl Sync for CudaFunction {}

impl CudaFunction {
    fn find(gpu: &'static Gpu, kernel: &'static Kernel, module: CUmodule) -> Result<CudaFunction> {
        let entered = gpu.context.enter_relaxed()?;
        let name = symbol(kernel, "")?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded and never unloaded; the name ends in NUL.
        unsafe { gpu.api.cuModuleGetFunction(&raw mut raw, module, name.as_ptr()) }.map_err(
            |failure| match failure.code {
                code::NOT_FOUND => {
                    image::failed(kernel.module, &format!("it has no kernel {}", kernel.name))
                }
                _ => failure.into(),
            },
        )?;
        // SAFETY: the function was found above.
        unsafe { gpu.api.cuFuncLoad(raw) }?;
        let attribute = |attribute| -> Result<u32> {
            let mut value: c_int = 0;
            // SAFETY: the function was found above; on older drivers this loads it.
            unsafe { gpu.api.cuFuncGetAttribute(&raw mut value, attribute, raw) }?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let fixed = attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let max_shared_bytes = gpu.limits.shared_bytes_per_block.saturating_sub(fixed);
        let max_threads =
            attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?.min(kernel.max_threads);
        if max_shared_bytes > USUAL_SHARED_BYTES {
            let more = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was found above.
            unsafe { gpu.api.cuFuncSetAttribute(raw, more, max_shared_bytes as c_int) }?;
        }
        drop(entered);
        check_layout(gpu, kernel, module)?;
        Ok(CudaFunction {
            gpu,
            raw,
            kernel,
            max_threads,
            max_shared_bytes,
            resident: Mutex::default(),
        })
    }

    /// The function behind the trait object; an error if it is not one of `gpu`.
    #[inline]
    pub(super) fn of<'a>(
        function: &'a dyn BackendFunction,
        gpu: &'static Gpu,
    ) -> Result<&'a CudaFunction> {
        match function.as_any().downcast_ref::<CudaFunction>() {
            Some(function) if function.gpu.ordinal == gpu.ordinal => Ok(function),
            _ => Err(Error::Invalid {
                what: "function",
                value: format!("{} on another device", function.kernel().name),
                allowed: format!("a function of cuda:{}", gpu.ordinal),
            }),
        }
    }

    /// Whether a launch of this shape is possible at all.
    #[inline]
    pub(super) fn check(&self, grid: Grid, args_bytes: usize) -> Result<()> {
        if grid.blocks > 0
            && (1..=self.max_threads).contains(&grid.threads)
            && grid.shared_bytes <= self.max_shared_bytes
            && args_bytes == self.kernel.args_bytes
        {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "launch",
            value: format!("{} with {grid:?} and {args_bytes} argument bytes", self.kernel.name),
            allowed: format!(
                "at least 1 block, 1 to {} threads, at most {} bytes of shared memory, {} argument bytes",
                self.max_threads, self.max_shared_bytes, self.kernel.args_bytes
            ),
        })
    }
}

fn symbol(kernel: &Kernel, prefix: &str) -> Result<CString> {
    CString::new(format!("{prefix}{}", kernel.name)).map_err(|_| Error::Module {
        module: kernel.module.name,
        why: format!("the kernel name {:?} has a NUL", kernel.name),
    })
}

/// Compares the layout of the arguments that the module was compiled with.
fn check_layout(gpu: &'static Gpu, kernel: &'static Kernel, module: CUmodule) -> Result<()> {
    let name = symbol(kernel, "abi_")?;
    let (mut address, mut bytes) = (0, 0);
    {
        let _entered = gpu.context.enter_relaxed()?;
        // SAFETY: the module is loaded and never unloaded; the name ends in NUL.
        let found = unsafe {
            gpu.api.cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, name.as_ptr())
        };
        match found {
            Err(failure) if failure.code != code::NOT_FOUND => return Err(failure.into()),
            Ok(()) if bytes == size_of::<u64>() => {}
            _ => {
                let why = format!("it has no layout word abi_{}", kernel.name);
                return Err(image::failed(kernel.module, &why));
            }
        }
    }
    let mut word = [0; size_of::<u64>()];
    gpu.service()?.download(&mut word, address)?;
    let found = u64::from_le_bytes(word);
    if found == kernel.abi {
        return Ok(());
    }
    Err(Error::KernelLayout {
        kernel: kernel.name,
        module: kernel.module.name,
        expected: kernel.abi,
        found,
    })
}

impl BackendFunction for CudaFunction {
    fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    fn resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        if !(1..=self.max_threads).contains(&threads) || shared_bytes > self.max_shared_bytes {
            return Ok(0);
        }
        let mut resident = lock(&self.resident);
        if let Some(blocks) = resident.get(&(threads, shared_bytes)) {
            return Ok(*blocks);
        }
        let _entered = self.gpu.context.enter_relaxed()?;
        let mut blocks: c_int = 0;
        // SAFETY: the function is loaded and belongs to the current context.
        unsafe {
            self.gpu.api.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut blocks,
                self.raw,
                threads as c_int,
                shared_bytes as usize,
            )
        }?;
        let blocks = u32::try_from(blocks).unwrap_or(0) * self.gpu.limits.multiprocessors;
        resident.insert((threads, shared_bytes), blocks);
        Ok(blocks)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

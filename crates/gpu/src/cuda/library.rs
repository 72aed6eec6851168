//! libcuda, opened once when first asked for, and the meaning of its error codes.
//!
//! Invariant: no code of the driver ever becomes a Rust enum. A newer driver returns codes and
//! statuses that this program's bindings do not list, so calls return plain integers. The signatures
//! are written here and compared with cudarc's by the compiler; a symbol that is missing is an error
//! when the library is opened, never a panic in the middle of a call.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUgraphNode, CUhostFn, CUipcMemHandle,
    CUjit_option, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmodule, CUpointer_attribute, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, CUuserObject, CUuuid,
};
use libloading::Library;

use crate::{Error, Result, descriptor_limit};

/// The codes that something is done about.
pub(super) mod code {
    pub(in crate::cuda) const INVALID_VALUE: i32 = 1;
    pub(in crate::cuda) const OUT_OF_MEMORY: i32 = 2;
    pub(in crate::cuda) const NOT_INITIALIZED: i32 = 3;
    pub(in crate::cuda) const STUB_LIBRARY: i32 = 34;
    pub(in crate::cuda) const NO_DEVICE: i32 = 100;
    pub(in crate::cuda) const INVALID_DEVICE: i32 = 101;
    pub(in crate::cuda) const INVALID_IMAGE: i32 = 200;
    pub(in crate::cuda) const NO_BINARY_FOR_GPU: i32 = 209;
    pub(in crate::cuda) const ECC_UNCORRECTABLE: i32 = 214;
    pub(in crate::cuda) const PEER_ACCESS_UNSUPPORTED: i32 = 217;
    pub(in crate::cuda) const INVALID_PTX: i32 = 218;
    pub(in crate::cuda) const JIT_COMPILER_NOT_FOUND: i32 = 221;
    pub(in crate::cuda) const UNSUPPORTED_PTX_VERSION: i32 = 222;
    pub(in crate::cuda) const OPERATING_SYSTEM: i32 = 304;
    pub(in crate::cuda) const NOT_FOUND: i32 = 500;
    pub(in crate::cuda) const NOT_READY: i32 = 600;
    pub(in crate::cuda) const ILLEGAL_ADDRESS: i32 = 700;
    pub(in crate::cuda) const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
    pub(in crate::cuda) const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    pub(in crate::cuda) const CONTEXT_IS_DESTROYED: i32 = 709;
    pub(in crate::cuda) const TOO_MANY_PEERS: i32 = 711;
    pub(in crate::cuda) const LAUNCH_FAILED: i32 = 719;
    pub(in crate::cuda) const NOT_PERMITTED: i32 = 800;
    pub(in crate::cuda) const NOT_SUPPORTED: i32 = 801;
    pub(in crate::cuda) const SYSTEM_NOT_READY: i32 = 802;
    pub(in crate::cuda) const SYSTEM_DRIVER_MISMATCH: i32 = 803;
    pub(in crate::cuda) const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
    pub(in crate::cuda) const STREAM_CAPTURE_INVALIDATED: i32 = 901;
    pub(in crate::cuda) const STREAM_CAPTURE_UNJOINED: i32 = 904;
    pub(in crate::cuda) const STREAM_CAPTURE_IMPLICIT: i32 = 906;
    pub(in crate::cuda) const CAPTURED_EVENT: i32 = 907;
}

/// A call that did not succeed: small, so that polling costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) call: &'static str,
    pub(super) code: i32,
}

pub(super) type Outcome = std::result::Result<(), Failure>;

impl Failure {
    fn check(call: &'static str, code: c_int) -> Outcome {
        if code == 0 { Ok(()) } else { Err(Failure { call: call.trim_end_matches("_v2"), code }) }
    }

    /// The error of an allocation: running out of memory says how much was asked for.
    pub(super) fn allocating(self, bytes: u64, kind: &'static str, limit: String) -> Error {
        if self.code == code::OUT_OF_MEMORY {
            Error::OutOfMemory { bytes, kind, why: format!("{} says so; {limit}", self.call) }
        } else {
            self.into()
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let mut hint = hint(failure.call, failure.code).to_owned();
        if failure.code == code::OPERATING_SYSTEM {
            hint = format!("{hint}; {}", descriptor_limit());
        }
        Error::Call {
            call: failure.call,
            code: failure.code.into(),
            name: name(failure.code),
            hint: if hint.is_empty() { String::new() } else { format!("; {hint}") },
        }
    }
}

/// What to do about a code; empty where the name says it all.
fn hint(call: &str, code: i32) -> &'static str {
    use code::*;
    let import = matches!(call, "cuMemImportFromShareableHandle" | "cuIpcOpenMemHandle");
    match code {
        OUT_OF_MEMORY => "device or pinned memory is used up: see `nvidia-smi` for who holds it",
        NOT_INITIALIZED => {
            "CUDA does not survive fork: start the process anew (spawn) instead of forking it"
        }
        STUB_LIBRARY => {
            "the toolkit's stub of libcuda was found instead of the driver's: take the stubs folder out of LD_LIBRARY_PATH"
        }
        NO_DEVICE => {
            "no NVIDIA GPU is visible: check `nvidia-smi`, CUDA_VISIBLE_DEVICES and, in a container, that GPUs are passed in"
        }
        INVALID_DEVICE => "there is no device of that number: check CUDA_VISIBLE_DEVICES",
        NO_BINARY_FOR_GPU => "the device module holds no code for this GPU: rebuild it",
        ECC_UNCORRECTABLE => "the GPU reports an uncorrectable memory error: it needs a reset",
        PEER_ACCESS_UNSUPPORTED => {
            "the two GPUs cannot reach each other's memory: see `nvidia-smi topo -p2p r`"
        }
        TOO_MANY_PEERS => "the GPU cannot have more peers: use fewer GPUs without NVSwitch",
        INVALID_PTX | UNSUPPORTED_PTX_VERSION => {
            "the driver is older than the device module: update the driver, or build the module for an older PTX version"
        }
        JIT_COMPILER_NOT_FOUND => {
            "libnvidia-ptxjitcompiler is not installed: install the whole driver"
        }
        OPERATING_SYSTEM if call == "cuMemExportToShareableHandle" => {
            "the process may have run out of file descriptors"
        }
        OPERATING_SYSTEM => "the operating system refused: see `ulimit -l` and `ulimit -n`",
        ILLEGAL_ADDRESS | LAUNCH_FAILED => {
            "a kernel failed and its context cannot be used any more: end the process"
        }
        LAUNCH_OUT_OF_RESOURCES => {
            "the block needs more registers or shared memory than the device has: use fewer threads"
        }
        CONTEXT_IS_DESTROYED => "somebody reset the device while it was in use",
        NOT_PERMITTED if call == "cuMemCreate" => {
            "fabric handles need an IMEX channel: a file in /dev/nvidia-caps-imex-channels that this process can open"
        }
        NOT_PERMITTED if import => {
            "the importing process has no access: fabric handles need the same IMEX channel in both"
        }
        NOT_SUPPORTED if import => {
            "this device cannot map that memory: see `nvidia-smi topo -p2p r`"
        }
        INVALID_VALUE if call == "cuMemSetAccess" => {
            "this device may not be able to reach the memory's device: see `nvidia-smi topo -p2p r`"
        }
        SYSTEM_NOT_READY => "the fabric manager of an NVSwitch system is not running: start it",
        SYSTEM_DRIVER_MISMATCH => {
            "libcuda and the kernel module are of different versions: restart the machine after a driver update"
        }
        STREAM_CAPTURE_UNSUPPORTED | STREAM_CAPTURE_IMPLICIT => {
            "this cannot be done while a stream is captured"
        }
        STREAM_CAPTURE_INVALIDATED => {
            "a call that capture forbids was made while the stream was captured"
        }
        STREAM_CAPTURE_UNJOINED => {
            "work was captured on another stream that does not join the captured one again"
        }
        CAPTURED_EVENT => "the event was recorded in a capture and has no state of its own",
        _ => "",
    }
}

/// The driver's name of a code.
fn name(code: i32) -> String {
    let Ok(api) = loaded() else { return "unknown code".into() };
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the function writes a pointer to a constant string, or leaves null.
    let found = unsafe { (api.error_name)(code, &raw mut text) };
    if found != 0 || text.is_null() {
        return "unknown code".into();
    }
    // SAFETY: the driver's names are NUL-terminated and live as long as the library, which is never
    // closed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

macro_rules! api {
    (
        required { $($name:ident($($arg:ident: $type:ty),* $(,)?);)* }
        optional { $($extra:ident($($extra_arg:ident: $extra_type:ty),* $(,)?);)* }
    ) => {
        /// The functions of libcuda that are used here.
        #[allow(non_snake_case)]
        pub(super) struct Api {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
            $($extra: Option<unsafe extern "C" fn($($extra_type),*) -> c_int>,)*
            error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
            _library: Library,
        }

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Api {
            /// All symbols, or the name of one that is missing.
            fn resolve(library: Library) -> std::result::Result<Api, &'static str> {
                // SAFETY: each symbol is a function of libcuda with the signature given here, which
                // the constants below compare with cudarc's bindings.
                unsafe {
                    Ok(Api {
                        $($name: *library.get(stringify!($name)).map_err(|_| stringify!($name))?,)*
                        $($extra: library.get(stringify!($extra)).ok().map(|symbol| *symbol),)*
                        error_name: *library.get("cuGetErrorName").map_err(|_| "cuGetErrorName")?,
                        _library: library,
                    })
                }
            }

            $(
                #[inline]
                pub(super) unsafe fn $name(&self, $($arg: $type),*) -> Outcome {
                    // SAFETY: the caller keeps what the driver's documentation asks of the arguments.
                    Failure::check(stringify!($name), unsafe { (self.$name)($($arg),*) })
                }
            )*

            $(
                /// Does nothing on a driver that lacks it.
                pub(super) unsafe fn $extra(&self, $($extra_arg: $extra_type),*) -> Outcome {
                    match self.$extra {
                        // SAFETY: as above.
                        Some(call) => Failure::check(stringify!($extra), unsafe { call($($extra_arg),*) }),
                        None => Ok(()),
                    }
                }
            )*
        }

        $(const _: unsafe fn($($type),*) -> sys::CUresult = sys::$name;)*
        $(const _: unsafe fn($($extra_type),*) -> sys::CUresult = sys::$extra;)*
    };
}

api! {
    required {
        cuInit(flags: c_uint);
        cuDriverGetVersion(version: *mut c_int);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        cuDeviceGetName(name: *mut c_char, bytes: c_int, device: CUdevice);
        cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
        cuDeviceGetPCIBusId(text: *mut c_char, bytes: c_int, device: CUdevice);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
        cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        cuCtxPushCurrent_v2(context: CUcontext);
        cuCtxPopCurrent_v2(context: *mut CUcontext);
        cuCtxGetCurrent(context: *mut CUcontext);
        cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
        cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);

        cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
        cuMemFree_v2(address: CUdeviceptr);
        cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        cuMemFreeHost(pointer: *mut c_void);
        cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
        cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
        cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemsetD8Async(to: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream);

        cuMemCreate(handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: c_ulonglong);
        cuMemRelease(handle: CUmemGenericAllocationHandle);
        cuMemAddressReserve(address: *mut CUdeviceptr, bytes: usize, alignment: usize, wish: CUdeviceptr, flags: c_ulonglong);
        cuMemAddressFree(address: CUdeviceptr, bytes: usize);
        cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
        cuMemUnmap(address: CUdeviceptr, bytes: usize);
        cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
        cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags);
        cuMemExportToShareableHandle(shareable: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: c_ulonglong);
        cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: CUmemAllocationHandleType);
        cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);
        cuMemGetAllocationPropertiesFromHandle(properties: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle);
        cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
        cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
        cuIpcCloseMemHandle(address: CUdeviceptr);

        cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        cuStreamDestroy_v2(stream: CUstream);
        cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
        cuStreamQuery(stream: CUstream);
        cuStreamSynchronize(stream: CUstream);
        cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
        cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
        cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
        cuStreamGetCaptureInfo_v2(stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, count: *mut usize);
        cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);
        cuLaunchKernel(function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void);

        cuEventCreate(event: *mut CUevent, flags: c_uint);
        cuEventDestroy_v2(event: CUevent);
        cuEventRecord(event: CUevent, stream: CUstream);
        cuEventQuery(event: CUevent);
        cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);

        cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
        cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
        cuGraphDestroy(graph: CUgraph);
        cuGraphExecDestroy(exec: CUgraphExec);
        cuUserObjectCreate(object: *mut CUuserObject, data: *mut c_void, destroy: CUhostFn, count: c_uint, flags: c_uint);
        cuUserObjectRelease(object: CUuserObject, count: c_uint);
        cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);

        cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void);
        cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        cuModuleGetGlobal_v2(address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
        cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
        cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: CUfunction, threads: c_int, shared_bytes: usize);
    }
    optional {
        // From CUDA 12.4 on; before, reading an attribute of the function loads it.
        cuFuncLoad(function: CUfunction);
    }
}

/// Why libcuda cannot be used.
#[derive(Debug)]
enum Missing {
    Library(String),
    Symbol(&'static str),
}

impl Missing {
    fn why(&self) -> String {
        match self {
            Missing::Library(cause) => format!(
                "no libcuda.so.1 found: install the NVIDIA driver, or use the CPU device ({cause})"
            ),
            Missing::Symbol(symbol) => format!(
                "libcuda.so.1 has no {symbol}: update the NVIDIA driver (CUDA 11.4 or newer), or use the CPU device"
            ),
        }
    }
}

fn open(names: &[&str]) -> std::result::Result<Api, Missing> {
    let mut cause = String::new();
    for name in names {
        // SAFETY: opening libcuda runs its initialisers, which have no demands on the caller.
        match unsafe { Library::new(*name) } {
            Ok(library) => return Api::resolve(library).map_err(Missing::Symbol),
            Err(error) if cause.is_empty() => {
                cause = std::error::Error::source(&error)
                    .map_or_else(|| error.to_string(), ToString::to_string);
            }
            Err(_) => {}
        }
    }
    Err(Missing::Library(cause))
}

/// The library, opened but perhaps without a usable device.
fn loaded() -> std::result::Result<&'static Api, &'static Missing> {
    static API: OnceLock<std::result::Result<Api, Missing>> = OnceLock::new();
    API.get_or_init(|| open(&["libcuda.so.1", "libcuda.so"])).as_ref()
}

/// The library, initialised; the error says what is missing on this machine.
pub(super) fn api() -> Result<&'static Api> {
    static READY: OnceLock<Outcome> = OnceLock::new();
    let api =
        loaded().map_err(|missing| Error::Unsupported { what: "CUDA", why: missing.why() })?;
    // SAFETY: cuInit may be called at any time, on any thread.
    (*READY.get_or_init(|| unsafe { api.cuInit(0) }))?;
    Ok(api)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_what_to_install() {
        let missing = open(&["libcuda-that-nobody-has.so.1"]).err().unwrap();
        let why = missing.why();
        assert!(why.contains("no libcuda.so.1 found: install the NVIDIA driver"), "{why}");
        assert!(why.contains("libcuda-that-nobody-has"), "{why}");
    }

    #[test]
    fn a_library_without_the_functions_names_the_first_missing_one() {
        let Err(missing) = open(&["libc.so.6"]) else { panic!("libc has no CUDA functions") };
        assert!(missing.why().contains("libcuda.so.1 has no cuInit"), "{}", missing.why());
    }

    #[test]
    fn usual_codes_have_hints() {
        let text = |call, code| Error::from(Failure { call, code }).to_string();
        assert!(text("cuInit", code::NO_DEVICE).contains("CUDA_VISIBLE_DEVICES"));
        assert!(text("cuModuleLoadDataEx", code::INVALID_PTX).contains("update the driver"));
        assert!(text("cuCtxEnablePeerAccess", code::PEER_ACCESS_UNSUPPORTED).contains("topo"));
        assert!(text("cuMemExportToShareableHandle", code::OPERATING_SYSTEM).contains("ulimit -n"));
        assert!(text("cuIpcOpenMemHandle", code::NOT_SUPPORTED).contains("cannot map that memory"));
        assert!(text("cuMemCreate", 12345).starts_with("cuMemCreate failed: 12345 ("));
    }

    #[test]
    fn running_out_of_memory_says_how_much_was_asked_for() {
        let failure = Failure { call: "cuMemAlloc", code: code::OUT_OF_MEMORY };
        let error = failure.allocating(1 << 40, "device memory", "1 of 2 bytes are free".into());
        assert!(matches!(error, Error::OutOfMemory { bytes: 0x100_0000_0000, .. }));
        let failure = Failure { call: "cuMemAlloc", code: code::ILLEGAL_ADDRESS };
        assert!(matches!(
            failure.allocating(1, "device memory", String::new()),
            Error::Call { code: 700, .. }
        ));
    }

    #[test]
    fn calls_are_named_without_their_version() {
        assert_eq!(Failure::check("cuMemAlloc_v2", 2).unwrap_err().call, "cuMemAlloc");
    }
}

//! NVIDIA GPUs, through libcuda opened at run time.
//!
//! Every entry makes the device's primary context current and gives the caller's back
//! ([`context`]); calls that a capture forbids are made in relaxed capture mode, so that all of this
//! works while somebody else captures. Nothing runs on a default stream: wrapping one is refused.
//!
//! | here | calls of libcuda |
//! |---|---|
//! | every entry | cuCtxGetCurrent, cuCtxPushCurrent, cuCtxPopCurrent, cuThreadExchangeStreamCaptureMode |
//! | `device_count` | cuInit, cuDeviceGetCount |
//! | `open` | cuDeviceGet, cuDeviceGetName, cuDeviceGetUuid, cuDeviceGetAttribute, cuDevicePrimaryCtxRetain |
//! | `memory` | cuMemGetInfo |
//! | `can_reach` | cuDeviceCanAccessPeer |
//! | `require_handle` | as `alloc(Shareable)` and `export` |
//! | `survey` | cuDriverGetVersion, cuDeviceGetPCIBusId, cuDeviceTotalMem; as `open`, but no context |
//! | `alloc(Host)` and its drop | cuMemHostAlloc, cuMemHostGetDevicePointer; cuMemFreeHost |
//! | `alloc(Plain)` and its drop | cuMemAlloc, cuMemsetD8Async, cuStreamSynchronize; cuMemFree |
//! | `alloc(Shareable)` and its drop | cuMemGetAllocationGranularity, cuMemCreate, cuMemAddressReserve, cuMemMap, cuMemSetAccess, cuMemsetD8Async, cuStreamSynchronize; cuMemUnmap, cuMemAddressFree, cuMemRelease |
//! | `adopt` | cuPointerGetAttribute, cuMemGetAddressRange, cuMemRetainAllocationHandle, cuMemGetAllocationPropertiesFromHandle |
//! | `export` | cuMemExportToShareableHandle, cuIpcGetMemHandle |
//! | `import` of Fabric, PosixFd and its drop | cuMemImportFromShareableHandle (own memory that it refuses: cuMemRetainAllocationHandle), cuMemAddressReserve, cuMemMap, cuMemSetAccess; cuMemUnmap, cuMemAddressFree, cuMemRelease |
//! | `import` of RuntimeIpc and its drop | cuIpcOpenMemHandle (own memory: cuMemGetAddressRange, cuCtxEnablePeerAccess); cuIpcCloseMemHandle |
//! | `create_stream` and its drop, `wrap_stream` | cuStreamCreate, cuStreamDestroy; cuStreamGetCtx |
//! | `launch` | cuLaunchKernel |
//! | `copy`, `upload`, `download`, `fill` | cuPointerGetAttribute, cuStreamGetCaptureInfo, cuMemcpyAsync, cuStreamSynchronize, cuMemsetD8Async |
//! | `record`, `wait` | cuEventRecord, cuStreamWaitEvent |
//! | `is_idle`, `synchronize`, `is_capturing` | cuStreamIsCapturing, cuStreamQuery, cuStreamSynchronize |
//! | `call_host` | cuLaunchHostFunc |
//! | `begin_capture`, `end_capture` | cuStreamBeginCapture, cuStreamEndCapture |
//! | `retain` | cuStreamGetCaptureInfo, cuUserObjectCreate, cuGraphRetainUserObject |
//! | `instantiate`, graph `launch`, drops | cuGraphInstantiateWithFlags, cuGraphLaunch, cuGraphDestroy, cuGraphExecDestroy |
//! | events | cuEventCreate, cuEventQuery, cuEventElapsedTime, cuEventDestroy |
//! | `function` | cuModuleLoadDataEx, cuModuleGetFunction, cuFuncLoad, cuFuncGetAttribute, cuFuncSetAttribute, cuModuleGetGlobal |
//! | `resident_blocks` | cuOccupancyMaxActiveBlocksPerMultiprocessor |
//! | device `synchronize`, drops of memory | cuStreamIsCapturing, cuStreamQuery, cuEventCreate, cuEventRecord, cuEventQuery |

mod attributes;
mod context;
mod device;
mod event;
mod graph;
mod handle;
mod image;
mod library;
mod memory;
mod module;
mod release;
mod stream;
mod streams;
mod survey;
mod vmm;

use std::sync::Arc;

use crate::Result;
use crate::backend::BackendDevice;

#[cfg(any(test, fuzzing))]
pub(crate) use handle::is_well_formed;
pub(crate) use survey::{Found, Survey, survey};

pub(crate) fn device_count() -> Result<u32> {
    device::count()
}

pub(crate) fn open(ordinal: u32) -> Result<Arc<dyn BackendDevice>> {
    Ok(Arc::new(device::CudaDevice(device::gpu(ordinal)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn a_machine_without_gpus_is_told_what_to_do() {
        match device_count() {
            Ok(count) => assert!(count > 0),
            Err(error) => {
                let text = error.to_string();
                let advice =
                    ["install the NVIDIA driver", "nvidia-smi", "update the NVIDIA driver"];
                assert!(advice.iter().any(|advice| text.contains(advice)), "{text}");
                assert!(matches!(open(0), Err(Error::NoDevice { ordinal: 0, .. })));
            }
        }
    }

    #[test]
    fn a_device_number_that_nobody_has_is_an_error() {
        assert!(matches!(open(u32::MAX), Err(Error::NoDevice { ordinal: u32::MAX, .. })));
    }
}

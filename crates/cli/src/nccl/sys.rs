//! The part of NCCL's C interface that a comparison needs, declared here: NCCL 2.27 and later.
//!
//! Invariant: structures that NCCL reads begin with their size and the version of the interface they
//! are written for, and NCCL takes shorter and older ones than its own. These are 2.27's.

use std::ffi::{c_char, c_int, c_uint, c_void};

use mscclrs_device::{DataType, ReduceOp};

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;
/// `ncclWindow_t`.
pub(super) type Window = *mut c_void;
/// `ncclResult_t`; 0 is success.
pub(super) type Status = c_int;

/// Oldest version that has symmetric windows, as NCCL codes it.
pub(super) const OLDEST_VERSION: c_int = 22_700;

/// `NCCL_WIN_COLL_SYMMETRIC`.
pub(super) const WINDOW_SYMMETRIC: c_int = 1;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

const UNDEFINED: c_int = c_int::MIN;

/// `ncclConfig_t` of 2.27.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
}

impl Config {
    /// Everything by NCCL's own choice, and calls that return when they are done.
    pub(super) const fn new() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST_VERSION as c_uint,
            blocking: 1,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            comm_name: std::ptr::null(),
            collnet_enable: UNDEFINED,
            cta_policy: UNDEFINED,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
        }
    }
}

/// `ncclDataType_t`.
pub(super) const fn data_type(data_type: DataType) -> c_int {
    match data_type {
        DataType::I32 => 2,
        DataType::U32 => 3,
        DataType::F16 => 6,
        DataType::F32 => 7,
        DataType::Bf16 => 9,
    }
}

/// `ncclRedOp_t`.
pub(super) const fn reduce_op(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
    }
}

/// Declares the table of entry points, and how it is filled from an opened library.
macro_rules! entry_points {
    ($($field:ident = $symbol:literal : fn($($arg:ty),*) -> $result:ty;)*) => {
        /// NCCL's entry points. Copied out of the library, which is never closed.
        pub(super) struct EntryPoints {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl EntryPoints {
            /// Finds them all; the error names the one that is missing.
            ///
            /// # Safety
            /// `library` is NCCL 2.27 or later and stays loaded.
            pub(super) unsafe fn find(
                library: &libloading::Library,
            ) -> Result<EntryPoints, libloading::Error> {
                Ok(EntryPoints {
                    // SAFETY: the types are those of nccl.h, and the library stays loaded.
                    $($field: unsafe { *library.get($symbol)? },)*
                })
            }
        }
    };
}

entry_points! {
    all_gather = c"ncclAllGather":
        fn(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void) -> Status;
    all_reduce = c"ncclAllReduce":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> Status;
    comm_abort = c"ncclCommAbort": fn(Comm) -> Status;
    comm_destroy = c"ncclCommDestroy": fn(Comm) -> Status;
    comm_init_rank_config = c"ncclCommInitRankConfig":
        fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Status;
    get_error_string = c"ncclGetErrorString": fn(Status) -> *const c_char;
    get_last_error = c"ncclGetLastError": fn(Comm) -> *const c_char;
    get_unique_id = c"ncclGetUniqueId": fn(*mut UniqueId) -> Status;
    mem_alloc = c"ncclMemAlloc": fn(*mut *mut c_void, usize) -> Status;
    mem_free = c"ncclMemFree": fn(*mut c_void) -> Status;
    window_deregister = c"ncclCommWindowDeregister": fn(Comm, Window) -> Status;
    window_register = c"ncclCommWindowRegister":
        fn(Comm, *mut c_void, usize, *mut Window, c_int) -> Status;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn config_has_the_layout_of_the_c_header() {
        assert_eq!(offset_of!(Config, magic), 8);
        assert_eq!(offset_of!(Config, blocking), 16);
        assert_eq!(offset_of!(Config, net_name), 32);
        assert_eq!(offset_of!(Config, split_share), 40);
        assert_eq!(offset_of!(Config, comm_name), 48);
        assert_eq!(offset_of!(Config, nvls_ctas), 68);
        assert_eq!(size_of::<Config>(), 72);
        assert_eq!(size_of::<UniqueId>(), 128);
    }
}

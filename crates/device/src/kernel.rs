//! `kernels!`: each entry point is written once and becomes a PTX entry on a GPU and a function in a
//! table on the host.
//!
//! A kernel takes one `#[repr(C)]` struct by value, declared with `kernel_args!`. Its layout hash
//! ([`KernelArgs::ABI`]) is in both halves: the table entry carries it, and the PTX has it as a
//! global `abi_NAME`, so that a launch never meets a binary with other parameters.

/// The arguments of a kernel: plain data, passed by value, at most 4 KiB.
///
/// # Safety
/// The type is `#[repr(C)]`, holds no references, and `ABI` names its layout. `kernel_args!`
/// implements it.
pub unsafe trait KernelArgs: Copy {
    /// Hash of the field names, types and the size.
    const ABI: u64;
}

/// FNV-1a over the text of a layout, mixed with its size.
pub const fn hash_layout(text: &str, size: usize) -> u64 {
    let bytes = text.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut i = 0;
    while i < bytes.len() {
        // Spaces differ between compilers' renderings of tokens.
        if bytes[i] != b' ' && bytes[i] != b'\n' {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        }
        i += 1;
    }
    (hash ^ size as u64).wrapping_mul(0x0100_0000_01b3)
}

/// An array in a kernel's arguments that the kernel reads at run-time indexes, from the constant
/// bank: cheaper than a pointer to device memory, and without a stack frame.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct ParamArray<T: Copy, const N: usize>([T; N]);

impl<T: Copy, const N: usize> ParamArray<T, N> {
    /// From its elements.
    pub const fn new(elements: [T; N]) -> Self {
        ParamArray(elements)
    }

    /// Sets an element, on the host.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn set(&mut self, index: usize, value: T) {
        self.0[index] = value;
    }

    /// The elements, on the host.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn elements(&self) -> &[T; N] {
        &self.0
    }
}

/// A kernel's arguments, as the kernel sees them: fields by `*`/`.`, elements of a [`ParamArray`] by
/// `param_at!`.
#[derive(Clone, Copy)]
pub struct Params<A: KernelArgs> {
    value: A,
    #[cfg(target_arch = "nvptx64")]
    base: u64,
}

impl<A: KernelArgs> core::ops::Deref for Params<A> {
    type Target = A;
    #[inline(always)]
    fn deref(&self) -> &A {
        &self.value
    }
}

impl<A: KernelArgs> Params<A> {
    /// For the code that `kernels!` makes: `base` is the address of the arguments in parameter space.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub fn from_entry(value: A, base: u64) -> Self {
        Params { value, base }
    }

    /// For the code that `kernels!` makes, and for unit tests.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn from_value(value: A) -> Self {
        Params { value }
    }

    /// Element `index` of the array at `offset` in the arguments; `param_at!` fills in the rest.
    #[inline(always)]
    pub fn pointer_at<T, const N: usize>(
        &self,
        offset: usize,
        _field: fn(&A) -> &ParamArray<crate::Global<T>, N>,
        index: u32,
    ) -> crate::Global<T> {
        #[cfg(target_arch = "nvptx64")]
        return crate::Global::from_address(crate::arch::load_param(
            self.base + offset as u64 + 8 * index as u64,
        ));
        #[cfg(not(target_arch = "nvptx64"))]
        {
            let _ = offset;
            _field(&self.value).0[index as usize]
        }
    }
}

/// Element `index` of an array field of a kernel's arguments: `param_at!(args, Args, field, index)`.
#[macro_export]
macro_rules! param_at {
    ($params:expr, $args:ty, $field:ident, $index:expr) => {
        $params.pointer_at(
            core::mem::offset_of!($args, $field),
            |args: &$args| &args.$field,
            $index,
        )
    };
}

/// Declares the argument struct of a kernel.
#[macro_export]
macro_rules! kernel_args {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident : $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }
        const _: () = assert!(core::mem::size_of::<$name>() <= 4096, "kernel arguments are at most 4 KiB");
        // SAFETY: the struct is repr(C) plain data and the hash is over its fields.
        unsafe impl $crate::KernelArgs for $name {
            const ABI: u64 = $crate::hash_layout(
                concat!($(stringify!($field), ":", stringify!($type), ";"),*),
                core::mem::size_of::<$name>(),
            );
        }
    };
}

/// One compiled instance of a kernel.
#[cfg(not(target_arch = "nvptx64"))]
pub struct Kernel {
    /// The entry's name in its device module.
    pub name: &'static str,
    /// Layout hash of its arguments.
    pub abi: u64,
    /// Size of its arguments in bytes.
    pub args_bytes: usize,
    /// Most lanes a block may have.
    pub max_threads: u32,
    /// Where its GPU code lies.
    pub module: &'static DeviceModule,
    /// Runs one lane on the CPU device; the pointer is to the arguments.
    pub host: unsafe fn(*const u8),
}

#[cfg(not(target_arch = "nvptx64"))]
impl core::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The instances of one kernel, all with the same arguments.
#[cfg(not(target_arch = "nvptx64"))]
pub struct Family<A: KernelArgs> {
    name: &'static str,
    instances: &'static [Kernel],
    _args: core::marker::PhantomData<fn(A)>,
}

#[cfg(not(target_arch = "nvptx64"))]
impl<A: KernelArgs> Family<A> {
    /// For the code that `kernels!` makes.
    pub const fn new(name: &'static str, instances: &'static [Kernel]) -> Self {
        Family { name, instances, _args: core::marker::PhantomData }
    }

    /// The instance with this suffix, e.g. `_bf16_sum_2`; a search, for set-up.
    pub fn instance(&self, suffix: &str) -> Option<&'static Kernel> {
        self.instances.iter().find(|k| k.name.strip_prefix(self.name) == Some(suffix))
    }

    /// All instances.
    pub fn instances(&self) -> &'static [Kernel] {
        self.instances
    }
}

/// The GPU code of one crate of kernels: made from its sources by the device compiler, and found by
/// the host half.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Debug)]
pub struct DeviceModule {
    /// Name of the crate.
    pub name: &'static str,
    /// Where the images are.
    pub source: ImageSource,
}

/// Where a module's images are.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Debug)]
pub enum ImageSource {
    /// In the program.
    Embedded(&'static [DeviceImage]),
    /// In a folder, one file an image named `NAME.sm_90.cubin.zst` or `NAME.sm_90.ptx.zst`; written
    /// by `mscclrs kernel build` and read when the module is first used.
    Folder(&'static str),
}

/// One image: a module compiled for one architecture.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Debug)]
pub struct DeviceImage {
    /// Compute capability as a number, e.g. 90.
    pub sm: u32,
    /// What `bytes` unpacks to.
    pub format: ImageFormat,
    /// The image, compressed with zstd.
    pub bytes: &'static [u8],
}

/// The form of an image.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// Machine code; loads at once, for this capability and higher ones of the same major number.
    Cubin,
    /// Text, compiled by the driver; slow to load, for this capability and all higher ones.
    Ptx,
}

/// Makes a crate of kernels of one's own whole: declares `MODULE`, the device module for `kernels!`, whose
/// images `mscclrs kernel build` writes to the crate's folder `device`, and what a GPU does on a panic.
#[macro_export]
macro_rules! device_crate {
    () => {
        #[cfg(target_arch = "nvptx64")]
        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo) -> ! {
            $crate::arch::trap()
        }

        /// The GPU code of this crate.
        #[cfg(not(target_arch = "nvptx64"))]
        pub static MODULE: $crate::DeviceModule = $crate::DeviceModule {
            name: env!("CARGO_CRATE_NAME"),
            source: $crate::ImageSource::Folder(concat!(env!("CARGO_MANIFEST_DIR"), "/device")),
        };
    };
}

/// Declares kernels:
///
/// ```text
/// kernels! {
///     module = MODULE;
///     /// What it does.
///     pub fn fill<E: Element>(args: FillArgs) threads 1024 for {
///         "_f32" = <F32>,
///         "_u32" = <U32>,
///     } { body }
/// }
/// ```
///
/// The body is a [`DeviceResult`](crate::DeviceResult) and sees `args` as [`Params`]. On the host a
/// static of the kernel's name is its [`Family`]; on a GPU each instance is an entry NAME + suffix.
/// Generics are written even if empty: `fn probe<>(..) for { "" = <> }`.
#[macro_export]
macro_rules! kernels {
    (module = $module:path; $(
        $(#[$doc:meta])*
        pub fn $name:ident <$($g:ident : $bound:path),* $(,)?> ($args:ident : $args_type:ty)
        threads $threads:literal for { $($suffix:literal = <$($inst:ty),*>),* $(,)? } $body:block
    )*) => {
        $(
            $(#[$doc])*
            #[cfg(not(target_arch = "nvptx64"))]
            #[allow(non_upper_case_globals)]
            pub static $name: $crate::Family<$args_type> = $crate::Family::new(
                stringify!($name),
                $crate::kernel_instances!($name, $args_type, $threads, $module, [$([$suffix $($inst),*])*]),
            );
            $crate::kernel_body!{ $name [$($g: $bound),*] $args $args_type $body }
            $( $crate::kernel_entry!{ $name $suffix [$($inst),*] $args_type, $threads } )*
        )*
        /// Every instance that this file declares.
        #[cfg(not(target_arch = "nvptx64"))]
        pub fn all() -> impl Iterator<Item = &'static $crate::Kernel> {
            core::iter::empty()$(.chain($name.instances().iter()))*
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! kernel_body {
    ($name:ident [$($g:ident : $bound:path),*] $args:ident $args_type:ty $body:block) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            #[inline(always)]
            pub(super) fn body<$($g: $bound),*>($args: $crate::Params<$args_type>) -> $crate::DeviceResult $body
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! kernel_entry {
    ($name:ident $suffix:literal [$($inst:ty),*] $args_type:ty, $threads:literal) => {
        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            #[unsafe(export_name = concat!(stringify!($name), $suffix))]
            unsafe extern "ptx-kernel" fn entry(args: $args_type) {
                let base: u64;
                // SAFETY: gives the address of the parameter block and touches nothing.
                unsafe {
                    core::arch::asm!(
                        concat!("mov.b64 {0}, ", stringify!($name), $suffix, "_param_0;"),
                        out(reg64) base,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                }
                // An early end is recorded by the wait that ended; nothing is left to do.
                let _ = $name::body::<$($inst),*>($crate::Params::from_entry(args, base));
            }
            #[used]
            #[unsafe(export_name = concat!("abi_", stringify!($name), $suffix))]
            static ABI: u64 = <$args_type as $crate::KernelArgs>::ABI;
            // For the pipeline, which makes it the entry's launch bound: rustc has none.
            #[used]
            #[unsafe(export_name = concat!("threads_", stringify!($name), $suffix))]
            static THREADS: u32 = $threads;
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! kernel_instances {
    ($name:ident, $args_type:ty, $threads:literal, $module:path, [$([$suffix:literal $($inst:ty),*])*]) => {
        &[$($crate::Kernel {
            name: concat!(stringify!($name), $suffix),
            abi: <$args_type as $crate::KernelArgs>::ABI,
            args_bytes: core::mem::size_of::<$args_type>(),
            max_threads: $threads,
            module: &$module,
            host: {
                unsafe fn host(args: *const u8) {
                    // SAFETY: the launch gives a pointer to arguments of this type.
                    let args = unsafe { args.cast::<$args_type>().read_unaligned() };
                    // As on a GPU: the wait that ended early has told of it.
                    let _ = $name::body::<$($inst),*>($crate::Params::from_value(args));
                }
                host
            },
        }),*]
    };
}

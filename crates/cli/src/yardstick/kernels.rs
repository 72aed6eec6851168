//! The bare kernels of yardstick/bare.cu, declared so that the ordinary launch path serves them.
//!
//! Invariant: an argument struct here and its twin in bare.cu have one layout. The hash of the
//! struct is compiled into the PTX as `abi_NAME`, the launch path compares it, and tests hold source,
//! PTX and these declarations together.
//!
//! They exist on CUDA only. Nothing outside this folder can reach them, and [`Bare`](super::Bare)
//! refuses other devices before it asks for one.

use mscclrs_device::{
    DeviceImage, DeviceModule, Global, ImageFormat, ImageSource, Kernel, KernelArgs, Word16,
    kernel_args,
};

kernel_args! {
    /// Arguments of `bare_empty`.
    pub struct EmptyArgs {
        /// Not used.
        pub unused: u64,
    }
}

kernel_args! {
    /// Arguments of the ping-pongs.
    pub struct HopArgs {
        /// The peer's word.
        pub remote: Global<u64>,
        /// This rank's word, written by the peer.
        pub local: Global<u64>,
        /// Hops received so far, this rank's own.
        pub count: Global<u64>,
        /// Not 0 after a wait that reached its bound.
        pub failed: Global<u32>,
        /// Round trips.
        pub rounds: u32,
        /// 1 on the rank that sends first.
        pub starts: u32,
    }
}

kernel_args! {
    /// Arguments of the allreduces by packets.
    pub struct PacketArgs {
        /// This rank's input.
        pub input: Global<u32>,
        /// This rank's output.
        pub output: Global<u32>,
        /// The peer's slots.
        pub remote: Global<u64>,
        /// This rank's slots.
        pub local: Global<u64>,
        /// One a block.
        pub epochs: Global<u32>,
        /// Not 0 after a wait that reached its bound.
        pub failed: Global<u32>,
        /// At most one a lane.
        pub packets: u32,
        /// Slot words a half.
        pub half: u32,
    }
}

kernel_args! {
    /// Arguments of `bare_allreduce_store`.
    pub struct StoreArgs {
        /// This rank's input.
        pub input: Global<Word16>,
        /// This rank's output.
        pub output: Global<Word16>,
        /// The peer's slots.
        pub remote: Global<Word16>,
        /// This rank's slots.
        pub local: Global<Word16>,
        /// The peer's signal words, one a block.
        pub remote_signals: Global<u64>,
        /// This rank's signal words, one a block.
        pub local_signals: Global<u64>,
        /// One a block.
        pub epochs: Global<u32>,
        /// Not 0 after a wait that reached its bound.
        pub failed: Global<u32>,
        /// 16-byte words in all.
        pub words: u32,
        /// 16-byte words a block.
        pub per_block: u32,
        /// 16-byte words a half.
        pub half: u32,
    }
}

kernel_args! {
    /// Arguments of `bare_allreduce_pull`.
    pub struct PullArgs {
        /// This rank's input.
        pub input: Global<Word16>,
        /// The peer's input.
        pub peer_input: Global<Word16>,
        /// This rank's output.
        pub output: Global<Word16>,
        /// The peer's output.
        pub peer_output: Global<Word16>,
        /// The peer's signal words, one a block.
        pub remote_signals: Global<u64>,
        /// This rank's signal words, one a block.
        pub local_signals: Global<u64>,
        /// One a block.
        pub epochs: Global<u32>,
        /// Not 0 after a wait that reached its bound.
        pub failed: Global<u32>,
        /// Where this rank's half begins, in 16-byte words.
        pub begin: u32,
        /// 16-byte words of that half.
        pub words: u32,
    }
}

kernel_args! {
    /// Arguments of the copies by loads and stores.
    pub struct CopyArgs {
        /// Where to.
        pub to: Global<Word16>,
        /// Where from.
        pub from: Global<Word16>,
        /// 16-byte words.
        pub words: u32,
    }
}

kernel_args! {
    /// Arguments of `bare_copy_bulk`.
    pub struct BulkArgs {
        /// Where to.
        pub to: Global<u8>,
        /// Where from.
        pub from: Global<u8>,
        /// Not 0 after a wait that reached its bound.
        pub failed: Global<u32>,
        /// Chunks in all.
        pub chunks: u32,
        /// Bytes a chunk, a multiple of 16.
        pub chunk_bytes: u32,
    }
}

/// Stages of the ring of `bare_copy_bulk`: its shared memory is this many chunks.
pub(super) const BULK_STAGES: u32 = 6;

const PTX: &[u8] = include_bytes!("../../yardstick/bare.sm_90.ptx");
static PTX_FRAME: [u8; PTX.len() + FRAME_HEAD] = stored_frame(PTX);

static MODULE: DeviceModule = DeviceModule {
    name: "mscclrs_bare",
    source: ImageSource::Embedded(&[DeviceImage {
        sm: 90,
        format: ImageFormat::Ptx,
        bytes: &PTX_FRAME,
    }]),
};

const FRAME_HEAD: usize = 12;

/// A zstd frame that holds `data` in one stored block: device modules are kept compressed, and this
/// one is kept as text beside its source instead.
const fn stored_frame<const N: usize>(data: &[u8]) -> [u8; N] {
    assert!(data.len() <= 128 << 10, "a stored block holds at most 128 KiB");
    let size = (data.len() as u32).to_le_bytes();
    let block = ((data.len() as u32) << 3 | 1).to_le_bytes();
    // Magic; one segment with its size in 4 bytes; the size; the head of a last, stored block.
    let head: [u8; FRAME_HEAD] = [
        0x28, 0xb5, 0x2f, 0xfd, 0xa0, size[0], size[1], size[2], size[3], block[0], block[1],
        block[2],
    ];
    let mut frame = [0; N];
    let mut i = 0;
    while i < N {
        frame[i] = if i < FRAME_HEAD { head[i] } else { data[i - FRAME_HEAD] };
        i += 1;
    }
    frame
}

const fn bare<A: KernelArgs>(name: &'static str, max_threads: u32) -> Kernel {
    /// Never runs: no other device than CUDA's is given one of these kernels.
    unsafe fn host(_: *const u8) {}
    Kernel { name, abi: A::ABI, args_bytes: size_of::<A>(), max_threads, module: &MODULE, host }
}

pub(super) static EMPTY: Kernel = bare::<EmptyArgs>("bare_empty", 1024);
pub(super) static HOP_SIGNAL: Kernel = bare::<HopArgs>("bare_hop_signal", 32);
pub(super) static HOP_LL8: Kernel = bare::<HopArgs>("bare_hop_ll8", 32);
pub(super) static ALLREDUCE_LL8: Kernel = bare::<PacketArgs>("bare_allreduce_ll8", 1024);
pub(super) static ALLREDUCE_LL16: Kernel = bare::<PacketArgs>("bare_allreduce_ll16", 1024);
pub(super) static ALLREDUCE_STORE: Kernel = bare::<StoreArgs>("bare_allreduce_store", 1024);
pub(super) static ALLREDUCE_PULL: Kernel = bare::<PullArgs>("bare_allreduce_pull", 1024);
pub(super) static COPY_STORE: Kernel = bare::<CopyArgs>("bare_copy_store", 1024);
pub(super) static COPY_LOAD: Kernel = bare::<CopyArgs>("bare_copy_load", 512);
pub(super) static COPY_BULK: Kernel = bare::<BulkArgs>("bare_copy_bulk", 32);

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::io::Read;

    const SOURCE: &str = include_str!("../../yardstick/bare.cu");
    const REBUILD: &str = "run crates/cli/yardstick/build.sh";

    fn all() -> [&'static Kernel; 10] {
        [
            &EMPTY,
            &HOP_SIGNAL,
            &HOP_LL8,
            &ALLREDUCE_LL8,
            &ALLREDUCE_LL16,
            &ALLREDUCE_STORE,
            &ALLREDUCE_PULL,
            &COPY_STORE,
            &COPY_LOAD,
            &COPY_BULK,
        ]
    }

    fn ptx() -> &'static str {
        std::str::from_utf8(PTX).unwrap()
    }

    #[test]
    fn source_names_the_layouts_declared_here() {
        let lines = all().map(|kernel| format!("ABI({}, {:#018x});", kernel.name, kernel.abi));
        let missing: Vec<_> = lines.iter().filter(|line| !SOURCE.contains(*line)).collect();
        assert!(missing.is_empty(), "bare.cu has to say {missing:#?}");
        assert_eq!(SOURCE.matches("\nABI(").count(), all().len());
        assert_eq!(SOURCE.matches("\nENTRY ").count(), all().len());
    }

    #[test]
    fn ptx_was_made_from_this_source() {
        let hash = Sha256::digest(SOURCE.as_bytes());
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(ptx().contains(&format!("// sha256 of bare.cu: {hash}\n")), "{REBUILD}");
    }

    #[test]
    fn ptx_has_every_entry_with_its_layout_and_size() {
        for Kernel { name, abi, args_bytes, max_threads, .. } in all() {
            let word = format!(".visible .global .align 8 .u64 abi_{name} = {};", *abi as i64);
            assert!(ptx().contains(&word), "{word}: {REBUILD}");
            let entry = ptx().split(&format!(".visible .entry {name}(")).nth(1).unwrap();
            let parameter = format!(".param .align 8 .b8 {name}_param_0[{args_bytes}]");
            assert!(entry.trim_start().starts_with(&parameter), "{parameter}");
            let bound = entry.split(".maxntid ").nth(1).unwrap().split([',', '\n']).next().unwrap();
            if *name != "bare_empty" {
                assert_eq!(bound, max_threads.to_string(), "{name}");
            }
        }
    }

    #[test]
    fn stored_frame_unpacks_to_the_ptx() {
        let mut reader = ruzstd::decoding::StreamingDecoder::new(&PTX_FRAME[..]).unwrap();
        let mut unpacked = Vec::new();
        reader.read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == PTX);
    }

    #[test]
    fn bulk_ring_has_the_stages_that_the_host_makes_room_for() {
        assert!(SOURCE.contains(&format!("STAGES = {BULK_STAGES},")));
    }
}

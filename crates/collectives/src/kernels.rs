//! The kernels of a communicator's collectives, loaded and made ready once.

use mscclrs_core::register_launch_tag;
use mscclrs_device::{DataType, Family, KernelArgs, ReduceOp};
use mscclrs_gpu::{Device, Function};
use mscclrs_kernels::{allgather, allreduce};

use crate::Result;

/// A kernel ready to be launched.
pub(crate) struct Ready {
    pub(crate) function: Function,
    /// Names it in the record of a wait that ended early.
    pub(crate) tag: u64,
}

/// The instances of a kernel that a communicator of this rank count can use.
pub(crate) struct Instances {
    /// By type, for sums, where the rank count has instances of its own.
    hot: [Option<Ready>; 3],
    /// For the rest.
    any: Ready,
}

impl Instances {
    /// The instance for aligned buffers, or the general one.
    pub(crate) fn pick(&self, data_type: DataType, op: ReduceOp, aligned: bool) -> &Ready {
        let hot = match data_type {
            _ if !aligned || op != ReduceOp::Sum => None,
            DataType::F16 => self.hot[0].as_ref(),
            DataType::Bf16 => self.hot[1].as_ref(),
            DataType::F32 => self.hot[2].as_ref(),
            DataType::I32 | DataType::U32 => None,
        };
        hot.unwrap_or(&self.any)
    }
}

/// A kernel for aligned buffers, where there is one, and one for the rest.
pub(crate) struct Pair {
    aligned: Option<Ready>,
    any: Ready,
}

impl Pair {
    /// The kernel for aligned buffers, or the general one.
    pub(crate) fn pick(&self, aligned: bool) -> &Ready {
        self.aligned.as_ref().filter(|_| aligned).unwrap_or(&self.any)
    }
}

/// All kernels.
pub(crate) struct Kernels {
    pub(crate) one_shot_ll8: Instances,
    pub(crate) one_shot_ll16: Instances,
    pub(crate) two_shot_ll8: Instances,
    pub(crate) two_shot_ll16: Instances,
    pub(crate) push: Instances,
    pub(crate) mesh: Instances,
    pub(crate) direct: Instances,
    pub(crate) gather_ll8: Pair,
    pub(crate) gather_ll16: Pair,
    pub(crate) gather_mesh: Pair,
    pub(crate) gather_direct: Pair,
    /// Blocks of any of them that the device holds at once, at their largest.
    pub(crate) resident: u32,
}

impl Kernels {
    pub(crate) fn load(device: &Device, ranks: u32) -> Result<Kernels> {
        let mut load = Loader { device, ranks, resident: u32::MAX };
        let one_shot = &allreduce::one_shot::allreduce_one_shot;
        let two_shot = &allreduce::two_shot::allreduce_two_shot;
        let packet = &allgather::packet::allgather_packet;
        let direct = &allgather::direct::allgather_direct;
        let direct_bytes = &allgather::direct::allgather_direct_bytes;
        let counted = |prefix: &str| format!("{prefix}_{ranks}");
        let mut kernels = Kernels {
            one_shot_ll8: load.instances(one_shot, "_ll8", "_ll8")?,
            one_shot_ll16: load.instances(one_shot, "_ll16", "_ll16")?,
            two_shot_ll8: load.instances(two_shot, "_ll8", "_ll8")?,
            two_shot_ll16: load.instances(two_shot, "_ll16", "_ll16")?,
            push: load.instances(&allreduce::push::allreduce_push, "", "_any")?,
            mesh: load.instances(&allreduce::mesh::allreduce_mesh, "", "_any")?,
            direct: load.instances(&allreduce::direct::allreduce_direct, "", "_any")?,
            gather_ll8: load.pair((packet, &counted("_ll8")), (packet, "_ll8"))?,
            gather_ll16: load.pair((packet, &counted("_ll16")), (packet, "_ll16"))?,
            gather_mesh: load.pair(
                (&allgather::mesh::allgather_mesh, "_aligned"),
                (&allgather::mesh::allgather_mesh, "_any"),
            )?,
            gather_direct: load.pair((direct, "_aligned"), (direct_bytes, "_any"))?,
            resident: 0,
        };
        kernels.resident = load.resident;
        Ok(kernels)
    }
}

struct Loader<'a> {
    device: &'a Device,
    ranks: u32,
    resident: u32,
}

impl Loader<'_> {
    fn one<A: KernelArgs>(&mut self, family: &Family<A>, suffix: &str) -> Result<Option<Ready>> {
        let Some(kernel) = family.instance(suffix) else { return Ok(None) };
        let function = self.device.function(kernel)?;
        let threads = kernel.max_threads.min(self.device.limits().threads_per_block);
        self.resident = self.resident.min(function.resident_blocks(threads, 0)?);
        Ok(Some(Ready { function, tag: register_launch_tag(kernel.name) }))
    }

    fn required<A: KernelArgs>(&mut self, family: &Family<A>, suffix: &str) -> Result<Ready> {
        let kernels = family.instances();
        let missing = || mscclrs_gpu::Error::Invalid {
            what: "kernel instance",
            value: suffix.into(),
            allowed: format!("one of {kernels:?}"),
        };
        Ok(self.one(family, suffix)?.ok_or_else(missing)?)
    }

    fn instances<A: KernelArgs>(
        &mut self,
        family: &Family<A>,
        prefix: &str,
        any: &str,
    ) -> Result<Instances> {
        let mut hot = [None, None, None];
        for (slot, name) in hot.iter_mut().zip(["f16", "bf16", "f32"]) {
            *slot = self.one(family, &format!("{prefix}_{name}_sum_{}", self.ranks))?;
        }
        Ok(Instances { hot, any: self.required(family, any)? })
    }

    fn pair<A: KernelArgs>(
        &mut self,
        aligned: (&Family<A>, &str),
        any: (&Family<A>, &str),
    ) -> Result<Pair> {
        Ok(Pair { aligned: self.one(aligned.0, aligned.1)?, any: self.required(any.0, any.1)? })
    }
}

//! Kernels that check the ground the others stand on.

use mscclrs_device::{
    Global, Guard, block_dim, block_sync, kernel_args, kernels, shuffle_xor, thread_idx,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::MODULE;

kernel_args! {
    /// Arguments of [`contract`].
    pub struct ContractArgs {
        /// One word a lane.
        pub data: Global<u32>,
    }
}

kernel_args! {
    /// Arguments of [`empty`].
    pub struct EmptyArgs {
        /// Not used.
        pub guard: Guard,
    }
}

kernels! {
    module = MODULE;

    /// Barriers around divergent branches and a warp butterfly: the sentinel of the device compiler,
    /// which may neither copy nor move the two barriers.
    pub fn contract<>(args: ContractArgs) threads 1024 for { "" = <> } {
        let data = args.data;
        let t = thread_idx();
        if t > 4 {
            data.at(t).store(3 + t);
        }
        block_sync();
        let mut value = if t > 4 { data.at(t ^ 1).load() } else { 1 };
        block_sync();
        let mut mask = 1;
        while mask < 32 {
            value += shuffle_xor(u32::MAX, value, mask);
            mask *= 2;
        }
        data.at(t).store(value + block_dim());
        Ok(())
    }

    /// Does nothing: what a launch costs.
    pub fn empty<>(args: EmptyArgs) threads 1024 for { "" = <> } {
        let _ = args;
        Ok(())
    }
}

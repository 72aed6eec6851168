//! A kernel that is wrong: rank 0 puts a message into rank 1's memory and announces it by a signal that
//! orders nothing, so rank 1 may read what was there before. `mended` makes it right.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx, asm_experimental_arch))]

use mscclrs_device::{
    Aborted, Guard, MemoryChannel, block_any, block_dim, block_sync, device_crate, kernel_args,
    kernels, thread_idx,
};

device_crate!();

kernel_args! {
    /// Arguments of [`hand_over`].
    pub struct HandOverArgs {
        /// Ends the wait if the peer is lost.
        pub guard: Guard,
        /// The way to the peer.
        pub channel: MemoryChannel,
        /// 4-byte words of the message.
        pub words: u32,
        /// This rank: 0 sends, 1 receives.
        pub rank: u32,
        /// Whether the signal orders what was put before it: 0 or 1.
        pub mended: u32,
    }
}

kernels! {
    module = MODULE;

    /// One block a rank; the receiver adds one to every word.
    pub fn hand_over<>(args: HandOverArgs) threads 64 for { "" = <> } {
        let (channel, lane, lanes) = (args.channel, thread_idx(), block_dim());
        if args.rank == 0 {
            channel.put(0, 0, 4 * args.words as u64, lane, lanes);
            block_sync();
            if lane == 0 {
                if args.mended == 0 {
                    // Wrong: the signal may be seen before what was put.
                    channel.signal_relaxed();
                } else {
                    channel.signal();
                }
            }
        } else {
            let ended = lane == 0 && channel.wait(&args.guard).is_err();
            if block_any(ended) {
                return Err(Aborted);
            }
            let message = channel.local.cast::<u32>();
            let mut i = lane;
            while i < args.words {
                message.at(i).store(message.at(i).load() + 1);
                i += lanes;
            }
        }
        Ok(())
    }
}

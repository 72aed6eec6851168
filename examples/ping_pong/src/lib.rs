//! A kernel of one's own: two ranks hand a message to and fro, and each adds one to every word of it
//! before it sends it back.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx, asm_experimental_arch))]

use mscclrs_device::{
    Aborted, Guard, MemoryChannel, block_any, block_dim, block_sync, device_crate, kernel_args,
    kernels, thread_idx,
};

device_crate!();

kernel_args! {
    /// Arguments of [`volley`].
    pub struct PingPongArgs {
        /// Ends the waits if the peer is lost.
        pub guard: Guard,
        /// The way to the peer.
        pub channel: MemoryChannel,
        /// 4-byte words of the message.
        pub words: u32,
        /// How often the message is sent, by either side in turn.
        pub passes: u32,
        /// This rank, 0 or 1; 0 begins.
        pub rank: u32,
    }
}

kernels! {
    module = MODULE;

    /// One block a rank.
    pub fn volley<>(args: PingPongArgs) threads 256 for { "" = <> } {
        let (channel, lane, lanes) = (args.channel, thread_idx(), block_dim());
        let message = channel.local.cast::<u32>();
        let mut pass = 0;
        while pass < args.passes {
            if pass & 1 == args.rank {
                channel.put(0, 0, 4 * args.words as u64, lane, lanes);
                // The signal of one lane announces what all lanes have put.
                block_sync();
                if lane == 0 {
                    channel.signal();
                }
            } else {
                let ended = lane == 0 && channel.wait(&args.guard).is_err();
                // A barrier too; if the wait ended early, all lanes of the block end.
                if block_any(ended) {
                    return Err(Aborted);
                }
                let mut i = lane;
                while i < args.words {
                    message.at(i).store(message.at(i).load() + 1);
                    i += lanes;
                }
                block_sync();
            }
            pass += 1;
        }
        Ok(())
    }
}

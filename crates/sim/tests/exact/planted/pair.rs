//! Two ranks with a channel between them, as a program has them.

use mscclrs_device::{
    EPOCH_START, Family, Global, Guard, MAX_BLOCKS, MemoryChannel, Semaphore, kernel_args,
};
use mscclrs_sim::{Finding, Mode, TestMemory};

use crate::common::launch_kernel;
use crate::world::Ranks;

/// 4-byte words of data a rank.
pub(crate) const WORDS: u32 = 64;
/// 8-byte words of a half of a rank's packet memory.
pub(crate) const HALF: u32 = 64;

kernel_args! {
    pub struct PairArgs {
        pub guard: Guard,
        pub channel: MemoryChannel,
        pub epochs: Global<u64>,
        pub out: Global<u32>,
        pub count: u64,
        pub epoch: u64,
        pub rank: u64,
    }
}

/// One rank's memory.
pub(crate) struct Side {
    pub(crate) data: TestMemory,
    pub(crate) signals: TestMemory,
    pub(crate) packets: TestMemory,
    pub(crate) epochs: TestMemory,
    pub(crate) out: TestMemory,
}

pub(crate) struct Pair {
    pub(crate) ranks: Ranks,
    pub(crate) sides: [Side; 2],
}

/// What a rank's data is at first.
pub(crate) fn datum(rank: usize, word: u32) -> u32 {
    1000 * (rank as u32 + 1) + word
}

impl Pair {
    /// Nothing begins before `finish`.
    pub(crate) fn new(mode: Mode) -> Pair {
        let ranks = Ranks::new(mode, 2);
        let side = || Side {
            data: TestMemory::new(4 * WORDS as usize),
            signals: TestMemory::new(32),
            packets: TestMemory::new(16 * HALF as usize),
            epochs: TestMemory::new(8 * MAX_BLOCKS as usize),
            out: TestMemory::new(4 * WORDS as usize),
        };
        let pair = Pair { ranks, sides: [side(), side()] };
        for rank in 0..2 {
            pair.set_data(rank, |word| datum(rank, word));
            pair.ranks.upload(rank, &pair.sides[rank].signals, &[0; 4]);
            pair.set_epoch(rank, EPOCH_START);
        }
        pair
    }

    /// Enqueues new data of a rank.
    pub(crate) fn set_data(&self, rank: usize, datum: impl Fn(u32) -> u32) {
        let pairs = (0..WORDS).step_by(2);
        let words: Vec<u64> =
            pairs.map(|at| u64::from(datum(at)) | u64::from(datum(at + 1)) << 32).collect();
        self.ranks.upload(rank, &self.sides[rank].data, &words);
    }

    /// Enqueues that a rank's region is at this epoch.
    pub(crate) fn set_epoch(&self, rank: usize, epoch: u64) {
        self.ranks.upload(rank, &self.sides[rank].epochs, &[epoch; MAX_BLOCKS as usize]);
    }

    pub(crate) fn args(&self, rank: usize) -> PairArgs {
        let (own, peer) = (&self.sides[rank], &self.sides[1 - rank]);
        let semaphore = Semaphore {
            remote: Global::from_address(peer.signals.address()),
            inbound: Global::from_address(own.signals.address()),
            expected: Global::from_address(own.signals.address() + 16),
            peer: 1 - rank as u64,
        };
        let channel = MemoryChannel {
            semaphore,
            remote: Global::from_address(peer.data.address()),
            local: Global::from_address(own.data.address()),
            inbox: Global::from_address(own.packets.address()),
            outbox: Global::from_address(peer.packets.address()),
        };
        PairArgs {
            guard: self.ranks.guard(),
            channel,
            epochs: Global::from_address(own.epochs.address()),
            out: Global::from_address(own.out.address()),
            count: WORDS.into(),
            epoch: 0,
            rank: rank as u64,
        }
    }

    /// Enqueues a launch of one block.
    pub(crate) fn launch(
        &self,
        rank: usize,
        family: &'static Family<PairArgs>,
        suffix: &str,
        threads: u32,
        args: &PairArgs,
    ) {
        let kernel = family.instance(suffix).unwrap();
        launch_kernel(&self.ranks.queues[rank], kernel, (1, threads, 0), args);
    }

    /// Enqueues the same launch on both ranks.
    pub(crate) fn launch_both(
        &self,
        family: &'static Family<PairArgs>,
        suffix: &str,
        threads: u32,
    ) {
        for rank in 0..2 {
            self.launch(rank, family, suffix, threads, &self.args(rank));
        }
    }

    /// Begins what is enqueued, and waits for its end.
    pub(crate) fn finish(&self) -> Option<Finding> {
        self.ranks.finish()
    }

    /// A word of what a rank gave out.
    pub(crate) fn out(&self, rank: usize, word: u32) -> u32 {
        (self.sides[rank].out.get(word as usize / 2) >> (32 * (word % 2))) as u32
    }

    /// Whether a rank gave out the peer's first data.
    pub(crate) fn got_the_data(&self, rank: usize, words: u32) -> bool {
        (0..words).all(|word| self.out(rank, word) == datum(1 - rank, word))
    }
}

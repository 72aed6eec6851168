//! Rank counts, known when the kernel is compiled or told at run time, and what a rank knows of its
//! peers.

use mscclrs_device::{Global, KernelArgs, ParamArray, Params};

/// Ranks whose pointers travel in a kernel's arguments; more are read from a table in device memory.
pub const INLINE_RANKS: usize = 8;

/// A rank count.
pub trait Count: Copy {
    /// The count; 0 where it is told at run time.
    const N: u32;
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $n:literal),* $(,)?) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Count for $name {
            const N: u32 = $n;
        }
    )* };
}
counts! {
    /// Told at run time.
    AnyCount = 0,
    /// Two ranks.
    N2 = 2,
    /// Four ranks.
    N4 = 4,
    /// Eight ranks.
    N8 = 8,
}

/// The pointers of a region of scratch, one a rank, in the order of the circle that begins with this
/// rank: number k is the scratch of the rank k after this one. So the number is known when the kernel
/// is compiled where the rank count is, and the pointer comes with the instruction that uses it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Peers {
    /// The first pointers.
    pub inline: ParamArray<Global<u64>, INLINE_RANKS>,
    /// All pointers, in device memory; null where the inline ones are enough.
    pub table: Global<Global<u64>>,
}

/// Kernel arguments with the pointers of a region.
pub trait HasPeers: KernelArgs {
    /// Where [`Peers`] lies in them.
    const PEERS: usize;
    /// The peers.
    fn peers(&self) -> &Peers;
}

/// This rank's own scratch.
#[inline(always)]
pub fn own<A: HasPeers>(args: &Params<A>) -> Global<u64> {
    let offset = A::PEERS + core::mem::offset_of!(Peers, inline);
    args.pointer_at(offset, |args| &args.peers().inline, 0)
}

/// The scratch of the rank `k` after this one.
#[inline(always)]
pub fn peer<A: HasPeers, N: Count>(args: &Params<A>, k: u32) -> Global<u64> {
    if N::N == 0 {
        let table = args.peers().table;
        if !table.is_null() {
            return table.at(k).load_ptr();
        }
    }
    let offset = A::PEERS + core::mem::offset_of!(Peers, inline);
    args.pointer_at(offset, |args| &args.peers().inline, k)
}

/// The rank `k` after `rank`, around the circle of `ranks`; `k < ranks`.
#[inline(always)]
pub fn after<N: Count>(rank: u32, k: u32, ranks: u32) -> u32 {
    let next = rank + k;
    if N::N != 0 {
        next & (N::N - 1)
    } else if next >= ranks {
        next - ranks
    } else {
        next
    }
}

/// Slots of a half of a region into which each rank's peers send: one a peer, none for the rank
/// itself. Slot j is that of the rank j + 1 after the one that owns the scratch.
#[inline(always)]
pub fn slots(ranks: u32) -> u32 {
    ranks - 1
}

/// This rank's slot in the scratch of the rank `k` after it.
#[inline(always)]
pub fn slot_there(k: u32, ranks: u32) -> u32 {
    ranks - 1 - k
}

/// The slot of rank `p`, which is another, in `rank`'s own scratch.
#[inline(always)]
pub fn slot_here<N: Count>(rank: u32, p: u32, ranks: u32) -> u32 {
    if N::N != 0 {
        (p + N::N - 1 - rank) & (N::N - 1)
    } else if p > rank {
        p - rank - 1
    } else {
        p + ranks - 1 - rank
    }
}

/// The rank count: the constant where there is one.
#[inline(always)]
pub fn count<N: Count>(ranks: u32) -> u32 {
    if N::N != 0 { N::N } else { ranks }
}

macro_rules! has_peers {
    ($args:ty) => {
        impl $crate::ranks::HasPeers for $args {
            const PEERS: usize = core::mem::offset_of!($args, peers);
            #[inline(always)]
            fn peers(&self) -> &$crate::ranks::Peers {
                &self.peers
            }
        }
    };
}
pub(crate) use has_peers;

/// Runs `$body` for each rank `$p` of a count that is known when compiled: written out, since an array
/// indexed in a loop that is not unrolled would lie in local memory.
macro_rules! each_rank {
    ($count:ty, $p:ident => $body:expr) => {
        $crate::ranks::each_rank!(@ $count, $p, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $count:ty, $p:ident, $body:expr, $($index:literal)*) => {
        $(
            if $index < <$count as $crate::ranks::Count>::N {
                let $p: u32 = $index;
                $body
            }
        )*
    };
}
pub(crate) use each_rank;

//! How blocks share work out, meet their peers and reduce.

use mscclrs_device::{
    Aborted, Access, DeviceResult, Fold, Global, Guard, MAX_BLOCKS, Params, Reduction, WaitKind,
    block_any, block_dim, block_idx, block_sync, flag_set, flag_wait, refuse, thread_idx,
    with_reduction,
};

use crate::ranks::{Count, HasPeers, after, each_rank, own, peer};

/// Reduces ranges of units by a reduction known when compiled or told at run time.
pub trait Reducer {
    /// Reduces the units [begin, end) over all ranks, shared out among the lanes of this block.
    fn range<N: Count, U: Fold + Default>(
        kind: (u32, u32),
        span: (u32, u32),
        ranks: u32,
        get: impl Fn(u32, u32) -> U,
        put: impl Fn(u32, U),
    );
}

/// A reduction known when compiled.
pub struct Known<R>(core::marker::PhantomData<R>);

impl<R: Reduction> Reducer for Known<R> {
    #[inline(always)]
    fn range<N: Count, U: Fold + Default>(
        _kind: (u32, u32),
        span: (u32, u32),
        ranks: u32,
        get: impl Fn(u32, u32) -> U,
        put: impl Fn(u32, U),
    ) {
        reduce_range::<R, N, U>(span.0, span.1, ranks, get, put);
    }
}

/// The type and operation are told at run time, as `kind`.
pub struct Told;

impl Reducer for Told {
    #[inline(always)]
    fn range<N: Count, U: Fold + Default>(
        kind: (u32, u32),
        span: (u32, u32),
        ranks: u32,
        get: impl Fn(u32, u32) -> U,
        put: impl Fn(u32, U),
    ) {
        with_reduction!(kind.0, kind.1, R => reduce_range::<R, N, U>(span.0, span.1, ranks, get, put));
    }
}

/// Moves the units [begin, end), shared out among the lanes of this block; with wide access four are
/// in flight a lane.
#[inline(always)]
pub fn stream<A: Access, U: Copy>(
    begin: u32,
    end: u32,
    load: impl Fn(u32) -> U,
    store: impl Fn(u32, U),
) {
    let lanes = block_dim();
    let mut i = begin + thread_idx();
    while A::WIDE && i < end && end - i > 3 * lanes {
        let (a, b) = (load(i), load(i + lanes));
        let (c, d) = (load(i + 2 * lanes), load(i + 3 * lanes));
        store(i, a);
        store(i + lanes, b);
        store(i + 2 * lanes, c);
        store(i + 3 * lanes, d);
        i += 4 * lanes;
    }
    while i < end {
        store(i, load(i));
        i += lanes;
    }
}

/// The first units of a lane, loaded before it is known where they go.
#[derive(Clone, Copy)]
pub struct Ahead<U>([U; 4]);

impl<U: Copy + Default> Ahead<U> {
    /// Asks for the first units of [begin, end) that [`stream`] would give this lane.
    #[inline(always)]
    pub fn new<A: Access>(begin: u32, end: u32, load: impl Fn(u32) -> U) -> Self {
        let (i, lanes) = (begin + thread_idx(), block_dim());
        let mut units = [U::default(); 4];
        if i < end {
            units[0] = load(i);
            if Self::is_full::<A>(i, end) {
                units[1] = load(i + lanes);
                units[2] = load(i + 2 * lanes);
                units[3] = load(i + 3 * lanes);
            }
        }
        Ahead(units)
    }

    /// Whether all four units are there.
    #[inline(always)]
    fn is_full<A: Access>(i: u32, end: u32) -> bool {
        A::WIDE && end - i > 3 * block_dim()
    }

    /// Hands them out with their places, and gives the `begin` from where [`stream`] goes on.
    #[inline(always)]
    pub fn each<A: Access>(&self, begin: u32, end: u32, store: impl Fn(u32, U)) -> u32 {
        let (i, lanes) = (begin + thread_idx(), block_dim());
        if i >= end {
            return begin;
        }
        store(i, self.0[0]);
        if !Self::is_full::<A>(i, end) {
            return begin + lanes;
        }
        store(i + lanes, self.0[1]);
        store(i + 2 * lanes, self.0[2]);
        store(i + 3 * lanes, self.0[3]);
        begin + 4 * lanes
    }

    /// Reduces each with what came for its place.
    #[inline(always)]
    pub fn pair<R: Reduction, A: Access>(
        &self,
        begin: u32,
        end: u32,
        came: impl Fn(u32) -> U,
        put: impl Fn(u32, U),
    ) where
        U: Fold,
    {
        let (i, lanes) = (begin + thread_idx(), block_dim());
        if i >= end {
            return;
        }
        if !Self::is_full::<A>(i, end) {
            put(i, self.0[0].pair::<R>(came(i)));
            return;
        }
        let (a, b) = (came(i), came(i + lanes));
        let (c, d) = (came(i + 2 * lanes), came(i + 3 * lanes));
        put(i, self.0[0].pair::<R>(a));
        put(i + lanes, self.0[1].pair::<R>(b));
        put(i + 2 * lanes, self.0[2].pair::<R>(c));
        put(i + 3 * lanes, self.0[3].pair::<R>(d));
    }
}

/// Reduces the units [begin, end) of two ranks, shared out among the lanes of this block. A reduction
/// of two does not depend on their order, so every rank may begin with its own.
#[inline(always)]
pub fn pair_range<R: Reduction, U: Fold>(
    begin: u32,
    end: u32,
    own: impl Fn(u32) -> U,
    came: impl Fn(u32) -> U,
    put: impl Fn(u32, U),
) {
    let lanes = block_dim();
    let mut i = begin + thread_idx();
    while i < end && end - i > 3 * lanes {
        let (a0, a1) = (own(i), own(i + lanes));
        let (a2, a3) = (own(i + 2 * lanes), own(i + 3 * lanes));
        let (b0, b1) = (came(i), came(i + lanes));
        let (b2, b3) = (came(i + 2 * lanes), came(i + 3 * lanes));
        put(i, a0.pair::<R>(b0));
        put(i + lanes, a1.pair::<R>(b1));
        put(i + 2 * lanes, a2.pair::<R>(b2));
        put(i + 3 * lanes, a3.pair::<R>(b3));
        i += 4 * lanes;
    }
    while i < end {
        put(i, own(i).pair::<R>(came(i)));
        i += lanes;
    }
}

/// The flags of a region: word `rank * MAX_BLOCKS + block` of a rank's flags is set by that rank's
/// block to the epoch it has reached.
#[derive(Clone, Copy)]
pub struct Flags {
    /// Where the flags lie in every rank's scratch, in 8-byte words.
    pub at: u32,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
}

/// This block tells the same block of every peer that it has reached `epoch`, and waits for theirs.
/// What the lanes of this block did before is visible to the peers' blocks after, and the other way.
/// All lanes call it.
#[inline(always)]
pub fn meet<A: HasPeers, N: Count>(
    args: &Params<A>,
    guard: &Guard,
    flags: Flags,
    epoch: u64,
) -> DeviceResult {
    meet_on::<_, N>(args, guard, flags, epoch, 0)
}

/// As [`meet`], on flags that are used by `meet_same` only; ends with an error if a peer came with
/// another `tag` of 16 bits. The tag stands for what all ranks have to agree in.
#[inline(always)]
pub fn meet_same<A: HasPeers, N: Count>(
    args: &Params<A>,
    guard: &Guard,
    flags: Flags,
    epoch: u64,
    tag: u32,
) -> DeviceResult {
    meet_on::<_, N>(args, guard, flags, epoch << 16 | (tag & 0xffff) as u64, 0xffff)
}

/// The bits of `mask` have to be equal, the others to be reached.
#[inline(always)]
fn meet_on<A: HasPeers, N: Count>(
    args: &Params<A>,
    guard: &Guard,
    flags: Flags,
    value: u64,
    mask: u64,
) -> DeviceResult {
    block_sync();
    let mut k = 1 + thread_idx();
    while k < flags.ranks {
        let theirs = peer::<_, N>(args, k).at(flags.at);
        flag_set(theirs.at(flags.rank * MAX_BLOCKS + block_idx()), value);
        k += block_dim();
    }
    let mut ended = false;
    let mut k = 1 + thread_idx();
    while k < flags.ranks && !ended {
        let p = after::<N>(flags.rank, k, flags.ranks);
        let mine = own(args).at(flags.at).at(p * MAX_BLOCKS + block_idx());
        match flag_wait(guard, mine, value & !mask, p) {
            // A peer that is ahead has passed this meeting, and so found the same bits.
            Ok(seen) if (seen ^ value) & mask == 0 || seen & !mask != value & !mask => {}
            Ok(seen) => {
                refuse(guard, mine, seen, value, WaitKind::EpochFlag, p);
                ended = true;
            }
            Err(Aborted) => ended = true,
        }
        k += block_dim();
    }
    // A wait that ended early ends the whole block: the others must not go on without the peer.
    if block_any(ended) { Err(Aborted) } else { Ok(()) }
}

/// One unit reduced over all ranks in rank order, so that every rank gets the same bits.
#[inline(always)]
pub fn reduce_unit<R: Reduction, N: Count, U: Fold + Default>(
    ranks: u32,
    get: impl Fn(u32) -> U,
) -> U {
    if N::N == 2 {
        let (a, b) = (get(0), get(1));
        return a.pair::<R>(b);
    }
    if N::N != 0 {
        let mut units = [U::default(); 8];
        each_rank!(N, p => units[p as usize] = get(p));
        let mut acc = units[0].start::<R>();
        each_rank!(N, p => if p > 0 {
            acc = U::fold::<R>(acc, units[p as usize]);
        });
        return U::finish::<R>(acc);
    }
    let mut acc = get(0).start::<R>();
    let mut p = 1;
    while p < ranks {
        acc = U::fold::<R>(acc, get(p));
        p += 1;
    }
    U::finish::<R>(acc)
}

/// Reduces the units [begin, end) over all ranks, shared out among the lanes of this block.
#[inline(always)]
pub fn reduce_range<R: Reduction, N: Count, U: Fold + Default>(
    begin: u32,
    end: u32,
    ranks: u32,
    get: impl Fn(u32, u32) -> U,
    put: impl Fn(u32, U),
) {
    let lanes = block_dim();
    let mut i = begin + thread_idx();
    if N::N == 2 {
        while i < end && end - i > 3 * lanes {
            let (a0, b0) = (get(0, i), get(1, i));
            let (a1, b1) = (get(0, i + lanes), get(1, i + lanes));
            let (a2, b2) = (get(0, i + 2 * lanes), get(1, i + 2 * lanes));
            let (a3, b3) = (get(0, i + 3 * lanes), get(1, i + 3 * lanes));
            put(i, a0.pair::<R>(b0));
            put(i + lanes, a1.pair::<R>(b1));
            put(i + 2 * lanes, a2.pair::<R>(b2));
            put(i + 3 * lanes, a3.pair::<R>(b3));
            i += 4 * lanes;
        }
    }
    while i < end {
        put(i, reduce_unit::<R, N, U>(ranks, |p| get(p, i)));
        i += lanes;
    }
}

/// The part of [0, count) that this block works on: `per_block` a block.
#[inline(always)]
pub fn block_range(count: u32, per_block: u32) -> (u32, u32) {
    // The host chooses `per_block` so that the product stays below 2^32.
    let begin = block_idx() * per_block;
    if begin >= count {
        (count, count)
    } else if count - begin < per_block {
        (begin, count)
    } else {
        (begin, begin + per_block)
    }
}

/// The units of chunk `index` of a message of `count` units cut into chunks of `chunk`.
#[inline(always)]
pub fn chunk_length(count: u32, chunk: u32, index: u32) -> u32 {
    let begin = index as u64 * chunk as u64;
    if begin >= count as u64 {
        0
    } else if count as u64 - begin < chunk as u64 {
        (count as u64 - begin) as u32
    } else {
        chunk
    }
}

/// An address some bytes further on.
#[inline(always)]
pub fn bytes_at<T>(base: Global<T>, offset: u64) -> Global<u8> {
    base.cast::<u8>().at64(offset)
}

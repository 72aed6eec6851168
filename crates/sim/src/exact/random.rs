//! Numbers that follow from a seed. Not for secrets.

/// A generator (SplitMix64): every seed is good, and its state is one word.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, which is not 0; the error from its not being a power of two is far
    /// below what anybody could see.
    pub(crate) const fn below(&mut self, limit: u64) -> u64 {
        ((self.next() as u128 * limit as u128) >> 64) as u64
    }

    /// True once in `n`.
    pub(crate) const fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A word whose every bit depends on every bit of `value`.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

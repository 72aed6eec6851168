//! Inputs that are nearly right, the same ones every time.

/// Numbers that parsers trip over.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    u64::MAX - 7,
    u64::MAX,
];

/// A sequence of numbers that follows from a name alone (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn of(name: &str) -> Dice {
        Dice(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }))
    }

    /// Below `limit`; 0 for a limit of 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % (limit.max(1) as u64)) as usize
    }
}

/// Damages `input` in one to three ways; `other` is an input to take pieces of.
pub(crate) fn mutate(dice: &mut Dice, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len());
        match dice.below(7) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
            1 if !bytes.is_empty() => bytes[at] = dice.below(256) as u8,
            2 => bytes.truncate(at),
            3 => bytes.insert(at, dice.below(256) as u8),
            4 if !bytes.is_empty() => drop(bytes.remove(at)),
            5 => {
                let width = [1, 2, 4, 8][dice.below(4)];
                let edge = EDGES[dice.below(EDGES.len())].to_le_bytes();
                for (byte, edge) in bytes[at..].iter_mut().zip(&edge[..width]) {
                    *byte = *edge;
                }
            }
            _ => {
                let from = dice.below(other.len());
                let piece = &other[from..(from + 1 + dice.below(32)).min(other.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_gives_the_same_inputs_and_they_differ() {
        let inputs = |name| {
            let mut dice = Dice::of(name);
            (0..200).map(|_| mutate(&mut dice, b"0123456789", b"abc")).collect::<Vec<_>>()
        };
        assert_eq!(inputs("a"), inputs("a"));
        assert_ne!(inputs("a"), inputs("b"));
        let same = inputs("a").iter().filter(|input| *input == b"0123456789").count();
        assert!(same < 20, "{same}");
        // Nothing to begin with is no trouble.
        let mut dice = Dice::of("a");
        (0..200).for_each(|_| drop(mutate(&mut dice, b"", b"")));
    }
}

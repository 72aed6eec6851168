//! Which bare allreduce and which grids are worth measuring for a size.

use std::fmt;

/// How a bare allreduce moves its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// One shot, 8-byte packets.
    Ll8,
    /// One shot, 16-byte packets.
    Ll16,
    /// Zero copy: load half from the peer, add, store to both.
    Pull,
    /// One shot, plain stores and a signal a block.
    Store,
}

impl Method {
    const ALL: [Method; 4] = [Method::Ll8, Method::Ll16, Method::Store, Method::Pull];

    /// For tables and JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Method::Ll8 => "LL8",
            Method::Ll16 => "LL16",
            Method::Pull => "zero copy",
            Method::Store => "stores",
        }
    }

    /// The sizes for which it can be the best.
    const fn serves(self, bytes: u64) -> bool {
        match self {
            Method::Ll8 => bytes <= 256 << 10,
            Method::Ll16 => bytes >= 16 << 10 && bytes <= 1 << 20,
            Method::Pull => bytes >= 8 << 20,
            Method::Store => bytes >= 256 << 10 && bytes <= 8 << 20,
        }
    }
}

/// A bare allreduce and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) method: Method,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
}

impl Shape {
    /// Those that are worth measuring for a size. Sizes between the ranges of two methods have none
    /// missing: the ranges overlap.
    pub(crate) fn for_bytes(bytes: u64) -> Vec<Shape> {
        let methods = Method::ALL.into_iter().filter(|method| method.serves(bytes));
        methods.flat_map(|method| Shape::of_method(method, bytes)).collect()
    }

    fn of_method(method: Method, bytes: u64) -> Vec<Shape> {
        let payload = match method {
            Method::Store => {
                let grids = [(32, 1024), (64, 1024), (128, 512), (128, 1024)];
                return grids.map(|(blocks, threads)| Shape { method, blocks, threads }).into();
            }
            Method::Pull => {
                let grids = [(32, 1024), (64, 1024), (128, 512), (128, 1024)];
                return grids.map(|(blocks, threads)| Shape { method, blocks, threads }).into();
            }
            Method::Ll8 => 4,
            Method::Ll16 => 8,
        };
        // One packet a lane, in whole warps.
        let packets = bytes.div_ceil(payload).next_multiple_of(32);
        let mut shapes = Vec::new();
        for most in [256, 512, 1024] {
            let threads = packets.min(most);
            let blocks = packets.div_ceil(threads);
            let shape = Shape { method, blocks: blocks as u32, threads: threads as u32 };
            if blocks <= 128 && !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        shapes
    }

    /// Bytes of one half of its slots.
    pub(crate) fn slot_bytes(self, bytes: u64) -> u64 {
        match self.method {
            Method::Ll8 | Method::Ll16 => 2 * bytes,
            Method::Pull => 0,
            Method::Store => bytes,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}x{}", self.method.name(), self.blocks, self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_shape() {
        for power in 5..=30 {
            assert!(!Shape::for_bytes(1 << power).is_empty(), "2^{power}");
            assert!(!Shape::for_bytes((1 << power) + 32).is_empty(), "2^{power} + 32");
        }
    }

    #[test]
    fn packets_have_a_lane_each() {
        for bytes in [32, 1024, 4128, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
            for shape in Shape::for_bytes(bytes) {
                let payload = match shape.method {
                    Method::Ll8 => 4,
                    Method::Ll16 => 8,
                    _ => continue,
                };
                let lanes = u64::from(shape.blocks) * u64::from(shape.threads);
                assert!(lanes * payload >= bytes, "{shape}");
            }
        }
    }
}

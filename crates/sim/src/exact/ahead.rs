//! What a lane comes to next: what is remembered of it is asked for early, since most of what an access
//! costs is to wait for main memory. Nothing but speed depends on it.
//!
//! Lanes mostly go through memory element by element, as far from one to the next as the grid has lanes.

use mscclrs_device::arch::host::Access;

use super::cells::Place;
use super::watch::State;

/// Source lines that are told apart.
const LINES: usize = 64;

/// The last access of a source line.
#[derive(Clone, Copy, Default)]
struct Last {
    line: usize,
    who: u32,
    address: usize,
    /// Elements are of two such accesses: one lane made them side by side.
    pairs: bool,
}

/// The last accesses of source lines.
pub(super) struct Ahead([Last; LINES]);

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead([Last::default(); LINES])
    }
}

impl Ahead {
    /// The size of the elements that an access is about.
    #[inline]
    fn element(&mut self, who: u32, access: &Access) -> u64 {
        let Access { address, size, from, .. } = *access;
        let line = std::ptr::from_ref(from) as usize;
        let last = &mut self.0[line / 8 % LINES];
        let follows = last.address + size as usize == address && last.who == who;
        let pairs = last.line == line && (last.pairs || follows);
        *last = Last { line, who, address, pairs };
        u64::from(size) << u32::from(pairs)
    }
}

impl State {
    /// A lane makes an access.
    #[inline]
    pub(super) fn look_ahead(&mut self, who: u32, access: &Access, (place, offset): (Place, u64)) {
        let step = self.lanes[who as usize].step * self.ahead.element(who, access);
        self.cells.prefetch(place, (offset + step, offset + 2 * step));
        // The memory itself.
        prefetch(std::ptr::without_provenance::<u8>(access.address.wrapping_add(step as usize)));
    }
}

/// What lies there is wanted soon, if anything does.
#[inline]
pub(super) fn prefetch<T>(value: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: this changes nothing, reads nothing that the program sees, and may be told any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(value.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use mscclrs_device::arch::host::Op;
    use mscclrs_device::{OrderKind, ScopeKind};

    use super::*;

    #[test]
    fn two_halves_are_one_element() {
        let mut ahead = Ahead::default();
        let mut element = |who, address| {
            let (op, order, scope) = (Op::Load, OrderKind::Relaxed, ScopeKind::Cta);
            let from = Location::caller();
            ahead.element(who, &Access { address, size: 8, op, order, scope, from })
        };
        assert_eq!([(0, 0), (0, 2048), (1, 2056)].map(|(who, at)| element(who, at)), [8; 3]);
        assert_eq!([2064, 4096, 4104].map(|at| element(1, at)), [16; 3]);
    }
}

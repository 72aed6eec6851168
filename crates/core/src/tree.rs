//! The tree that ranks form to watch over each other and to gather: a binary heap by rank.
//!
//! Every rank has at most three neighbours, and no two ranks are further apart than twice the
//! logarithm of their number.

/// The rank above; none for rank 0.
pub(crate) fn parent(rank: u32) -> Option<u32> {
    (rank > 0).then(|| (rank - 1) / 2)
}

/// The ranks below.
pub(crate) fn children(rank: u32, world_size: u32) -> impl Iterator<Item = u32> {
    let first = 2 * u64::from(rank) + 1;
    (first..=first + 1).filter(move |&child| child < u64::from(world_size)).map(|c| c as u32)
}

/// The parent, then the children.
pub(crate) fn neighbours(rank: u32, world_size: u32) -> Vec<u32> {
    parent(rank).into_iter().chain(children(rank, world_size)).collect()
}

/// Steps from a rank up to rank 0.
pub(crate) fn depth(rank: u32) -> u32 {
    std::iter::successors(parent(rank), |&rank| parent(rank)).count() as u32
}

/// Steps from a rank down to its furthest descendant.
pub(crate) fn height(rank: u32, world_size: u32) -> u32 {
    let below = |rank: u64| 2 * rank + 1;
    std::iter::successors(Some(u64::from(rank)), |&rank| Some(below(rank)))
        .skip(1)
        .take_while(|&rank| rank < u64::from(world_size))
        .count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_whole() {
        for n in 1..40 {
            for rank in 0..n {
                for peer in neighbours(rank, n) {
                    assert!(peer < n && peer != rank);
                    assert!(neighbours(peer, n).contains(&rank));
                }
                for child in children(rank, n) {
                    assert_eq!(parent(child), Some(rank));
                    assert_eq!(depth(child), depth(rank) + 1);
                    assert!(height(child, n) < height(rank, n));
                }
                assert_eq!(height(rank, n) == 0, children(rank, n).next().is_none());
            }
            let links: usize = (0..n).map(|rank| neighbours(rank, n).len()).sum();
            assert_eq!(links, 2 * (n as usize - 1));
        }
    }

    #[test]
    fn numbers_near_the_end_do_not_overflow() {
        assert_eq!(children(u32::MAX - 1, u32::MAX).count(), 0);
        assert_eq!(height(u32::MAX - 1, u32::MAX), 0);
        assert_eq!(height(0, u32::MAX), 31);
    }
}

//! Every environment variable that the project reads, in one registry.
//!
//! Invariant: only a [`Variable`] of this crate's tables can be read, and what is allowed is part of
//! its entry. So the tables are the whole truth: a page is made of them, and `mscclrs info` shows
//! and checks each. An empty value is as good as none. Where MSCCL++ has the variable its spelling
//! works too; ours wins.

mod error;
pub mod foreign;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod internal;
mod source;
mod table;
mod variable;

pub use error::{Error, Result};
pub use source::{Source, inherited, names};
pub use table::*;
pub use variable::{Kind, Variable};

/// Every variable that is read: the user's, the command's own, and other programs'.
pub fn registered() -> impl Iterator<Item = &'static Variable> {
    [TABLE, internal::TABLE, foreign::TABLE].into_iter().flatten().copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_tables_are_sorted_and_complete() {
        for table in [TABLE, internal::TABLE, foreign::TABLE] {
            for pair in table.windows(2) {
                assert!(pair[0].name < pair[1].name, "{} {}", pair[0].name, pair[1].name);
            }
        }
        for variable in registered() {
            assert!(!variable.allowed().is_empty() && variable.text.ends_with('.'));
            assert!(variable.alias.is_none_or(|alias| alias.starts_with("MSCCLPP_")));
        }
        let ours = |variable: &&&Variable| variable.name.starts_with("MSCCLRS_");
        assert_eq!(TABLE.iter().filter(ours).count(), TABLE.len());
        assert_eq!(internal::TABLE.iter().filter(ours).count(), internal::TABLE.len());
        assert_eq!(foreign::TABLE.iter().filter(ours).count(), 0);
    }

    #[test]
    fn every_name_has_one_meaning() {
        let names = registered().flat_map(|variable| [Some(variable.name), variable.alias]);
        let names: Vec<_> = names.flatten().collect();
        let different: BTreeSet<_> = names.iter().collect();
        assert_eq!(names.len(), different.len());
    }
}
